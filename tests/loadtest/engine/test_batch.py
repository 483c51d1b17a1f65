"""Decode as processor sharing, beside a simulation that takes every token one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.batch import DecodeBatch
from loadtest.engine.job import Job
from loadtest.engine.parallelism import NO_PREFILL_MTP
from loadtest.engine.timing import DecodeTiming

NOBODY: Any = None
PRICES = DecodeTiming(base_s=0.010, request_s=0.001, kv_token_s=1e-6)


def job(context: int, rank: int = 0) -> Job:
    made = Job(b"", context - 1, 1, b"", 1, NOBODY)
    made.rank = rank
    return made


def stepped_s(ranks: list[list[int]], tokens: int) -> float:
    """Seconds of so many tokens, step by step; each rank is a list of contexts."""
    total_s = 0.0
    for step in range(tokens):
        # Between two tokens a context counts with half of the token that it grows by.
        contexts = [(len(rank), sum(rank) + len(rank) * (step + 0.5)) for rank in ranks]
        total_s += max(PRICES.stretch(n, kv, len(ranks)).step_s for n, kv in contexts)
    return total_s


def test_everybody_gets_tokens_at_the_same_rate_and_ends_in_turn() -> None:
    """Two of 1000 and 3000 tokens of context: 16 ms a step, growing by 2 us a token."""
    batch = DecodeBatch(PRICES, 1, 0)
    short, long = job(1000), job(3000)
    batch.join(short, 10)
    batch.join(long, 20)
    assert batch.tokens_to_end() == 10
    assert batch.seconds_until(10) == pytest.approx(stepped_s([[1000, 3000]], 10))

    batch.run(batch.seconds_until(10))
    assert list(batch.ended()) == [short]
    batch.leave(short)
    assert (batch.got(long), batch.tokens_to_end()) == (10, pytest.approx(10))
    assert batch.seconds_until(10) == pytest.approx(stepped_s([[3010]], 10))


@given(
    st.lists(st.lists(st.integers(1, 500_000), max_size=4), min_size=1, max_size=3).filter(any),
    st.integers(1, 300),
)
def test_a_stretch_takes_as_long_as_its_steps_one_by_one(ranks: list[list[int]], tokens: int) -> None:
    """The slowest rank sets the pace; while another takes over, its last step is counted as a part."""
    batch = DecodeBatch(PRICES, len(ranks), 0)
    for number, contexts in enumerate(ranks):
        for context in contexts:
            batch.join(job(context, number), 1000)
    expected_s = stepped_s(ranks, tokens)

    assert batch.seconds_until(tokens) == pytest.approx(expected_s, rel=1e-6)
    batch.run(expected_s)
    assert batch.progress == pytest.approx(tokens, rel=1e-6)


def test_a_rank_that_grows_faster_takes_over_as_the_slowest() -> None:
    """At 2 us a token: 100,000 growing by 1 against 99,000 growing by 4; level after 333 tokens."""
    batch = DecodeBatch(DecodeTiming(base_s=0.010, kv_token_s=1e-6), 2, 0)
    for context, rank in ((100_000, 0), (24_750, 1), (24_750, 1), (24_750, 1), (24_750, 1)):
        batch.join(job(context, rank), 2000)
    first_s = 1000 / 3 * (0.210 + 1e-6 * 1000 / 3)
    level_s = 0.210 + 2e-6 * 1000 / 3
    then_s = 1000 * (level_s + 4e-6 * 1000)

    assert batch.seconds_until(1000 / 3) == pytest.approx(first_s)
    assert batch.seconds_until(1000 / 3 + 1000) == pytest.approx(first_s + then_s)
    batch.run(first_s + then_s / 2)
    batch.run(then_s / 2)
    assert batch.progress == pytest.approx(1000 / 3 + 1000)


def test_who_leaves_early_takes_its_context_along() -> None:
    batch = DecodeBatch(PRICES, 1, 0)
    stays, leaves = job(1000), job(50_000)
    batch.join(stays, 100)
    batch.join(leaves, 100)
    batch.run(batch.seconds_until(40))
    batch.leave(leaves)

    assert len(batch) == batch.requests(0) == 1
    assert batch.seconds_until(60) == pytest.approx(stepped_s([[1040]], 60))


def test_a_step_beside_a_prefill_gives_everybody_what_a_step_gives() -> None:
    batch = DecodeBatch(DecodeTiming(0.010, 0.001, mtp_speedup=2.5), 1, 0)
    batch.join(job(10), 5)
    assert batch.beside_s() == pytest.approx(0.001)
    batch.step()
    assert batch.got(next(iter(batch))) == 2
    batch.step()

    assert len(list(batch.ended())) == 1


def test_windows_are_due_every_n_tokens_and_once_for_all_that_were_missed() -> None:
    batch = DecodeBatch(PRICES, 1, 10)
    member = job(10)
    batch.join(member, 100)
    due = []
    for tokens in (9, 1, 35, 4, 1):
        batch.run(batch.seconds_until(tokens))
        due.append(list(batch.released()))

    assert due == [[], [member], [member], [], [member]]


def test_without_mtp_in_prefill_the_first_tokens_come_as_slowly_as_published() -> None:
    """MiMo-V2.5 (arXiv:2607.13095, 6.2): with it 2.3 times as fast up to token 128, 1.5 times up to 256."""
    spans: list[list[float]] = []
    for slow in ((), NO_PREFILL_MTP):
        timing = DecodeTiming(base_s=0.010, mtp_speedup=2.6, slow_tokens=slow)
        at_s = []
        for tokens in (128, 256, 384):
            batch = DecodeBatch(timing, 1, 0)
            one = job(1000)
            batch.join(one, tokens)
            at_s.append(batch.seconds_until(batch.tokens_to_end()))
            batch.run(at_s[-1])
            assert list(batch.ended()) == [one]
            assert batch.got(one) == tokens
        spans.append([at_s[0], at_s[1] - at_s[0], at_s[2] - at_s[1]])

    fast, slowed = spans
    assert [b / a for a, b in zip(fast, slowed, strict=True)] == pytest.approx([2.3, 1.5, 1.0])
    assert slowed[0] == pytest.approx(128 * 0.010 * 2.3 / 2.6)
