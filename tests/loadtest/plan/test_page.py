"""The page of a plan holds all its facts."""

import re
from html import escape

from fakes.planned import outcome

from loadtest.plan.page import plan_page


def page(*, found: bool = True) -> str:
    return plan_page(
        outcome(found=found), facts={"engine": "8 × <gpu>"}, command="cacheway plan --trace 'a<b'"
    )


def test_everything_told_is_on_the_page_as_text() -> None:
    told = outcome()
    shown = page()

    for sentence in (*told.certainty(), *told.assumptions()):
        assert escape(sentence) in shown
    assert "Everything &lt;is&gt; made up." in shown
    for row in (*told.fleet_rows(), *told.step_rows()):
        assert f"<th>{row[0]}</th>" in shown
    assert "a&lt;b" in shown
    assert "<gpu>" not in shown


def test_without_a_plan_there_are_no_tables_but_reasons() -> None:
    shown = page(found=False)

    assert "<table>" not in shown
    assert "No fleet that was tried holds" in shown
    assert shown.count("<svg") == 4


def test_the_page_loads_nothing() -> None:
    addresses = set(re.findall(r'https?://[^"\s<)]+', page()))

    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "<script" not in page()
