"""The published tables are of the code that they stand beside.

A failure means that `policies` or `radix` changed since the study ran. Where no decision should have changed,
``python -m loadtest.unchanged confirm`` shows it and lists the new fingerprint; else ``make study`` renews
the figures. Both need the recorded traces; this test does not.
"""

from pathlib import Path

import msgspec
import pytest

from loadtest.study import queue_page, queueing, report
from loadtest.study.__main__ import DOCUMENT
from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.design import cells
from loadtest.study.queue_page import QueueRow
from loadtest.study.results import Row
from loadtest.unchanged.revision import confirmed, present, same_decisions

FOLDER = DOCUMENT.with_suffix("")
RENEW = "run `python -m loadtest.unchanged confirm` if no decision should have changed, else `make study`"


def kept(path: Path, kind: type[Row] | type[QueueRow]) -> list[Row] | list[QueueRow]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [("results.jsonl", Row, cells()), ("queue.jsonl", QueueRow, queueing.cells())],
    ids=["the policy study", "the queue"],
)
def test_published_figures_are_of_the_present_decision_code(
    name: str, kind: type[Row] | type[QueueRow], wanted: list[object]
) -> None:
    rows = kept(FOLDER / name, kind)
    code = present().decisions
    listed = {replicas: confirmed(replicas=replicas) for replicas in {row.cell.replicas for row in rows}}

    missing = set(wanted) - {row.cell for row in rows}
    stale = [
        row.cell for row in rows if not same_decisions(row.code.decisions, code, listed[row.cell.replicas])
    ]

    assert not missing, f"{name} lacks {len(missing)} of {len(wanted)} cells: run `make study`"
    assert not stale, f"{len(stale)} results in {name} are of earlier decision code: {RENEW}"


def test_the_pages_show_what_the_results_say() -> None:
    rows = [row for row in kept(FOLDER / "results.jsonl", Row) if isinstance(row, Row)]
    by_cell = {row.cell: row for row in rows}
    ordered = [by_cell[cell] for cell in cells() if cell in by_cell]
    theirs = msgspec.json.decode((FOLDER / "dynamo.json").read_bytes(), type=list[CrossRow])
    page = DOCUMENT.read_text()

    made = report.parts(ordered, cells(), theirs)

    assert report.fill(page, made) == page, f"{DOCUMENT.name}: run `python -m loadtest.study --report-only`"


def test_the_page_of_the_queue_shows_what_its_results_say() -> None:
    queue = {row.cell: row for row in kept(FOLDER / "queue.jsonl", QueueRow) if isinstance(row, QueueRow)}
    ordered = [queue[cell] for cell in queueing.cells() if cell in queue]
    page = (FOLDER / "queue.md").read_text()

    made = {"aims": queue_page.aims(ordered), "tables": queue_page.tables(ordered)}

    assert report.fill(page, made) == page, "run `python -m loadtest.study.queueing --report-only`"
