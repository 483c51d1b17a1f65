"""The published runs are of the present decision code, or the page names those that are not."""

from loadtest.bench.fleet.__main__ import OUT
from loadtest.bench.fleet.cells import CELLS
from loadtest.bench.fleet.chart import FRONT
from loadtest.bench.fleet.page import OLDER
from loadtest.bench.fleet.results import of_revision, read
from loadtest.unchanged.revision import present

RENEW = (
    "run `python -m loadtest.unchanged confirm` if no decision should have changed, else `make bench-fleet`"
)


def test_published_runs_are_of_the_present_decision_code() -> None:
    outcomes = read(OUT / "fleet.jsonl")
    fresh = {outcome.cell for outcome in of_revision(outcomes, present().decisions)}
    page = OUT.with_suffix(".md").read_text()
    shown = {cell.key for cell in CELLS if f"| {cell.key} |" in page}

    assert shown >= set(FRONT.values()), "run `make bench-fleet`"
    stale = shown - fresh
    named = next((line for line in page.splitlines() if line.startswith(f"| {OLDER} |")), "")
    assert stale == {cell.key for cell in CELLS if cell.key in named}, (
        f"{len(stale)} cells are stale: {RENEW}"
    )
