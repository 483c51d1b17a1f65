"""The charts of a plan show its findings, also missing ones."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.planned import CURVE, TIERS, outcome, trial

from loadtest.plan.charts import draw_curve, draw_lifetimes, draw_tiers, draw_trials


def test_the_curve_says_what_twice_the_memory_is_worth() -> None:
    assert "40.0 %" in draw_curve(CURVE, 2_000_000).title.replace("\N{NO-BREAK SPACE}", " ")
    assert "50.0 %" in draw_curve(CURVE, 2_000_000).title.replace("\N{NO-BREAK SPACE}", " ")
    assert "60.0 %" in draw_curve(CURVE, None).title.replace("\N{NO-BREAK SPACE}", " ")


def test_between_two_sizes_the_curve_is_read_off_the_axis() -> None:
    assert CURVE.at(1_000_000) == pytest.approx(0.2)
    assert CURVE.at(2**0.5 * 1_000_000) == pytest.approx(0.3)
    assert CURVE.at(10**9) == 0.5


def test_a_lifetime_that_is_enough_is_named_or_that_none_is() -> None:
    """0.58 of 0.6 is more than 95 %, 0.3 is not."""
    chart = draw_lifetimes(TIERS)
    short = replace(TIERS, ttl=replace(TIERS.ttl, points=(10, 60), hit_ratios=(0.1, 0.3)))

    assert chart.title.replace("\N{NO-BREAK SPACE}", " ").startswith("Blocks kept for 600 s")
    assert list(np.asarray(chart.figure.axes[0].lines[1].get_xdata())) == [10, 60, 600]
    assert "are not enough" in draw_lifetimes(short).title


def test_each_tier_is_a_line_over_its_capacity() -> None:
    chart = draw_tiers(TIERS)
    _, devices, own, pool = chart.figure.axes[0].lines

    assert "could reuse 20.0 %" in chart.title.replace("\N{NO-BREAK SPACE}", " ")
    assert "up to 50.0 %" in chart.title.replace("\N{NO-BREAK SPACE}", " ")
    assert list(np.asarray(devices.get_xdata())) == [100.0, 100.0]
    assert list(np.asarray(own.get_xdata())) == [100.0, 200.0]
    assert list(np.asarray(pool.get_ydata())) == [0.4, 0.5]


def test_every_simulation_is_a_point_of_its_family() -> None:
    told = outcome()
    chart = draw_trials(told.tried, told.slo, told.plan)

    ours, theirs, best, limit = chart.figure.axes[0].lines
    assert {line.get_linestyle() for line in (ours, theirs)} == {"None"}, "points, joined by nothing"
    assert list(np.asarray(best.get_ydata())) == sorted(np.asarray(best.get_ydata()), reverse=True)
    assert list(np.asarray(ours.get_xdata())) == [7.5, 10.0, 10.0]
    assert list(np.asarray(theirs.get_ydata())) == [5.0]
    assert list(np.asarray(limit.get_ydata())) == [3.0, 3.0]
    assert (
        chart.title == "2 of 4 simulations hold the service level; the cheapest is expected_cost on 4 workers"
    )


def test_a_fleet_that_answered_nothing_has_no_point() -> None:
    told = outcome(found=False)
    silent = trial(1.0)
    silent = type(silent)(
        {**silent.figures, "ttft_p90_s": None, "completed_share": None}, (0.0, 0.0), (0.0,), (0.0,)
    )
    tried = [(candidate, cost, silent) for candidate, cost, _ in told.tried]

    chart = draw_trials(tried, told.slo, None)

    assert chart.title == "0 of 4 simulations hold the service level"
    assert all(len(np.asarray(line.get_xdata())) == 0 for line in chart.figure.axes[0].lines[:-1])
