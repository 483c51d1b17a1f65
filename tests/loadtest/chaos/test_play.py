"""A short play is seen from all sides. Those with strikes are in ``tests/chaos/test_plays.py``."""

from dataclasses import replace

import pytest

from loadtest.chaos.overload import CALM_RATIO, OverloadPlan
from loadtest.chaos.play import Reading, Seen, run_play
from loadtest.chaos.site_promises import prefilled
from loadtest.chaos.sites import SitesPlan


def test_cpu_is_of_replicas_that_lived_through_a_scene() -> None:
    """One of two replicas began another life: its CPU and its requests say nothing."""
    began = Reading(0.0, 0.0, {("r1", 1): 1.0, ("r2", 1): 5.0}, {"r1": 10, "r2": 10})
    ended = Reading(9.0, 0.0, {("r1", 1): 1.5, ("r2", 2): 0.1}, {"r1": 110, "r2": 90})
    seen = Seen(OverloadPlan().play, readings=[began, ended, replace(ended, at_s=10.0)])
    assert seen.cpu_us("before") == pytest.approx(5000.0)


@pytest.mark.deep
async def test_an_overload_sees_clients_replicas_and_engines() -> None:
    plan = OverloadPlan(replicas=1, engines=2, before_s=2.0, overload_s=3.0, after_s=2.0)
    seen = await run_play(plan.play)
    scenes = {name: sum(one.phase == name for one in seen.served) for name in ("before", "overload", "after")}
    assert scenes["overload"] > 1.5 * plan.overload_s * plan.capacity_per_s
    assert 0 < scenes["before"] < 2 * CALM_RATIO * plan.before_s * plan.capacity_per_s
    assert scenes["after"] > 0
    assert len(seen.served) == seen.sent == sum(scenes.values())
    assert 0.5 < seen.busy("overload") < 1.1
    assert 0 < seen.cpu_us("overload") < 1e6
    assert {sample.scene for sample in seen.samples} == set(scenes)
    assert seen.metrics["cacheway_inflight_requests"] == 0
    assert (seen.struck, seen.left, seen.errors) == ([], [], [])


@pytest.mark.deep
async def test_two_sites_see_workers_and_the_link() -> None:
    seen = await run_play(SitesPlan(seconds=5.0, rate_per_s=4.0, disaster=False, protocol="nixl").play)
    requests, prompt_tokens, cached_tokens = prefilled(seen)
    assert len(seen.served) == seen.sent > 0
    assert set(requests) == {"p1", "p2", "far1", "far2"}
    assert 0 <= cached_tokens < prompt_tokens
    assert seen.link["under_way"] == 0
    assert seen.offload["enabled"]
    assert seen.metrics["cacheway_inflight_requests"] == 0
    assert (seen.struck, seen.left, seen.errors) == ([], [], [])
