"""Kept results of a study, and the time for which they are good."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fakes.study import CODE, cell, row

from loadtest.study.design import Cell
from loadtest.study.results import Row, Store, by_scenario
from loadtest.unchanged.revision import Revision

NEWER = Revision("newer", "model")


def store_of(path: Path, code: Revision) -> Store[Cell, Row]:
    """A store of the policy study's results."""
    return Store(path, code, Row)


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    done, open_ = row("a"), cell("b")
    store_of(path, CODE).add(done)

    again = store_of(path, CODE)

    assert again.missing([done.cell, open_, open_]) == [open_]
    assert again.rows([open_, done.cell]) == [done]


def test_results_of_other_code_are_kept_until_there_are_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    old, other, new = row("a"), row("b"), replace(row("a", mean_s=3.0), code=NEWER)
    for one in (old, other):
        store_of(path, CODE).add(one)

    store = store_of(path, NEWER)
    assert store.missing([old.cell]) == [old.cell]
    assert store.rows([old.cell]) == [old]

    store.add(new)
    again = store_of(path, NEWER)
    assert again.missing([old.cell, other.cell]) == [other.cell]
    assert again.rows([old.cell, other.cell]) == [new, other]
    assert len(path.read_bytes().splitlines()) == 2


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    store_of(path, CODE).add(row("a"))
    path.write_bytes(path.read_bytes() + b'{"code": "co')

    assert store_of(path, CODE).rows([row("a").cell]) == [row("a")]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"policy": "x"}\n')

    with pytest.raises(msgspec.MsgspecError):
        store_of(path, CODE)


def test_cells_that_the_design_has_no_more_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    store = store_of(path, CODE)
    for one in (row("a"), row("b")):
        store.add(one)

    store.keep([row("a").cell])

    assert store_of(path, CODE).rows([row("a").cell, row("b").cell]) == [row("a")]


def test_rows_are_grouped_by_what_policies_are_compared_on() -> None:
    one, two, other = row("a"), row("b"), row("a", utilisation=0.6)
    again = row("a", seed=2)

    assert by_scenario([again, one, two, other]) == {
        one.cell.scenario: {"a": (one, again), "b": (two,)},
        other.cell.scenario: {"a": (other,)},
    }


def test_a_figure_that_was_not_measured_is_no_number() -> None:
    assert row().number("ttft_mean_s") == 1.0
    assert row().number("no such") != row().number("no such")
