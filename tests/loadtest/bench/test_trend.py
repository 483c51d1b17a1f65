"""Tests of `loadtest.bench.trend`."""

import pytest

from loadtest.bench.trend import Series, Trend, plot


def line(start: float, per_s: float) -> Series:
    return [(100.0 + second, start + per_s * second) for second in range(0, 300, 5)]


def test_the_slope_is_told_per_minute_and_as_a_share_of_the_mean() -> None:
    trend = Trend.of(line(1000, 1))
    assert trend.per_min == pytest.approx(60)
    assert trend.percent_per_min == pytest.approx(100 * 60 / trend.mean)


@pytest.mark.parametrize(
    ("start", "per_s", "verdict"),
    [
        (1000, 0.1, "flat"),
        (1000, 0.5, "GROWS"),
        (1000, -0.5, "falls"),
        (10, 0.01, "flat"),
        (10, 0.03, "GROWS"),
        (0, 0.0, "flat"),
    ],
)
def test_a_leak_is_told_from_what_stays(start: float, per_s: float, verdict: str) -> None:
    """A percent a minute of a thousand is 0.17 a second; of something small, one a minute is 0.017."""
    assert Trend.of(line(start, per_s)).verdict == verdict


def test_a_saw_tooth_is_flat() -> None:
    """The log between two snapshots, sampled out of step with them."""
    assert Trend.of([(second, 1000 + 100 * (second % 12)) for second in range(0, 480, 5)]).verdict == "flat"


def test_a_plot_rises_with_its_values() -> None:
    assert plot([(second, second) for second in range(9)]) == " ▁▂▃▄▅▆▇█"
    assert len(plot(line(1, 1))) == 30
