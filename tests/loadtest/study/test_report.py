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


def test_a_part_that_was_not_made_this_time_stays_as_it_is() -> None:
    document = "<!-- study: cross-check -->\nold\n<!-- end -->\n"

    assert fill(document, {"cross-check": None}) == document


def test_the_comparison_with_dynamo_needs_its_results() -> None:
    theirs = [CrossRow("round_robin", 0.08, 0.07, 0.09, 0.4, 0.9, 10)]

    assert parts([row()], [], "code")["cross-check"] is None
    assert "Dynamo, round_robin" in (parts([row()], theirs, "code")["cross-check"] or "")


def test_a_part_that_nobody_makes_is_refused() -> None:
    with pytest.raises(KeyError, match="poems"):
        fill("<!-- study: poems -->\n<!-- end -->", {})


def test_the_summary_puts_aims_beside_what_was_reached() -> None:
    rows = [row(mean_s=0.8, traffic="agentic-64"), row("lmetric", traffic="agentic-64")]
    rows += [row(mean_s=1.2), row("lmetric")]

    text = summary(verdicts(rows))

    assert "| mean TTFT over the best peer's, agentic-64, 80 % | <= 0.85 | 0.80 |" in text
    assert "| worst scenario (conversation, mimo-v2.5-pro, 80 %), mean or P90 | <= 1.03 | 1.20 |" in text
    assert "| 1 of 2 |" in text


def test_the_document_is_filled_and_its_charts_are_drawn_beside_it(tmp_path: Path) -> None:
    document = tmp_path / "study.md"
    document.write_text("<!-- study: verdict -->\n<!-- end -->\n<!-- study: sweep-aging -->\n<!-- end -->\n")

    write(document, [row(), row("lmetric"), row(part="sweep-aging", value="1")], [], "code")

    assert "(lmetric)" in document.read_text()
    assert {path.name for path in (tmp_path / "study").iterdir()} == {
        "verdict.png",
        "loads.png",
        "reuse.png",
        "sweep-aging.png",
        "tables.md",
    }
    assert "### conversation" in (tmp_path / "study" / "tables.md").read_text()
