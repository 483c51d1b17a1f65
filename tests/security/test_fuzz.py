"""A short run of the fuzz suite (`loadtest.fuzz`): real replicas and Valkey, the same cases every time."""

from pathlib import Path

import pytest

from loadtest.fuzz.__main__ import lines
from loadtest.fuzz.campaign import Plan, run
from loadtest.fuzz.cases import GENERATORS, case

SEED, CASES = 17, 192


def test_the_short_run_has_cases_of_all_kinds() -> None:
    assert {case(SEED, number).kind for number in range(CASES)} == set(GENERATORS)


@pytest.mark.parametrize("cases", [24, pytest.param(CASES, marks=pytest.mark.deep)])
@pytest.mark.timeout(600)
async def test_nothing_that_comes_breaks_a_promise(tmp_path: Path, cases: int) -> None:
    """Where this fails, its message says how the case is played alone, and ``make fuzz`` looks for longer."""
    report = await run(Plan(SEED, seconds=1e9, cases=cases), tmp_path)
    assert not report.findings, "\n".join(lines(report))
    assert report.cases == cases
    assert report.served > 0
