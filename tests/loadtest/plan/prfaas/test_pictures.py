"""The charts of a study that was not simulated."""

from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.pictures import draw_study, rates_chart, storm_chart
from loadtest.plan.prfaas.study import QUICK, Study
from loadtest.plan.prfaas.sustained import Trial
from loadtest.plan.prfaas.trials import Figures
from loadtest.simulator.records import Floats, Outcome, Result
from loadtest.simulator.theme import Chart
from tests.fakes.prfaas_results import by_hand

RATES = {"homogeneous": 1.0, "naive": 2.0, "static": 2.5, "ours": 3.0}


def simulated(fleet: str = "ours") -> Result:
    """Three requests until 900 s, the second is answered 300 s later and the last one never; 10 Gbit/s."""
    return by_hand(
        fleet,
        arrival_s=[0.0, 100.0, 899.5],
        first_s=[2.0, 400.0, nan],
        finished_s=[3.0, 450.0, 899.9],
        outcome=[Outcome.COMPLETED, Outcome.COMPLETED, Outcome.REJECTED],
        egress=(np.array([0.0, 900.0]), np.array([0.0, 900.0 * 10e9 / 8])),
    )


def study() -> Study:
    good = Figures.of(by_hand(arrival_s=[0.0, 2.0], first_s=[5.0, 7.0]))
    slow = replace(good, ttft_p90_s=40.0)
    trials = [
        Trial(name, rate * factor, seed, figures)
        for name, rate in RATES.items()
        for seed in (1, 2)
        for factor, figures in ((1.2, slow), (1.0, good))
    ]
    storm = {name: simulated(name) for name in ("naive", "static", "ours")}
    return Study(QUICK, [1, 2], trials={"Poisson": trials}, storm=storm)


def line(axes: Axes, label: str) -> Floats:
    (found,) = (one for one in axes.lines if one.get_label() == label)
    return np.asarray(found.get_xydata(), dtype=np.float64)


def axes_of(chart: Chart) -> list[Axes]:
    return chart.figure.axes


def test_all_charts_are_drawn_and_the_same_study_draws_the_same(tmp_path: Path) -> None:
    drawn = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        drawn.append([path.read_bytes() for path in draw_study(study(), tmp_path / name)])
    assert {path.name for path in (tmp_path / "first").iterdir()} == {"rates.png", "egress.png"}
    assert all(picture.startswith(b"\x89PNG") for picture in drawn[0])
    assert drawn[0] == drawn[1]


def test_a_study_of_agents_alone_has_no_chart(tmp_path: Path) -> None:
    assert draw_study(Study(QUICK, [1], agents={("ours", 2): simulated()}), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_chart_of_rates_says_what_ours_gains() -> None:
    chart = rates_chart(study())
    assert "sustains 3.00 requests/s" in chart.title
    assert "1.50 times the naive fleet's rate" in chart.title
    assert "3.00 times the homogeneous one's" in chart.title


def test_the_chart_of_rates_has_the_first_seed_of_each_fleet_in_order() -> None:
    (axes,) = axes_of(rates_chart(study()))
    for name, rate in RATES.items():
        assert line(axes, name) == pytest.approx(np.array([[rate, 5.0], [1.2 * rate, 40.0]]))


def test_the_chart_of_egress_says_the_busiest_second_and_who_was_not_answered() -> None:
    chart = storm_chart({"naive": simulated("naive"), "ours": by_hand(arrival_s=[0.0, 900.0])})
    naive, ours = axes_of(chart)
    assert naive.get_title("left") == "naive"
    assert naive.get_title("right") == "busiest second 10.0 Gbit/s"
    assert ours.get_title("right") == "busiest second 0.0 Gbit/s"
    assert chart.title.endswith("naive 1 stayed unanswered")


def test_the_chart_of_egress_has_the_capacity_that_is_there() -> None:
    (axes,) = axes_of(storm_chart({"ours": simulated()}))
    capacity = np.asarray(axes.lines[0].get_xydata())
    assert [tuple(point) for point in capacity[:-1]] == [
        (0.0, 100.0),
        (300.0, pytest.approx(10.0)),
        (360.0, 100.0),
        (600.0, 0.0),
        (610.0, 100.0),
        (780.0, pytest.approx(70.0)),
        (840.0, 100.0),
    ]


def test_fleets_have_colours_of_their_own() -> None:
    (axes,) = axes_of(rates_chart(study()))
    colours = {one.get_label(): one.get_color() for one in axes.lines}
    assert len({colours[name] for name in CONTENDERS}) == len(CONTENDERS)
