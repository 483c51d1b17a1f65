"""The published runs are of the decision code that they stand beside; none is asked for without traces."""

from loadtest.bench.fleet.__main__ import OUT
from loadtest.bench.fleet.cells import CELLS
from loadtest.bench.fleet.results import of_revision, read
from loadtest.unchanged.revision import present

RENEW = (
    "run `python -m loadtest.unchanged confirm` if no decision should have changed, else `make bench-fleet`"
)


def test_published_runs_are_of_the_present_decision_code() -> None:
    outcomes = read(OUT / "fleet.jsonl")
    fresh = of_revision(outcomes, present().decisions)

    stale = {outcome.cell for outcome in outcomes if outcome not in fresh}

    assert {outcome.cell for outcome in outcomes} == {cell.key for cell in CELLS}, "run `make bench-fleet`"
    assert not stale, f"runs of {len(stale)} cells are of earlier decision code: {RENEW}"
