"""In each play, clients lose only the requests of the process that was killed or failed.

``python -m loadtest.chaos overload --disaster`` and ``... sites`` are the same for minutes, with figures.
"""

import pytest

from loadtest.chaos.overload import OverloadPlan
from loadtest.chaos.overload_promises import judge_overload
from loadtest.chaos.play import run_play
from loadtest.chaos.promises import Promise
from loadtest.chaos.site_promises import judge_sites
from loadtest.chaos.sites import SitesPlan


def check(promises: list[Promise]) -> None:
    """Check all promises except those that a busy machine would break."""
    untimed = [promise for promise in promises if not promise.timed]
    assert len(untimed) >= 6
    assert [f"{promise.name}: {promise.seen}" for promise in untimed if not promise.kept] == []


@pytest.mark.deep
async def test_an_overloaded_fleet_keeps_its_promises_through_a_disaster() -> None:
    """Two engines are the fewest that can take each other's work; four are twice the load on the machine."""
    plan = OverloadPlan(replicas=3, engines=2, before_s=3.0, overload_s=10.0, after_s=5.0, disaster=True)
    seen = await run_play(plan.play)
    check(judge_overload(seen))
    ends = {one.visit.end.value for one in seen.served if one.phase == "overload"}
    assert {"answered", "rejected", "expired", "left", "cut"} <= ends


@pytest.mark.deep
async def test_a_fleet_of_two_sites_keeps_its_promises_whatever_is_killed() -> None:
    seen = await run_play(SitesPlan(seconds=20.0, rate_per_s=4.0).play)
    check(judge_sites(seen))
    assert sorted(each.strike.target for each in seen.struck) == ["d2", "link", "link", "p2", "r2"]
    assert len({one.phase for one in seen.served}) == 5
