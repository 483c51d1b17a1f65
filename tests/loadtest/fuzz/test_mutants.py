"""A removed check must be found, and by its own signs."""

import pytest

from loadtest.fuzz import mutants
from loadtest.fuzz.campaign import Finding, Plan, Report
from loadtest.fuzz.cases import case


def test_a_mutant_is_found_by_its_own_signs_only() -> None:
    other = Report(7, [Finding("500: internal_error", ())], cases=96, seconds=12.0)
    assert "NOT FOUND in 96 cases, 12 s" in mutants.verdict("C7", other)
    found = Report(
        7, [Finding("gateway-0: a log line of 3000000 bytes", (case(7, 3),))], cases=96, seconds=12.0
    )
    told = mutants.verdict("C7", found)
    assert "found within 96 cases, 12 s: gateway-0: a log line" in told
    assert "python -m loadtest.fuzz --seed 7 --only 3" in told


def test_the_status_says_whether_all_were_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(plan: Plan, *_: object) -> Report:
        assert plan.without == "C7"
        return Report(plan.seed, [Finding("a log line of 9 bytes", ())] if plan.seed == 1 else [])

    monkeypatch.setattr(mutants, "run", run)
    assert mutants.main(["C7", "--seed", "1"]) == 0
    assert mutants.main(["C7", "--seed", "2"]) == 1
    assert "NOT FOUND" in capsys.readouterr().out


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(SystemExit):
        mutants.main(["C99"])
