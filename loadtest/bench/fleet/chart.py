"""Chart of mean and P90 TTFT in every cell, one bar for each router, with 95 % intervals.

Colours are Okabe and Ito's, for any colour vision.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from loadtest.bench.fleet.aims import CellRuns, Figure, mean_s, p90_s
from loadtest.bench.fleet.cells import CELLS, Router
from loadtest.bench.fleet.interval import Interval
from loadtest.bench.fleet.results import Outcome

COLOURS = {
    Router.CACHEWAY: "#D55E00",
    Router.NO_QUEUE: "#E69F00",
    Router.SMG: "#0072B2",
    Router.SGLANG: "#8CC8EC",
}
WIDTH_IN, ROW_IN, DPI = 10.0, 0.62, 150
BAR = 0.2


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw all cells that were measured; `OSError` if the file cannot be written."""
    cells = [runs for cell in CELLS if (runs := CellRuns(cell, outcomes)).all]
    canvas = Canvas(figsize=(WIDTH_IN, ROW_IN * len(cells) + 1.8), dpi=DPI, layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    for panel, title, figure in zip(panels, ("Mean TTFT, s", "P90 TTFT, s"), (mean_s, p90_s), strict=True):
        _panel(panel, cells, title, figure)
    handles = [Patch(color=colour, label=str(router)) for router, colour in COLOURS.items()]
    canvas.suptitle("Time to first token: shorter is better", fontsize=13, fontweight="bold")
    canvas.legend(handles=handles, loc="outside lower center", ncols=len(Router), frameon=False)
    canvas.savefig(path, metadata={"Software": None})


def _panel(panel: Axes, cells: Sequence[CellRuns], title: str, figure: Figure) -> None:
    for number, router in enumerate(Router):
        rows, means, whiskers = [], [], []
        for row, runs in enumerate(cells):
            if valid := runs.of(router):
                seen = Interval.of([figure(outcome) for outcome in valid])
                rows.append(row + (number - 1.5) * BAR)
                means.append(seen.mean)
                whiskers.append(seen.high - seen.mean if seen.count > 1 else 0.0)
        style = {"elinewidth": 0.9, "capsize": 1.8, "alpha": 0.75}
        panel.barh(rows, means, BAR, xerr=whiskers, color=COLOURS[router], error_kw=style)
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_yticks(range(len(cells)), [runs.cell.key for runs in cells])
    panel.set_ylim(len(cells) - 0.4, -0.6)
    panel.set_xlim(left=0.0)
    panel.grid(axis="x", alpha=0.25, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(length=0)
