"""Three times the capacity, with Valkey and a replica killed in the middle.

``python -m loadtest.bench.overload`` is the same for two minutes, with times and shares, too.
"""

import pytest

from loadtest.chaos import OverloadPlan, judge, run_overload


@pytest.mark.slow
async def test_an_overloaded_fleet_keeps_its_promises_through_a_disaster() -> None:
    """All but those that a busy machine would break."""
    run = await run_overload(OverloadPlan(before_s=3.0, overload_s=10.0, after_s=5.0, disaster=True))
    promises = [promise for promise in judge(run) if not promise.timed]
    assert len(promises) >= 6
    assert [f"{promise.name}: {promise.seen}" for promise in promises if not promise.kept] == []
    ends = {one.visit.end.value for one in run.served if one.phase == "overload"}
    assert {"answered", "rejected", "expired", "left", "cut"} <= ends
