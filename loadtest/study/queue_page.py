"""What the study of the queue shows: tables and a chart, from the results as they are.

A row of a table is one order of the queue at one load. What is best is not marked: a lower TTFT
may be bought with requests that were rejected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from loadtest.study.tables import percent, seconds, table


@dataclass(frozen=True, slots=True)
class QueueCell:
    """One simulation.

    Attributes:
        traffic: What comes.
        load: Share of what the fleet can do.
        k: Of the order; None: no queue, everything goes to its worker at once.
        early: Whether requests that would miss the service level are rejected.
        replicas: Copies of the gateway, 5 ms apart.
        seed: Of everything that is drawn.
    """

    traffic: str
    load: float
    k: float | None
    early: bool = False
    replicas: int = 1
    seed: int = 1

    @property
    def order(self) -> str:
        """Its order, as tables call it."""
        if self.k is None:
            return "no queue"
        name = "first come, first served" if self.k == 0 else f"k = {self.k:g}"
        if self.early:
            name += ", early rejection"
        if self.replicas > 1:
            name += f", {self.replicas} replicas"
        return name if self.seed == 1 else f"{name}, seed {self.seed}"

    @property
    def title(self) -> str:
        """All of it in a few words."""
        return f"{self.traffic} at {100 * self.load:.0f} %, {self.order}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one simulation gave; times to first token are P50, P90 and P99 of what was completed.

    Attributes:
        requests: Behind the warm-up.
        completed_share: Of them, what was answered.
        goodput_per_s: Requests within the service level, per second of arrivals.
        kept_share: Their share of all.
        long_ttft_s: Of long prompts.
        short_ttft_s: Of the others.
        wait_s_max: Longest wait in the gateway.
        hit_ratio: Reused share of prompt tokens.
        inversions: Requests that went before one with a better key.
        inversion_s_max: By how much, at most.
        digest: Of all decisions.
    """

    requests: int
    completed_share: float
    goodput_per_s: float
    kept_share: float
    long_ttft_s: tuple[float, float, float]
    short_ttft_s: tuple[float, float, float]
    wait_s_max: float
    hit_ratio: float
    inversions: int
    inversion_s_max: float
    digest: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A cell and its figures, with the digest of the code that made them (`loadtest.study.results`)."""

    code: str
    cell: QueueCell
    figures: Figures


INK = "#24292f"

_COLOURS = ("#8c959f", "#D55E00", "#E69F00", "#0072B2", "#000000", "#009E73")
_MARKERS = ("o", "D", "s", "^", "x", "v")
"""Of the orders as they come: first come, first served in grey (Okabe and Ito's colours)."""

_PANELS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("TTFT P90 of long prompts, s", lambda figures: figures.long_ttft_s[1]),
    ("TTFT P90 of the others, s", lambda figures: figures.short_ttft_s[1]),
    ("goodput, requests/s", lambda figures: figures.goodput_per_s),
)

_HEAD = (
    "load",
    "order",
    "long: P50, s",
    "P90",
    "P99",
    "short: P50, s",
    "P90",
    "P99",
    "worst wait, s",
    "completed",
    "goodput, 1/s",
    "reused",
    "inversions",
    "by at most, s",
)


def tables(rows: Sequence[QueueRow]) -> str:
    """One table for each kind of traffic."""
    parts = []
    for traffic in dict.fromkeys(row.cell.traffic for row in rows):
        lines = [
            [
                f"{100 * row.cell.load:.0f} %",
                row.cell.order,
                *map(seconds, row.figures.long_ttft_s),
                *map(seconds, row.figures.short_ttft_s),
                seconds(row.figures.wait_s_max),
                percent(row.figures.completed_share),
                f"{row.figures.goodput_per_s:.2f}",
                percent(row.figures.hit_ratio),
                str(row.figures.inversions),
                seconds(row.figures.inversion_s_max),
            ]
            for row in sorted(rows, key=lambda row: (row.cell.seed, row.cell.load))
            if row.cell.traffic == traffic
        ]
        parts.append(f"### {traffic}\n\n{table(_HEAD, lines)}")
    return "\n".join(parts)


def draw(rows: Sequence[QueueRow], path: Path) -> None:
    """TTFT of long and short prompts and goodput against the load, one line for each order."""
    shown = [row for row in rows if row.cell.seed == row.cell.replicas == 1]
    traffic = list(dict.fromkeys(row.cell.traffic for row in shown))
    with mpl.rc_context({"font.size": 9, "text.color": INK}):
        canvas = Figure(
            figsize=(10.0, 0.9 + 2.6 * len(traffic)),
            dpi=160,
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08),
        )
        panels = canvas.subplots(len(traffic), len(_PANELS), squeeze=False)
        for name, line in zip(traffic, panels, strict=True):
            for (heading, measured), panel in zip(_PANELS, line, strict=True):
                _draw_orders([row for row in shown if row.cell.traffic == name], panel, measured)
                panel.set_title(f"{name}: {heading}", fontsize=9, color=INK)
                panel.set_ylim(bottom=0)
        for panel in panels[-1]:
            panel.set_xlabel("load, % of capacity")
        handles, labels = panels[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        canvas.suptitle("The queue around capacity", fontsize=13, fontweight="bold", color=INK)
        canvas.savefig(path)


def _draw_orders(rows: Sequence[QueueRow], panel: Axes, measured: Callable[[Figures], float]) -> None:
    orders = list(dict.fromkeys(row.cell.order for row in rows))
    for order, colour, marker in zip(orders, _COLOURS, _MARKERS, strict=False):
        line = sorted((100 * row.cell.load, measured(row.figures)) for row in rows if row.cell.order == order)
        panel.plot(*zip(*line, strict=True), marker + "-", color=colour, label=order, markersize=4)
    panel.grid(visible=True, color="#d0d7de", linewidth=0.6)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def write(folder: Path, rows: Sequence[QueueRow]) -> None:
    """Write the tables and the chart.

    Raises:
        OSError: They cannot be written.
    """
    (folder / "queue-tables.md").write_text(f"# The queue under pressure: tables\n\n{tables(rows)}")
    if rows:
        draw(rows, folder / "queue.png")
