"""Common axes of several charts."""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from loadtest.simulator.words import tick

LINES_IN = 3.0
LEGEND_ROW_IN = 0.2
LEGEND_COLUMNS = 3
FEW_DECADES = 10**2.5


def legend_below(axes: Axes, columns: int = LEGEND_COLUMNS) -> None:
    """Write the legend of the axes below them; a second call replaces it."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    for legend in list(figure.legends):
        legend.remove()
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=max(1, min(len(names), columns)))


def lines_height_in(entries: int, columns: int = LEGEND_COLUMNS) -> float:
    """The height of a chart of lines with ``entries`` in its legend."""
    return LINES_IN + LEGEND_ROW_IN * -(-entries // columns)


def time_axis(axis: Axis) -> None:
    """Seconds in familiar units, at decades or, where there are few, between them."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < FEW_DECADES * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
