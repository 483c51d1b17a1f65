"""Axes of times have readable ticks, for long and short times."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from loadtest.simulator.axes import LEGEND_COLUMNS, legend_below, lines_height_in, time_axis


@pytest.mark.parametrize(("low", "high"), [(0.3, 7.0), (0.05, 900.0)])
def test_an_axis_has_between_three_and_nine_ticks(low: float, high: float) -> None:
    axes = Figure().subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale("log")
    time_axis(axes.yaxis)

    ticks = np.array(axes.yaxis.get_majorticklocs())
    bottom, top = axes.get_ylim()
    assert 3 <= ((ticks >= bottom) & (ticks <= top)).sum() <= 9


def test_a_legend_is_made_anew_and_not_twice() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="one")
    legend_below(axes)
    axes.plot([0, 1], [1, 0], label="two")
    legend_below(axes)

    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == ["one", "two"]


def test_more_entries_make_a_higher_chart() -> None:
    assert lines_height_in(LEGEND_COLUMNS) < lines_height_in(LEGEND_COLUMNS + 1)
