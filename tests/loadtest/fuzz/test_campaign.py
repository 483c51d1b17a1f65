"""Rounds of cases, and of which of them a finding may come (a real run: ``tests/security/test_fuzz.py``)."""

from types import SimpleNamespace
from typing import cast

from loadtest.fuzz.campaign import ROUND_CASES, Finding, Plan, Report, _Campaign
from loadtest.fuzz.cases import case
from loadtest.fuzz.stage import Stage


def test_a_plan_is_divided_into_rounds() -> None:
    rounds = list(Plan(7, cases=ROUND_CASES + 5).rounds())
    assert [len(cases) for cases in rounds] == [ROUND_CASES, 5]
    assert rounds[1][0] == case(7, ROUND_CASES)


def test_only_some_cases_are_the_same_cases() -> None:
    assert list(Plan(7, only=(3, 900)).rounds()) == [[case(7, 3), case(7, 900)]]


def test_findings_are_found_by_their_words() -> None:
    report = Report(7, [Finding("gateway-0 grew by 200 MiB", ()), Finding("500", ())])
    assert report.matching("grew|shrank") == report.findings[:1]
    assert report.matching("") == report.findings
    assert not report.matching("crashed")


def test_the_cases_under_way_are_suspected_first_and_the_same_is_found_once() -> None:
    campaign = _Campaign(Plan(7), cast(Stage, SimpleNamespace(gateways=[])))
    campaign._round = [case(7, number) for number in range(3)]
    assert campaign._suspects() == tuple(campaign._round)
    campaign._under_way[1] = campaign._round[1]
    assert campaign._suspects() == (campaign._round[1],)
    for _ in range(2):
        campaign._found("something", campaign._suspects())
    assert campaign.report.findings == [Finding("something", (campaign._round[1],))]
