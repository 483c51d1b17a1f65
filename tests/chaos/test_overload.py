"""Three times the capacity, with Valkey and a replica killed in the middle: every promise is kept.

``python -m loadtest.bench.overload`` is the same for two minutes.
"""

import pytest

from loadtest.chaos import OverloadPlan, judge, run_overload


@pytest.mark.slow
async def test_an_overloaded_fleet_keeps_its_promises_through_a_disaster() -> None:
    """The queue holds some 3 s of what the engines can do, so it is empty soon after."""
    plan = OverloadPlan(
        before_s=3.0,
        overload_s=8.0,
        after_s=11.0,
        disaster=True,
        flags=("--queue-size", "100", "--queue-timeout-secs", "6"),
    )
    run = await run_overload(plan)
    broken = [f"{promise.name}: {promise.seen}" for promise in judge(run) if not promise.kept]
    assert broken == []
    ends = {one.visit.end.value for one in run.served if one.phase == "overload"}
    assert {"answered", "rejected", "expired", "left", "cut"} <= ends
