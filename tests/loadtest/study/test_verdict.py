"""The default against its rivals, and the resolution of three seeds."""

from dataclasses import replace
from math import inf

import pytest
from fakes.study import row

from loadtest.study.results import Row
from loadtest.study.verdict import Told, interval_of, verdicts


def seeds(label: str, *means_s: float, p90_s: float = 2.0) -> list[Row]:
    return [row(label, mean_s=mean_s, p90_s=p90_s, seed=seed) for seed, mean_s in enumerate(means_s, start=1)]


def test_an_interval_is_students_of_the_logarithms() -> None:
    """Logarithms -0.1, 0 and 0.1: deviation 0.1, so 4.303·0.1/sqrt(3) on either side."""
    found = interval_of([0.904837, 1.0, 1.105171])

    assert found.middle == pytest.approx(1.0, abs=1e-6)
    assert (found.low, found.high) == (pytest.approx(0.7800, abs=1e-4), pytest.approx(1.2820, abs=1e-4))


def test_one_seed_tells_nothing() -> None:
    assert (interval_of([0.5]).low, interval_of([0.5]).high) == (0.0, inf)


def test_each_figure_is_compared_with_the_rival_that_is_best_at_it() -> None:
    rows = [
        row(mean_s=2.0, p90_s=3.0),
        row("lmetric", mean_s=4.0, p90_s=12.0),
        row("min_ttft", mean_s=5.0, p90_s=6.0),
        row("expected_cost, no queue", mean_s=0.1, p90_s=0.1),  # ours as well: no rival
    ]

    (one,) = verdicts(rows)

    assert (one.mean.rival, one.mean.ratio.middle) == ("lmetric", 0.5)
    assert (one.p90.rival, one.p90.ratio.middle) == ("min_ttft", 0.5)
    assert one.mean.told is Told.OPEN
    assert one.share_of_pooled == pytest.approx(0.5 / 0.6)
    assert one.floor_s == 0.25


def test_seeds_are_compared_in_pairs() -> None:
    """Seeds differ by a factor of three, rules by 10 % at each seed."""
    (one,) = verdicts([*seeds("expected_cost", 0.9, 1.8, 2.7), *seeds("lmetric", 1.0, 2.0, 3.0)])

    assert one.mean.told is Told.FASTER


def test_a_verdict_needs_an_interval_on_one_side() -> None:
    (one,) = verdicts([*seeds("expected_cost", 0.8, 0.9, 1.1), *seeds("lmetric", 1.0, 1.0, 1.0)])

    assert one.mean.told is Told.OPEN


def test_a_rival_that_is_always_faster_counts_although_another_is_best_by_its_mean() -> None:
    ours = seeds("expected_cost", 1.0, 1.0, 1.0)
    (one,) = verdicts([*ours, *seeds("lmetric", 0.1, 1.1, 1.2), *seeds("affinity", 0.9, 0.9, 0.9)])

    assert one.mean.rival == "lmetric"
    assert (one.mean.told, one.mean.faster) == (Told.SLOWER, ("affinity",))


def test_times_of_a_queue_that_lets_requests_expire_are_not_compared() -> None:
    ours = [
        replace(one, figures=one.figures | {"completed_share": 0.9})
        for one in seeds("expected_cost", 0.5, 0.5, 0.5)
    ]

    (one,) = verdicts([*ours, *seeds("lmetric", 1.0, 1.0, 1.0)])

    assert one.mean.told is Told.UNCOMPARED


def test_scenarios_without_the_default_or_without_a_rival_are_left_out() -> None:
    assert verdicts([row("lmetric"), row(utilisation=0.6)]) == []


def test_scenarios_keep_their_order() -> None:
    rows = [row(label, utilisation=load) for load in (0.95, 0.6) for label in ("lmetric", "expected_cost")]

    assert [one.scenario.utilisation for one in verdicts(rows)] == [0.95, 0.6]
