"""The command: its runs, its files, and its errors for missing inputs."""

from pathlib import Path

import pytest
from fakes.study import cell, write_traces

from loadtest.study import __main__ as command


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Two cells on small traces, and everything written to a temporary folder."""
    wanted = [cell(utilisation=0.5), cell("lmetric", utilisation=0.5)]
    monkeypatch.setattr(command, "cells", lambda *, quick: wanted)
    document = tmp_path / "study.md"
    document.write_text("<!-- study: verdict -->\n<!-- end -->\n")
    results = tmp_path / "results.jsonl"
    traces = write_traces(tmp_path)
    return ["--out", str(document), "--results", str(results), "--traces", str(traces), "--jobs", "1"]


def test_the_document_is_filled_in_from_simulations(small: list[str], tmp_path: Path) -> None:
    assert command.main(small) == 0

    assert "(lmetric)" in (tmp_path / "study.md").read_text()
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_the_report_alone_simulates_nothing(small: list[str], tmp_path: Path) -> None:
    assert command.main([*small, "--report-only"]) == 0

    assert (tmp_path / "results.jsonl").read_text() == ""


@pytest.mark.deep
def test_only_the_parts_that_are_asked_for_are_simulated_and_the_others_are_kept(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [cell(part=part, utilisation=0.5) for part in ("main", "claims")]
    monkeypatch.setattr(command, "cells", lambda *, quick: wanted)
    assert command.main([*small, "--parts", "claims"]) == 0

    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert '"part":"claims"' in lines[0]

    assert command.main([*small, "--parts", "main"]) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_a_quick_study_prints_its_tables(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*small, "--quick"]) == 0

    assert "### conversation, mimo-v2.5-pro, 50 %" in capsys.readouterr().out


def test_missing_traces_are_an_error_with_a_sentence(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*small, "--traces", str(tmp_path / "nowhere")]) == 1

    assert "error:" in capsys.readouterr().err


def test_without_dynamo_the_study_goes_on_and_says_so(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*small, "--report-only", "--dynamo-python", str(tmp_path / "python")]) == 0

    assert "Dynamo left out" in capsys.readouterr().err
