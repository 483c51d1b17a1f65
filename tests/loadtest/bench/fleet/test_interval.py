"""Means with intervals, and judgements on a limit."""

import math

import pytest

from loadtest.bench.fleet.interval import Answer, Interval


def test_an_interval_is_students() -> None:
    """For 1, 2, 3: mean 2, standard error 1 / sqrt(3), and t is 4.303 for two degrees of freedom."""
    seen = Interval.of([1.0, 2.0, 3.0])

    assert seen.mean == 2.0
    assert seen.high - seen.mean == pytest.approx(4.303 / math.sqrt(3))
    assert seen.mean - seen.low == pytest.approx(4.303 / math.sqrt(3))


def test_one_measurement_decides_nothing() -> None:
    """One measurement has no spread, so its interval is endless."""
    assert Interval.of([0.5]).at_most(0.85) is Answer.UNDECIDED


@pytest.mark.parametrize(
    ("limit", "most", "least"),
    [
        (0.7, Answer.NO, Answer.YES),
        (0.8, Answer.UNDECIDED, Answer.UNDECIDED),
        (0.9, Answer.YES, Answer.NO),
    ],
)
def test_an_interval_that_holds_the_limit_is_undecided(limit: float, most: Answer, least: Answer) -> None:
    """The interval is 0.75 to 0.85."""
    seen = Interval(0.8, 0.75, 0.85, 5)

    assert (seen.at_most(limit), seen.at_least(limit)) == (most, least)
