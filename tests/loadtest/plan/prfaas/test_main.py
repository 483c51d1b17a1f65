"""``python -m loadtest.plan.prfaas``."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.plan.prfaas.__main__ import main, shown
from loadtest.plan.prfaas.case_study import Figure, Part


def test_the_case_study_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    status = main(["--case-study", "--json", str(file)])
    told = capsys.readouterr().out
    assert status == 0
    for words in ("Table 3", "Table 5", "Table 6", "only shown"):
        assert words in told
    document = json.loads(file.read_text())
    figures = {one["what"]: one for part in document["parts"] for one in part["figures"]}
    assert figures["t, optimum"]["published"] == 19.4
    assert figures["t, optimum"]["note"] == "H20 times solved back"
    assert abs(figures["t, optimum"]["difference_ratio"]) < document["tolerance_ratio"]
    assert not any(one["off"] for one in figures.values())


def test_a_figure_that_does_not_come_out_is_said() -> None:
    told = io.StringIO()
    good, bad = Figure("good", 1.0, 1.0), Figure("bad", 1.0, 1.1)
    assert shown(Console(file=told), [Part("a table", [good, Figure("shown", 1.0, 9.0, checked=False)])])
    assert not shown(Console(file=told), [Part("a table", [good, bad], "a caveat")])
    assert "1 of 2 checked figures are within 3%" in told.getvalue()
    assert "+10.0%" in told.getvalue()


def test_it_must_be_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "--case-study" in capsys.readouterr().err
