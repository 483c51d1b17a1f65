"""What is kept of a study, and for how long it is good."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fakes.study import cell, row

from loadtest.study.results import Store, by_scenario, code_digest


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    done, open_ = row("a"), cell("b")
    Store(path, "code").add(done)

    again = Store(path, "code")

    assert again.missing([done.cell, open_, open_]) == [open_]
    assert again.rows([open_, done.cell]) == [done]


def test_results_of_other_code_are_kept_until_there_are_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    old, other, new = row("a"), row("b"), replace(row("a", mean_s=3.0), code="newer")
    for one in (old, other):
        Store(path, "code").add(one)

    store = Store(path, "newer")
    assert store.missing([old.cell]) == [old.cell]
    assert store.rows([old.cell]) == [old]

    store.add(new)
    again = Store(path, "newer")
    assert again.missing([old.cell, other.cell]) == [other.cell]
    assert again.rows([old.cell, other.cell]) == [new, other]
    assert len(path.read_bytes().splitlines()) == 2


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Store(path, "code").add(row("a"))
    path.write_bytes(path.read_bytes() + b'{"code": "co')

    assert Store(path, "code").rows([row("a").cell]) == [row("a")]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"policy": "x"}\n')

    with pytest.raises(msgspec.MsgspecError):
        Store(path, "code")


def test_code_that_decides_changes_the_digest_and_code_that_shows_does_not(tmp_path: Path) -> None:
    deciding, showing = tmp_path / "policies" / "place.py", tmp_path / "loadtest" / "study" / "chart.py"
    for path in (deciding, showing):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    before = code_digest(tmp_path)

    showing.write_text("2")
    assert code_digest(tmp_path) == before
    deciding.write_text("2")
    assert code_digest(tmp_path) != before


def test_rows_are_grouped_by_what_policies_are_compared_on() -> None:
    one, two, other = row("a"), row("b"), row("a", utilisation=0.6)

    assert by_scenario([one, two, other]) == {
        one.cell.scenario: {"a": one, "b": two},
        other.cell.scenario: {"a": other},
    }


def test_a_figure_that_was_not_measured_is_no_number() -> None:
    assert row().number("ttft_mean_s") == 1.0
    assert row().number("no such") != row().number("no such")
