"""Results of other code are confirmed by decisions, and by nothing less."""

from dataclasses import replace
from pathlib import Path

from fakes.study import cell, write_traces

from loadtest.study import confirm
from loadtest.study.design import Cell
from loadtest.study.results import Row, Store
from loadtest.study.revision import Revision
from loadtest.study.runs import simulated

OLD, NEW = Revision("old", "model"), Revision("new", "model")
CELLS = [cell("round_robin", utilisation=None), cell("least_load", utilisation=None)]


def store_of(tmp_path: Path) -> Store[Cell, Row]:
    store: Store[Cell, Row] = Store(tmp_path / "results.jsonl", OLD, Row)
    for one in CELLS:
        store.add(simulated(one, write_traces(tmp_path), OLD))
    return Store(tmp_path / "results.jsonl", NEW, Row)


def test_cells_that_decide_the_same_are_confirmed_and_stamped(tmp_path: Path) -> None:
    store = store_of(tmp_path)

    found = confirm.again(store, CELLS, simulated, tmp_path, 1)
    store.restamp(lambda row, code: replace(row, code=code))

    assert [one.same for one in found] == [True, True]
    assert Store(tmp_path / "results.jsonl", NEW, Row).missing(CELLS) == []


def test_a_cell_that_decides_otherwise_is_told(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (row,) = store.rows(CELLS[:1])
    store.add(replace(row, figures=row.figures | {"decisions_digest": "other"}))

    found = confirm.again(store, CELLS, simulated, tmp_path, 1)

    assert {one.cell: one.same for one in found} == {CELLS[0]: False, CELLS[1]: True}


def test_nothing_is_confirmed_where_a_result_is_missing(tmp_path: Path) -> None:
    store: Store[Cell, Row] = Store(tmp_path / "results.jsonl", NEW, Row)

    found = confirm.again(store, CELLS, simulated, tmp_path, 1)

    assert [one.same for one in found] == [False, False]
