"""Chart of reuse and time to first token, for each kind of model.

Bars are means over the rounds, whiskers reach from the least to the most, the line is the reuse of one
infinite cache. Colours are the study's: grey looks at nothing, orange is the default.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from loadtest.bench.ablation.arms import ARMS, Arm
from loadtest.bench.ablation.results import Run
from loadtest.bench.bars import INK, rows, whiskered

COLOURS = {
    "round-robin": "#8c959f",
    "history": "#D55E00",
    "history-exact": "#56B4E9",
    "events": "#009E73",
}
WIDTH_IN, PANEL_IN, DPI = 10.0, 2.3, 160

FIGURES: tuple[tuple[str, str, Callable[[Run], float]], ...] = (
    ("prompt tokens reused, %", "{:.1f}", lambda run: 100 * run.hit_ratio),
    ("mean time to first token, ms", "{:,.0f}", lambda run: 1e3 * run.ttft_mean_s),
    ("prediction off by, tokens a request", "{:,.0f}", lambda run: run.error_tokens),
)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw all results, at least one; `OSError` if the file cannot be written."""
    kinds = list(dict.fromkeys(run.model for run in runs))
    arms = [arm for arm in ARMS if any(run.arm == arm.key for run in runs)]
    with mpl.rc_context({"font.size": 9, "text.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        canvas = Figure(figsize=(WIDTH_IN, 0.9 + PANEL_IN * len(kinds)), dpi=DPI, layout=layout)
        panels = canvas.subplots(len(kinds), len(FIGURES), squeeze=False, sharey=True)
        for kind, row in zip(kinds, panels, strict=True):
            own = [run for run in runs if run.model == kind]
            for (title, text, figure), panel in zip(FIGURES, row, strict=True):
                _bars(panel, arms, own, figure, text)
                panel.set_xlabel(title)
            row[0].axvline(100 * fmean(run.ideal_ratio for run in own), color=INK, linewidth=1)
            row[0].set_title(f"{kind}: line: one infinite cache", fontsize=10, loc="left")
        canvas.suptitle(
            "What knowing more is worth, on real engines", fontsize=13, fontweight="bold", color=INK
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, metadata={"Software": None})


def _bars(
    panel: Axes, arms: Sequence[Arm], runs: Sequence[Run], figure: Callable[[Run], float], text: str
) -> None:
    for row, arm in enumerate(arms):
        values = [figure(run) for run in runs if run.arm == arm.key]
        if not values:
            continue
        mean = fmean(values)
        whiskered(
            panel, row, mean, (min(values), max(values)), text.format(mean), COLOURS[arm.key], fontsize="8"
        )
    rows(panel, [arm.title for arm in arms])
    panel.margins(x=0.18)
