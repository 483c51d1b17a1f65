"""The command line: one case again, its bytes, and the report of a finding."""

import pytest

from loadtest.fuzz import __main__ as command
from loadtest.fuzz.campaign import Finding, Plan, Report
from loadtest.fuzz.cases import case


def test_a_case_is_shown_with_all_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "7", "--only", "3,4", "--show"]) == 0
    shown = capsys.readouterr().out
    assert str(case(7, 3)) in shown
    assert repr(case(7, 4).action) in shown


def test_the_status_is_that_of_the_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []

    async def run(plan: Plan, *_: object) -> Report:
        plans.append(plan)
        return Report(plan.seed, [Finding("500", (case(7, 3),))] if plan.only else [])

    monkeypatch.setattr(command, "run", run)
    assert command.main(["--seed", "7", "--only", "3"]) == 1
    told = capsys.readouterr().out
    assert "FOUND: 500" in told
    assert "python -m loadtest.fuzz --seed 7 --only 3" in told
    assert command.main(["--seconds", "5", "--kinds", "pods,heads", "--go-on"]) == 0
    assert (plans[1].seconds, plans[1].kinds, plans[1].until) == (5.0, ("pods", "heads"), None)
    assert "0 findings" in capsys.readouterr().out


def test_all_suspects_of_a_finding_can_be_played_again() -> None:
    finding = Finding("memory", tuple(case(7, number) for number in range(9)))
    assert "--only 0,1,2,3,4,5,6,7,8" in command.of_finding(finding)[-1]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SystemExit):
        command.main(["--kinds", "pods,none"])
