"""Tables and a chart of the study of the queue.

A row of a table is one order of the queue at one load. The best is not marked: rejections may buy a lower
TTFT.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from loadtest.study.design import SEEDS
from loadtest.study.report import fill
from loadtest.study.shipped import K
from loadtest.study.tables import percent, seconds, table
from loadtest.study.verdict import interval_of
from loadtest.unchanged.revision import Revision


@dataclass(frozen=True, slots=True)
class QueueCell:
    """One simulation.

    Attributes:
        load: Share of the fleet's capacity.
        k: Factor of the order; None: no queue, every request goes to its worker at once.
        early: Requests that would miss the service level are rejected.
        replicas: Copies of the gateway, 5 ms apart.
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
    """Figures of one simulation; times to first token are P50, P90 and P99 of completed requests.

    Attributes:
        requests: Behind the warm-up.
        goodput_per_s: Requests within the service level, per second of arrivals.
        kept_share: Their share of all.
        wait_s_max: Longest wait in the gateway.
        overdue_share: Requests that waited longer than ``queue.timeout_s``, so would have expired by default.
        inversions: Requests that went before one with a better key.
        inversion_s_max: Largest difference of those keys.
        digest: Digest of all decisions.
    """

    requests: int
    completed_share: float
    goodput_per_s: float
    kept_share: float
    long_ttft_s: tuple[float, float, float]
    short_ttft_s: tuple[float, float, float]
    wait_s_max: float
    overdue_share: float
    hit_ratio: float
    inversions: int
    inversion_s_max: float
    digest: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A cell and its figures, with the revision of the code that made them."""

    code: Revision
    cell: QueueCell
    figures: Figures


INK = "#24292f"

_COLOURS = ("#8c959f", "#D55E00", "#E69F00", "#0072B2", "#000000", "#009E73")
_MARKERS = ("o", "D", "s", "^", "x", "v")
"""Markers of the orders as they come: first come, first served in grey (Okabe and Ito's colours)."""

_AIMS_HEAD = (
    "traffic, load",
    "P90 of long prompts",
    "P90 of the others",
    "worst wait, s",
    "would expire",
    "goodput, 1/s",
    "with early rejection",
    "of that at 100 %",
)

_PANELS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("TTFT P90 of long prompts, s", lambda figures: figures.long_ttft_s[1]),
    ("TTFT P90 of the others, s", lambda figures: figures.short_ttft_s[1]),
    ("goodput, requests/s", lambda figures: figures.goodput_per_s),
    ("answered, % of requests", lambda figures: 100 * figures.completed_share),
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
    "would expire",
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
                percent(row.figures.overdue_share),
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
        canvas.suptitle(_heading(shown), fontsize=13, fontweight="bold", color=INK)
        canvas.savefig(path)


def _heading(rows: Sequence[QueueRow]) -> str:
    """Title of the chart: P90 of long prompts at the highest load, of both orders, if both ran."""
    most = max(row.cell.load for row in rows)
    p90_s = {
        row.cell.k: row.figures.long_ttft_s[1]
        for row in rows
        if row.cell.load == most and not row.cell.early and row.cell.k is not None
    }
    if not {0.0, K} <= p90_s.keys():
        return "The queue around capacity"
    before_s, after_s = p90_s[0.0], p90_s[K]
    change = f"from {before_s:.0f} to {after_s:.0f} s (seed 1)"
    return f"At {100 * most:.0f} % load, k = {K:g} takes P90 of long prompts {change}"


def _draw_orders(rows: Sequence[QueueRow], panel: Axes, measured: Callable[[Figures], float]) -> None:
    loads = Counter(row.cell.order for row in rows)
    orders = [order for order, count in loads.items() if count > 1]  # one point is no line
    for order, colour, marker in zip(orders, _COLOURS, _MARKERS, strict=False):
        line = sorted((100 * row.cell.load, measured(row.figures)) for row in rows if row.cell.order == order)
        panel.plot(*zip(*line, strict=True), marker + "-", color=colour, label=order, markersize=4)
    panel.grid(visible=True, color="#d0d7de", linewidth=0.6)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def aims(rows: Sequence[QueueRow]) -> str:
    """Gain of the order over first come, first served, and of rejecting early, load by load.

    Figures are means of the seeds that ran both orders; changes are paired by seed, with their 95 % interval
    (`loadtest.study.verdict`). Early rejection is of the first seed.
    """
    at = {row.cell: row.figures for row in rows}
    lines = []
    for cell in at:
        if cell.k != K or cell.early or cell.replicas > 1 or cell.seed > 1:
            continue
        seeds = [replace(cell, seed=seed) for seed in SEEDS]
        pairs = [
            (at[replace(one, k=0.0)], at[one]) for one in seeds if one in at and replace(one, k=0.0) in at
        ]
        if not pairs:
            continue
        early, full = at.get(replace(cell, early=True)), at.get(replace(cell, early=True, load=1.0))
        lines.append(
            [
                f"{cell.traffic}, {100 * cell.load:.0f} %",
                _change(pairs, lambda figures: figures.long_ttft_s[1]),
                _change(pairs, lambda figures: figures.short_ttft_s[1]),
                _both(pairs, lambda figures: figures.wait_s_max, seconds),
                _both(pairs, lambda figures: figures.overdue_share, percent),
                _both(pairs, lambda figures: figures.goodput_per_s, "{:.2f}".format),
                f"{early.goodput_per_s:.2f}" if early else "-",
                f"{100 * early.goodput_per_s / full.goodput_per_s:.0f} %" if early and full else "-",
            ]
        )
    return table(_AIMS_HEAD, lines)


_Pairs = Sequence[tuple[Figures, Figures]]


def _both(pairs: _Pairs, measured: Callable[[Figures], float], form: Callable[[float], str]) -> str:
    return ", ".join(form(mean(map(measured, side))) for side in zip(*pairs, strict=True))


def _change(pairs: _Pairs, measured: Callable[[Figures], float]) -> str:
    found = [(measured(before), measured(after)) for before, after in pairs]
    if min(min(pair) for pair in found) <= 0.0:
        return "-"
    ratio = interval_of([after / before for before, after in found])
    before_s, after_s = (mean(side) for side in zip(*found, strict=True))
    text = f"{seconds(before_s)} to {seconds(after_s)} s, {100 * (ratio.middle - 1):+.0f} %"
    if len(found) > 1:
        text += f" ({100 * (ratio.low - 1):+.0f} to {100 * (ratio.high - 1):+.0f} %)"
    return text


def write(folder: Path, rows: Sequence[QueueRow]) -> None:
    """Fill in ``queue.md`` in a folder (`loadtest.study.report.fill`) and draw the chart.

    Raises:
        OSError: Something cannot be read or written.
        KeyError: The page names a part that is not made here.
    """
    page = folder / "queue.md"
    page.write_text(fill(page.read_text(), {"aims": aims(rows), "tables": tables(rows)}))
    if rows:
        draw(rows, folder / "queue.png")
