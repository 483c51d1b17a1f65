"""Bisection for the highest rate that a fleet sustains."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.plan.prfaas.fleets import CONTENDERS, Contender
from loadtest.plan.prfaas.sustained import Laboratory, Trial, best_rates, sustained
from loadtest.plan.prfaas.traffic import lognormal_workload
from loadtest.plan.prfaas.trials import Figures

GOOD = Figures(
    requests=100,
    completed_share=1.0,
    completed_per_s=1.0,
    rejected=0,
    lost=0,
    ttft_mean_s=1.0,
    ttft_p50_s=1.0,
    ttft_p90_s=2.0,
    ttft_p99_s=3.0,
    wait_mean_s=0.0,
    remote_share=0.5,
    egress_mean_bytes_per_s=0.0,
    egress_max_bytes_per_s=0.0,
)


class Known(Laboratory):
    """A fleet with seed n is at its end at 2 + n / 100 requests/s."""

    def trials(self, asked: Sequence[tuple[Contender, float, int]]) -> list[Trial]:
        return [
            Trial(fleet.name, rate, seed, replace(GOOD, ttft_p90_s=2.0 if rate <= 2 + seed / 100 else 99.0))
            for fleet, rate, seed in asked
        ]


def test_the_end_of_a_fleet_is_found_for_each_seed() -> None:
    laboratory = Known(lambda rate, seed: lognormal_workload(1, rate, seed=seed), 0.0, 1)
    found = list(sustained(laboratory, [CONTENDERS["ours"]], [1, 30], {"ours": (1.0, 3.0)}, rounds=10))
    assert [len(trials) for trials in found] == [2] * 10
    trials = [trial for each in found for trial in each]
    assert best_rates(trials, "ours") == pytest.approx([2.01, 2.30], abs=0.003)
    assert best_rates(trials, "naive") == []


@pytest.mark.parametrize(
    ("changes", "sustains"),
    [({}, True), ({"ttft_p90_s": 15.1}, False), ({"completed_share": 0.989}, False)],
)
def test_a_rate_is_sustained_if_answers_come_and_come_in_time(
    changes: dict[str, float], sustains: bool
) -> None:
    figures = replace(GOOD, **changes)  # type: ignore[arg-type]
    assert Trial("ours", 1.0, 1, figures).sustained is sustains
