"""A short overload of a small fleet is seen from all sides."""

import pytest

from loadtest.chaos import OverloadPlan, run_overload
from loadtest.chaos.overload import CALM_RATIO


def test_capacity_grows_with_the_engines() -> None:
    assert OverloadPlan(engines=6).capacity_per_s == pytest.approx(2 * OverloadPlan(engines=3).capacity_per_s)


@pytest.mark.slow
async def test_a_run_sees_clients_replicas_and_engines() -> None:
    plan = OverloadPlan(replicas=1, engines=2, before_s=2.0, overload_s=3.0, after_s=2.0)
    run = await run_overload(plan)
    phases = {
        phase: sum(one.phase == phase for one in run.served) for phase in ("before", "overload", "after")
    }
    assert phases["overload"] > 1.5 * plan.overload_s * plan.capacity_per_s
    assert 0 < phases["before"] < 2 * CALM_RATIO * plan.before_s * plan.capacity_per_s
    assert phases["after"] > 0
    assert len(run.served) == run.sent == sum(phases.values())
    assert 0.5 < run.busy < 1.1
    assert 0 < run.cpu_us < 1e6
    assert {sample.phase for sample in run.samples} == set(phases)
    assert run.metrics["cacheway_inflight_requests"] == 0
    assert (run.dead, run.left, run.errors) == ("", [], [])
