"""Charts show the findings of the runs, for any findings."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.simulated import runs, simulated
from matplotlib.axes import Axes

from loadtest.simulator.charts import CURVE_POINTS, STRIP_COLUMNS, draw_all
from loadtest.simulator.records import Timeline
from loadtest.simulator.runs import Run
from loadtest.simulator.theme import Chart
from policies import POLICIES


def charts(*compared: Run) -> dict[str, Chart]:
    return {chart.key: chart for chart in draw_all(compared)}


def bar_ends(axes: Axes) -> list[float]:
    """End of the bar of each run."""
    ends: dict[float, float] = {}
    for patch in axes.patches:
        row = patch.get_y()  # type: ignore[attr-defined]
        ends[row] = max(ends.get(row, 0.0), patch.get_x() + patch.get_width())  # type: ignore[attr-defined]
    return [ends[row] for row in sorted(ends)]


def test_titles_say_who_is_best_and_who_is_worst() -> None:
    drawn = charts(*runs(["good", "middling", "bad"]))

    for key in ("ttft", "length", "lost", "load"):
        assert "good" in drawn[key].title
        assert "bad" in drawn[key].title
        assert "middling" not in drawn[key].title
    assert drawn["hits"].title.startswith("good reuses")


def test_a_run_alone_is_compared_with_nobody() -> None:
    for chart in charts(Run.of("alone", simulated())).values():
        assert chart.title.count("alone") <= 1


def test_all_policies_of_the_registry_fit_into_every_chart() -> None:
    names = list(POLICIES)
    drawn = charts(*runs(names))

    curve = drawn["ttft"].figure.axes[0]
    assert [line.get_label() for line in curve.lines] == [*names, "floor"]
    assert [text.get_text() for text in drawn["hits"].figure.axes[0].get_yticklabels()] == names
    strips = [axes for axes in drawn["load"].figure.axes if axes.images]
    assert [axes.get_title("left") for axes in strips] == names


def test_a_curve_ends_at_the_share_of_requests_that_got_a_first_token() -> None:
    drawn = charts(Run.of("p", simulated(requests=1_000, failed=250)))

    curve, _ = drawn["ttft"].figure.axes[0].lines
    assert np.asarray(curve.get_ydata())[-1] == pytest.approx(0.75, abs=1.0 / CURVE_POINTS)
    assert drawn["ends"].title == "p completes 75.0\N{NO-BREAK SPACE}% of the requests"


def test_bars_are_as_long_as_the_figures() -> None:
    compared = runs()
    drawn = charts(*compared)

    hits, lost = (bar_ends(drawn[key].figure.axes[0]) for key in ("hits", "lost"))
    for run, hit, loss in zip(compared, hits, lost, strict=True):
        assert hit == pytest.approx(run.figure("hit_ratio"))
        assert loss == pytest.approx(sum(run.lost_s().values()))


def test_more_requests_do_not_make_a_larger_drawing() -> None:
    drawn = charts(Run.of("p", simulated(requests=20_000)))

    assert all(
        len(np.asarray(line.get_xdata())) <= CURVE_POINTS for line in drawn["ttft"].figure.axes[0].lines
    )
    image = drawn["load"].figure.axes[0].images[0].get_array()
    assert image is not None
    assert image.shape == (8, 75)
    assert STRIP_COLUMNS >= 75


def test_a_fleet_of_one_worker_that_was_hardly_looked_at_is_drawn() -> None:
    result = simulated(requests=3, workers=1)
    timeline = Timeline(*(column[:1] for column in vars(result.timeline).values()))

    assert len(charts(Run.of("p", replace(result, timeline=timeline)))) == 7


def test_a_bound_that_is_not_known_is_not_compared_with() -> None:
    result = simulated()
    bounds = replace(result.bounds, pooled_lru_hit_ratio=0.0)

    assert ":" not in charts(Run.of("p", replace(result, bounds=bounds)))["hits"].title


def test_one_policy_that_collapses_does_not_hide_the_others() -> None:
    """A bar of a hundred times the others' length is cut, and the caption says so."""
    fine, slow = runs(["a", "b", "c", "d"]), simulated("slow", skill=0.5)
    slow.records.started_s[:] += 100.0
    slow.records.first_s[:] += 100.0

    drawn = charts(*fine, Run.of("slow", slow))["parts"]

    assert drawn.figure.axes[0].get_xlim()[1] < 30.0
    assert "are cut" in drawn.caption
    assert "are cut" not in charts(*fine)["parts"].caption
