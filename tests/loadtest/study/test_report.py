"""Figures come into the document from results, never from a keyboard."""

from pathlib import Path

import pytest
from fakes.study import row

from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.report import fill, parts, summary, write
from loadtest.study.verdict import verdicts


def test_only_what_is_between_the_marks_is_replaced() -> None:
    document = "Text.\n\n<!-- study: verdict -->\nold\n<!-- end -->\n\nMore.\n"

    filled = fill(document, {"verdict": "new\n"})

    assert filled == "Text.\n\n<!-- study: verdict -->\n\nnew\n\n<!-- end -->\n\nMore.\n"
    assert fill(filled, {"verdict": "new\n"}) == filled


def test_dynamo_stands_beside_ours() -> None:
    theirs = [CrossRow("round_robin", 0.08, 0.07, 0.09, 0.4, 0.9)]

    assert "Dynamo, round_robin" in parts([row()], [], theirs)["cross-check"]


def test_a_part_that_nobody_makes_is_refused() -> None:
    with pytest.raises(KeyError, match="poems"):
        fill("<!-- study: poems -->\n<!-- end -->", {})


def test_the_summary_counts_verdicts() -> None:
    """One scenario with one seed, which proves nothing; one with three that agree."""
    rows = [row(mean_s=0.8), row("lmetric")]
    for seed in (1, 2, 3):
        rows += [row(mean_s=0.8, utilisation=0.6, seed=seed), row("lmetric", utilisation=0.6, seed=seed)]

    text = summary({"ours": verdicts(rows)})

    assert "| of the scenarios | faster than all | slower | not told apart | not compared |" in text
    assert "| ours: mean TTFT | 1 | 0 | 1 | 0 |" in text


def test_the_document_is_filled_and_its_charts_are_drawn_beside_it(tmp_path: Path) -> None:
    document = tmp_path / "study.md"
    document.write_text("<!-- study: verdict -->\n<!-- end -->\n")

    write(document, [row(), row("lmetric")], [], [])

    assert "(lmetric)" in document.read_text()
    assert {path.name for path in (tmp_path / "study").iterdir()} == {
        "verdict.png",
        "loads.png",
        "reuse.png",
        "tables.md",
    }
    assert "### conversation" in (tmp_path / "study" / "tables.md").read_text()
