"""The chart: small multiples, one panel for each workload, one bar for each router.

Bars begin at zero, so that their lengths compare. Every panel has a scale of its own, and all have the
same order of routers, so that the eye finds a router again. Whiskers reach from the least to the most
of the rounds. Colours are Okabe and Ito's, which people with any colour vision tell apart, and differ
in brightness as well.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtest.bench.peers.field import PEERS, WORKLOADS, Kind, Workload
from loadtest.bench.peers.report import number
from loadtest.bench.peers.results import Results

COLOURS = {
    Kind.OURS: "#D55E00",
    Kind.PLAIN: "#999999",
    Kind.CACHE_AWARE: "#0072B2",
    Kind.ROUND_ROBIN: "#8CC8EC",
}
INK, FAINT = "#24292f", "#8c959f"
COLUMNS = 2
# GitHub shows an image up to about 900 pixels wide; twice that for dense screens.
WIDTH_IN, PANEL_IN, DPI = 10.0, 2.45, 180


def draw(results: Results, path: Path) -> None:
    """Draw all workloads that were measured.

    Args:
        results: What was measured.
        path: A PNG file, written anew.

    Raises:
        OSError: It cannot be written.
    """
    shown = [workload for workload in WORKLOADS if results.measured(workload.key)]
    rows = max(1, -(-len(shown) // COLUMNS))
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.09)
        canvas = Canvas(figsize=(WIDTH_IN, PANEL_IN * rows + 1.0), dpi=DPI, layout=layout)
        axes = canvas.subplots(rows, COLUMNS, sharey=True, squeeze=False)
        for workload, panel in zip(shown, axes.flat, strict=False):
            _panel(panel, results, workload)
        for panel in axes.flat[len(shown) :]:
            panel.set_axis_off()
        canvas.suptitle("What a router costs: shorter is better", fontsize=13, fontweight="bold")
        canvas.legend(
            handles=[Patch(color=COLOURS[kind], label=kind.value) for kind in Kind],
            loc="outside lower center",
            ncols=len(Kind),
            title="Bars reach to the median of the rounds, whiskers from the least to the most.",
            frameon=False,
        )
        canvas.savefig(path, metadata={"Software": None})


def _panel(panel: Axes, results: Results, workload: Workload) -> None:
    most = 0.0
    for row, peer in enumerate(PEERS):
        figure = results.figure(peer.key, workload)
        if figure is None:
            panel.text(0, row, " not measured", va="center", color=FAINT, style="italic")
            continue
        most = max(most, figure.most)
        panel.barh(row, figure.median, height=0.72, color=COLOURS[peer.kind])
        whisker = [[figure.median - figure.least], [figure.most - figure.median]]
        panel.errorbar(
            figure.median, row, xerr=whisker, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2.2, alpha=0.75
        )
        panel.annotate(
            number(figure.median),
            (figure.most, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if peer.kind is Kind.OURS else "normal",
        )
    panel.set_title(f"{workload.key}  ", loc="left", fontweight="bold", fontsize=10)
    panel.set_title(f"{workload.title}\n{workload.figure.value}", loc="right", fontsize=8.5, color=INK)
    # Room for the numbers behind the longest bar.
    panel.set_xlim(0, most * 1.16 or 1.0)
    panel.set_yticks(range(len(PEERS)), [peer.name for peer in PEERS])
    panel.set_ylim(len(PEERS) - 0.5, -0.5)
    panel.tick_params(length=0, labelcolor=INK)
    panel.tick_params(axis="x", labelcolor=FAINT, labelsize=8)
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    panel.spines["left"].set_color(FAINT)
