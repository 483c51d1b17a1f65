"""Colours and style of all charts, for light and for dark pages.

A chart is drawn once, in the light colours, which in a page become CSS variables (`INK` becomes
``var(--ink)``); so no colour may stand for two things. Series have one of six colours for any colour vision
(after Okabe and Ito, darkened or lightened for contrast), and beyond six a dash pattern, too.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, FAINT, GRID, PAPER = "#24292f", "#656d76", "#d0d7de", "#ffffff"

SERIES = ("#c2500a", "#0a6bb5", "#0a8a63", "#b5569b", "#b98300", "#5b5fc7")
DASHES = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))

TIER_COLOURS = ("#0b4f8a", "#4a97d6", "#a9d3f2")
CAUSE_COLOURS = ("#c2510b", "#b5579c", "#0a8b64", "#9aa3ad")
END_COLOURS = ("#0a8c65", "#ba8401", "#cf222e", "#7a5cc4")
PART_COLOURS = ("#9aa4ae", "#d9a521", "#27637a")

DARK = {
    PAPER: "#0d1117",
    INK: "#e6edf3",
    FAINT: "#9aa5b1",
    GRID: "#30363d",
    **dict(zip(SERIES, ("#ff9351", "#58aef5", "#35c79a", "#e58fcd", "#e8b634", "#a5a8ff"), strict=True)),
    **dict(zip(TIER_COLOURS, ("#2a7fd0", "#7dbbee", "#cfe6fa"), strict=True)),
    **dict(zip(CAUSE_COLOURS, ("#ff9452", "#e590ce", "#35c89b", "#7d8590"), strict=True)),
    **dict(zip(END_COLOURS, ("#36c89b", "#e9b735", "#ff6b64", "#a98ff0"), strict=True)),
    **dict(zip(PART_COLOURS, ("#7d8691", "#ecc35a", "#56b3cf"), strict=True)),
}
"""Each colour on a dark page."""

VARIABLES = {colour: f"--chart-{number}" for number, colour in enumerate(DARK)}
"""The CSS variable of each colour."""

WIDTH_IN = 4.9
"""Narrow enough to be read on a phone, where a chart is as wide as the screen."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing without its title, which is a sentence, and a caption on how to read it.

    ``key`` is unique.
    """

    key: str
    title: str
    caption: str
    figure: Figure


def canvas(height_in: float, rows: int = 1, *, share_x: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of the width of all charts, with its axes from top to bottom."""
    figure = Figure(
        figsize=(WIDTH_IN, height_in), layout=ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.04, hspace=0.02)
    )
    return figure, list(figure.subplots(rows, 1, squeeze=False, sharex=share_x)[:, 0])


def plain(axes: Axes, grid: Literal["x", "y", "both"] = "y") -> None:
    """Remove the parts that are not needed to read the values."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2.5, color=FAINT, labelcolor=INK)
    if grid == "x":
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    axes.grid(axis=grid, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def series(number: int) -> dict[str, Any]:
    """Colour and dash of a line by its number in the report."""
    turn, colour = divmod(number, len(SERIES))
    return {"color": SERIES[colour], "linestyle": DASHES[turn % len(DASHES)]}


def style() -> AbstractContextManager[None]:
    """The context in which charts are made and saved."""
    return mpl.rc_context(STYLE)
