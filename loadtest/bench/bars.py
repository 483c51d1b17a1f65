"""Bars with whiskers, as the charts of the benchmarks have them."""

from collections.abc import Sequence

from matplotlib.axes import Axes

INK, FAINT = "#24292f", "#d0d7de"


def whiskered(
    panel: Axes, row: int, value: float, ends: tuple[float, float], text: str, colour: str, **style: str
) -> None:
    """Draw one bar from zero to a value, a whisker from end to end, and a text behind it."""
    least, most = ends
    panel.barh(row, value, height=0.72, color=colour)
    whisker = [[value - least], [most - value]]
    panel.errorbar(value, row, xerr=whisker, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2.2)
    panel.annotate(text, (most, row), (4, 0), textcoords="offset points", va="center", **style)  # type: ignore[arg-type]


def rows(panel: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, the first on top, and leave of its frame the left side."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.grid(visible=True, axis="x", color=FAINT, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    panel.tick_params(length=0)
