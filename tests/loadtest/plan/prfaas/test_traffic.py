"""The case study's prompts: lengths, arrivals, and that a seed means the same everywhere."""

import numpy as np
import pytest

from loadtest.plan.prfaas.paper import OUTPUT_TOKENS, THRESHOLD_TOKENS
from loadtest.plan.prfaas.traffic import BURST_S, BURST_SHAPE, agents_workload, lognormal_workload


def test_lengths_are_the_papers() -> None:
    workload = lognormal_workload(40_000, 3.0, seed=7)
    workload.check()
    tokens = np.array([request.tokens for request in workload.requests()])
    assert tokens.mean() == pytest.approx(27_500, rel=0.02)
    assert np.quantile(tokens, 0.9) == pytest.approx(62_400, rel=0.03)
    assert (tokens > THRESHOLD_TOKENS).mean() == pytest.approx(0.496, abs=0.01)
    assert tokens.min() >= 128
    assert tokens.max() <= 131_072
    assert {request.output_tokens for request in workload.requests()} == {OUTPUT_TOKENS}


def test_a_seed_asks_the_same_at_every_rate() -> None:
    slow, fast = (lognormal_workload(300, rate, seed=3) for rate in (1.0, 4.0))
    assert list(slow.requests()) == list(fast.requests())
    starts = np.array(
        [[one.start_s, other.start_s] for one, other in zip(slow.sessions, fast.sessions, strict=True)]
    )
    assert starts[:, 0] == pytest.approx(4.0 * starts[:, 1])
    assert list(lognormal_workload(300, 1.0, seed=4).requests()) != list(slow.requests())


def test_prompts_share_nothing() -> None:
    workload = lognormal_workload(50, 1.0, seed=1)
    firsts = [request.held[:8] for request in workload.requests()]
    assert len(set(firsts)) == 50


def test_bursts_come_at_the_same_mean_rate_and_are_overdispersed_in_minutes() -> None:
    def per_minute(*, bursts: bool) -> tuple[float, float]:
        workload = lognormal_workload(30_000, 3.0, seed=5, bursts=bursts)
        starts_s = np.array([session.start_s for session in workload.sessions])
        counts = np.bincount((starts_s / BURST_S).astype(int))[1:-1]
        return float(counts.mean()) / BURST_S, float(counts.var() / counts.mean())

    even, bursty = per_minute(bursts=False), per_minute(bursts=True)
    assert even == pytest.approx((3.0, 1.0), rel=0.25)
    assert bursty[0] == pytest.approx(3.0, rel=0.05)
    assert bursty[1] == pytest.approx(1.0 + 3.0 * BURST_S / BURST_SHAPE, rel=0.35)


def test_agents_stay_within_the_longest_prompt() -> None:
    workload = agents_workload(8, 8, seed=1)
    workload.check()
    assert workload.users == 8
    assert max(request.tokens + request.output_tokens for request in workload.requests()) <= 131_072
