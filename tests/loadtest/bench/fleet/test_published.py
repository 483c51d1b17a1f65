"""The published runs are of the decision code that they stand beside; none is asked for without traces."""

from loadtest.bench.fleet.__main__ import OUT
from loadtest.bench.fleet.cells import CELLS
from loadtest.bench.fleet.results import read
from loadtest.study.revision import present


def test_published_runs_are_of_the_present_decision_code() -> None:
    outcomes = read(OUT / "fleet.jsonl")
    code = present().decisions

    stale = {outcome.cell for outcome in outcomes if outcome.revision != code}

    assert {outcome.cell for outcome in outcomes} == {cell.key for cell in CELLS}, "run `make bench-fleet`"
    assert not stale, f"runs of {len(stale)} cells are of earlier decision code: run `make bench-fleet`"
