"""Small multiples, one panel for each workload, one bar for each router.

Bars begin at zero, every panel has its own scale, all have the same order of routers. Whiskers reach from the
least to the most of the rounds. Colours are Okabe and Ito's, for any colour vision and in greys.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtest.bench.bars import INK, rows, whiskered
from loadtest.bench.peers.field import PEERS, WORKLOADS, Kind, Workload
from loadtest.bench.peers.report import number
from loadtest.bench.peers.results import Results

COLOURS = {
    Kind.OURS: "#D55E00",
    Kind.PLAIN: "#999999",
    Kind.CACHE_AWARE: "#0072B2",
    Kind.ROUND_ROBIN: "#8CC8EC",
}
FAINT = "#8c959f"
COLUMNS = 2
# GitHub shows an image up to about 900 pixels wide; twice that for dense screens.
WIDTH_IN, PANEL_IN, DPI = 10.0, 2.45, 180


def draw(results: Results, path: Path) -> None:
    """Draw all measured workloads into a PNG file; `OSError` if it cannot be written."""
    shown = [workload for workload in WORKLOADS if results.measured(workload.key)]
    lines = max(1, -(-len(shown) // COLUMNS))
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.09)
        canvas = Canvas(figsize=(WIDTH_IN, PANEL_IN * lines + 1.0), dpi=DPI, layout=layout)
        axes = canvas.subplots(lines, COLUMNS, sharey=True, squeeze=False)
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
        weight = "bold" if peer.kind is Kind.OURS else "normal"
        ends = figure.least, figure.most
        whiskered(
            panel, row, figure.median, ends, number(figure.median), COLOURS[peer.kind], fontweight=weight
        )
    panel.set_title(f"{workload.key}  ", loc="left", fontweight="bold", fontsize=10)
    panel.set_title(f"{workload.title}\n{workload.figure.value}", loc="right", fontsize=8.5, color=INK)
    # Room for the numbers behind the longest bar.
    panel.set_xlim(0, most * 1.16 or 1.0)
    rows(panel, [peer.name for peer in PEERS])
    panel.tick_params(axis="x", labelcolor=FAINT, labelsize=8)
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
