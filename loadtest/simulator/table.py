"""The comparison on a terminal: one row per policy, 80 columns."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from loadtest.simulator.figures import FIGURES, best_of, shown
from loadtest.simulator.runs import Run

COLUMNS = {
    "hit_ratio": "hit\nrate",
    "share_of_pooled": "of one\ncache",
    "ttft_mean_s": "TTFT\nmean",
    "ttft_p50_s": "TTFT\nP50",
    "ttft_p90_s": "TTFT\nP90",
    "ttft_p99_s": "TTFT\nP99",
    "utilisation_max": "busiest\nworker",
    "completed_share": "com-\npleted",
}


def comparison_table(runs: Sequence[Run], *, title: str, caption: str) -> Table:
    """Lay the runs out; the best value of a column stands out."""
    figures = {figure.key: figure for figure in FIGURES}
    table = Table(
        "policy",
        *COLUMNS.values(),
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )
    for column in table.columns[1:]:
        column.no_wrap = True
        column.justify = "right"
    best = {key: best_of(figures[key], runs) for key in COLUMNS}
    for run in runs:
        cells = [
            Text(shown(figures[key], run), style="bold" if run.label in best[key] else "") for key in COLUMNS
        ]
        table.add_row(run.label, *cells)
    return table
