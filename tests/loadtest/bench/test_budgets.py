"""Steps of the event loop take as many Python steps in a fleet of 800 workers and tenants as of 100."""

import pytest
from fakes.bytecodes import bytecodes

from loadtest.bench.budgets import STEPS

SPARE = 100
"""Instructions by which two fleets may differ, some of them by chance: a heap is a level deeper."""

PER_WORKER = {"split": 30, "replica gone, 5,000 in flight": 8}
"""Instructions for each worker more, of a step that cannot do without one: its budget is for 1,000."""


@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_grow_with_the_fleet(name: str) -> None:
    """The least and the greatest of several calls count: rare work does not grow either."""
    few, many = (
        sorted(bytecodes(lambda step=step, number=number: step(number)) for number in range(1, 6))
        for step in (STEPS[name](100), STEPS[name](800))
    )
    spare = SPARE + 700 * PER_WORKER.get(name, 0)
    assert many[0] <= few[0] + spare
    assert many[-1] <= few[-1] + spare
