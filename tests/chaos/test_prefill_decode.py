"""Prefill, decode and a replica killed, the link slow and dead: nobody loses more than what was killed.

``python -m loadtest.bench.prefill_decode`` is the same for five minutes, with times and bytes, too.
"""

import pytest

from loadtest.chaos import PrefillDecodePlan, judge_pairs, run_prefill_decode


@pytest.mark.slow
async def test_a_fleet_of_two_sites_keeps_its_promises_whatever_is_killed() -> None:
    """All but those that a busy machine would break."""
    run = await run_prefill_decode(PrefillDecodePlan(seconds=20.0, rate_per_s=4.0))
    promises = [promise for promise in judge_pairs(run) if not promise.timed]
    assert len(promises) >= 6
    assert [f"{promise.name}: {promise.seen}" for promise in promises if not promise.kept] == []
    assert [kill.name for kill in run.kills] == ["p2", "d2", "r2"]
    assert len({one.phase for one in run.served}) == 5
