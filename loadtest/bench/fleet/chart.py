"""Charts of the fleet bench: one bar for each router, with 95 % intervals.

`draw` shows mean and P90 TTFT in every cell, `draw_front` the picture of the README: TTFT and hit rate with
one and with four replicas. Colours are Okabe and Ito's, for any colour vision; hatches tell bars apart in
grey print.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from loadtest.bench.fleet.aims import CellRuns, Figure, hit_ratio, mean_s, p90_s
from loadtest.bench.fleet.cells import CELLS, Router
from loadtest.bench.fleet.interval import Interval
from loadtest.bench.fleet.results import Outcome

COLOURS = {
    Router.CACHEWAY: "#D55E00",
    Router.NO_QUEUE: "#E69F00",
    Router.SMG: "#0072B2",
    Router.SGLANG: "#8CC8EC",
}
HATCHES = {Router.CACHEWAY: "", Router.NO_QUEUE: "..", Router.SMG: "//", Router.SGLANG: "\\\\"}
WIDTH_IN, ROW_IN, DPI = 10.0, 0.62, 150
BAR = 0.2

FRONT = {"1 replica": "agents-48-600k-1r", "4 replicas": "agents-48-600k-4r"}
"""The cells of the README's picture: caches that do not quite hold the working set of the agents."""


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw all cells that were measured; `OSError` if the file cannot be written."""
    cells = {runs.cell.key: runs for cell in CELLS if (runs := CellRuns(cell, outcomes)).all}
    canvas = Canvas(figsize=(WIDTH_IN, ROW_IN * len(cells) + 1.8), dpi=DPI, layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    for panel, title, figure in zip(panels, ("Mean TTFT, s", "P90 TTFT, s"), (mean_s, p90_s), strict=True):
        _panel(panel, cells, title, figure, tuple(Router))
    _finish(canvas, tuple(Router), "Time to first token: shorter is better", path)


def draw_front(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the README's picture, if its cells were measured; `OSError` if the file cannot be written."""
    routers = (Router.CACHEWAY, Router.SMG, Router.SGLANG)
    cells = {
        label: CellRuns(cell, outcomes) for label, key in FRONT.items() for cell in CELLS if cell.key == key
    }
    if not all(runs.of(router) for runs in cells.values() for router in routers):
        return
    canvas = Canvas(figsize=(WIDTH_IN, 3.4), dpi=DPI, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    _panel(left, cells, "Mean time to first token, s (shorter is better)", mean_s, routers)
    _panel(right, cells, "Prompt tokens from a cache, %", lambda outcome: 100 * hit_ratio(outcome), routers)
    right.set_xlim(right=100.0)
    ours, *theirs = (_mean(cells["4 replicas"], router, mean_s) for router in routers)
    _finish(
        canvas,
        routers,
        f"48 coding agents, 8 workers, 4 gateway replicas: first token after {ours:.1f} s,"
        f" not {min(theirs):.0f} s",
        path,
    )


def _mean(runs: CellRuns, router: Router, figure: Figure) -> float:
    return Interval.of([figure(outcome) for outcome in runs.of(router)]).mean


def _finish(canvas: Canvas, routers: Sequence[Router], title: str, path: Path) -> None:
    handles = [
        Patch(facecolor=COLOURS[router], hatch=HATCHES[router], edgecolor="white", label=str(router))
        for router in routers
    ]
    canvas.suptitle(title, fontsize=13, fontweight="bold")
    canvas.legend(handles=handles, loc="outside lower center", ncols=len(routers), frameon=False)
    canvas.savefig(path, metadata={"Software": None})


def _panel(
    panel: Axes, cells: Mapping[str, CellRuns], title: str, figure: Figure, routers: Sequence[Router]
) -> None:
    for number, router in enumerate(routers):
        rows, means, whiskers = [], [], []
        for row, runs in enumerate(cells.values()):
            if valid := runs.of(router):
                seen = Interval.of([figure(outcome) for outcome in valid])
                rows.append(row + (number - (len(routers) - 1) / 2) * BAR)
                means.append(seen.mean)
                whiskers.append(seen.high - seen.mean if seen.count > 1 else 0.0)
        panel.barh(
            rows, means, BAR, xerr=whiskers, color=COLOURS[router], hatch=HATCHES[router], edgecolor="white",
            linewidth=0.0, error_kw={"elinewidth": 0.9, "capsize": 1.8, "alpha": 0.75},
        )  # fmt: skip
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_yticks(range(len(cells)), list(cells))
    panel.set_ylim(len(cells) - 0.4, -0.6)
    panel.set_xlim(left=0.0)
    panel.grid(axis="x", alpha=0.25, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(length=0)
