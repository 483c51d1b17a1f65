"""The study of the queue, on little traffic."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fakes.study import CODE, write_traces

from loadtest.study import queueing
from loadtest.study.queue_page import QueueCell, QueueRow, aims, tables
from loadtest.study.queueing import PRESSURES, cells, main, simulated

FEW = (
    QueueCell("azure-code", 1.0, None),
    QueueCell("azure-code", 1.0, 0.0),
    QueueCell("azure-code", 1.0, 4.0, early=True, replicas=2),
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return write_traces(folder)


def test_every_cell_is_one_of_its_own_and_has_a_title_of_its_own() -> None:
    found = cells()
    assert len(set(found)) == len(found) == len({cell.title for cell in found})
    assert {cell.traffic for cell in found} <= set(PRESSURES)


def test_a_cell_gives_the_same_whenever_it_is_simulated(traces: Path) -> None:
    first, second = (simulated(FEW[2], traces, CODE) for _ in range(2))

    assert first == second
    assert first.figures.requests == 30


def test_goodput_counts_what_came_in_time(traces: Path) -> None:
    """Thirty small prompts in 29 s recorded ones: each is answered within a second."""
    row = simulated(FEW[1], traces, CODE)

    assert row.figures.completed_share == row.figures.kept_share == 1.0
    assert row.figures.goodput_per_s == pytest.approx(30 / 29 * PRESSURES["azure-code"].capacity_speed)


def test_results_are_kept_and_shown(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "cells", lambda: list(FEW))
    out = tmp_path / "out"
    out.mkdir()
    page = out / "queue.md"
    page.write_text("# Page\n\n<!-- study: aims -->\n<!-- end -->\n\n<!-- study: tables -->\n<!-- end -->\n")
    arguments = ["--traces", str(traces), "--out", str(out), "--jobs", "1"]

    assert main(arguments) == 0
    kept = (out / "queue.jsonl").read_bytes()
    assert main([*arguments, "--report-only"]) == 0

    assert (out / "queue.jsonl").read_bytes() == kept
    assert len(kept.splitlines()) == len(FEW)
    shown = page.read_text()
    assert all(cell.order in shown for cell in FEW)
    assert (out / "queue.png").stat().st_size > 10_000


def test_a_table_has_a_line_for_every_cell(traces: Path) -> None:
    rows = [simulated(cell, traces, CODE) for cell in FEW]
    copied = [msgspec.json.decode(msgspec.json.encode(row), type=QueueRow) for row in rows]

    assert copied == rows
    assert tables(rows).count("| 100 % |") == len(FEW)
    assert np.isfinite([row.figures.wait_s_max for row in rows]).all()


def test_the_page_has_a_place_for_everything_that_is_made() -> None:
    page = (queueing.FOLDER / "queue.md").read_text()

    assert all(f"<!-- study: {name} -->" in page for name in ("aims", "tables"))


def test_the_gain_is_told_against_first_come_first_served(traces: Path) -> None:
    rows = [simulated(replace(FEW[1], k=k), traces, CODE) for k in (0.0, 4.0)]

    assert "azure-code, 100 %" in aims(rows)
    assert "azure-code" not in aims(rows[1:])


def test_a_trace_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "cells", lambda: list(FEW[:1]))

    assert main(["--traces", str(tmp_path), "--out", str(tmp_path), "--jobs", "1"]) == 1
