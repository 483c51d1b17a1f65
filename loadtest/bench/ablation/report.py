"""Tables: one for each kind of model, a row for each arm, means over the rounds.

`fill` replaces the text between ``<!-- ablation: KIND -->`` and ``<!-- end -->`` in a document.
"""

import re
from collections.abc import Callable, Sequence
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.bench.ablation.arms import ARMS
from loadtest.bench.ablation.results import Run
from loadtest.study.tables import table

_PART = re.compile(r"(<!-- ablation: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

COLUMNS: tuple[tuple[str, Callable[[Run], float], str], ...] = (
    ("reused", lambda run: 100 * run.hit_ratio, "{:.1f} %"),
    ("engines' count", lambda run: 100 * run.engine_hit_tokens / run.prompt_tokens, "{:.1f} %"),
    ("TTFT mean", lambda run: 1e3 * run.ttft_mean_s, "{:,.0f} ms"),
    ("P50", lambda run: 1e3 * run.ttft_p50_s, "{:,.0f} ms"),
    ("P90", lambda run: 1e3 * run.ttft_p90_s, "{:,.0f} ms"),
    ("error, tokens", lambda run: run.error_tokens, "{:,.0f}"),
    ("over-promised", lambda run: 100 * run.promised_ratio, "{:.1f} %"),
    ("gateway CPU", lambda run: run.gateway_cpu_ms, "{:.2f} ms"),
)
"""Title, figure of a run, and how it is written."""


def line(run: Run) -> str:
    """Figures of one run, in words."""
    return (
        f"{run.requests} requests in {run.duration_s:.0f} s, reused {100 * run.hit_ratio:.1f} % (ideal "
        f"{100 * run.ideal_ratio:.1f} %), TTFT mean {1e3 * run.ttft_mean_s:,.0f} ms, P90 "
        f"{1e3 * run.ttft_p90_s:,.0f} ms, prediction off by {run.error_tokens:,.0f} tokens, gateway "
        f"{run.gateway_cpu_ms:.2f} ms a request"
    )


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """The cells of the table of one kind of model: a row for each arm that ran, and what was possible."""
    cells = [
        [arm.title, *(text.format(fmean(map(of, own))) for _, of, text in COLUMNS)]
        for arm in ARMS
        if (own := [run for run in runs if run.arm == arm.key])
    ]
    if cells:
        ideal = f"{100 * fmean(run.ideal_ratio for run in runs):.1f} %"
        cells.append(["one infinite cache", ideal, *[""] * (len(COLUMNS) - 1)])
    return cells


def shown(kind: str, runs: Sequence[Run]) -> Table:
    """The table of one kind of model for a terminal."""
    shown_table = Table(
        "arm", *(title for title, _, _ in COLUMNS), box=SIMPLE_HEAD, title=kind, title_justify="left"
    )
    for column in shown_table.columns[1:]:
        column.justify = "right"
    for row in rows([run for run in runs if run.model == kind]):
        shown_table.add_row(*row)
    return shown_table


def markdown(kind: str, runs: Sequence[Run]) -> str:
    """The table of one kind of model for a document, with what it was made of."""
    own = [run for run in runs if run.model == kind]
    if not own:
        return "Not measured.\n"
    rounds = len({run.round_number for run in own})
    requests = round(fmean(run.requests for run in own))
    lines = [
        f"{requests} requests a run on average; rounds: {rounds}.",
        "",
        table(("arm", *(title for title, _, _ in COLUMNS)), rows(own)),
    ]
    return "\n".join(lines)


def fill(document: str, runs: Sequence[Run]) -> str:
    """Replace the tables in a document."""
    return _PART.sub(lambda match: f"{match[1]}\n{markdown(match[2], runs)}\n{match[3]}", document)
