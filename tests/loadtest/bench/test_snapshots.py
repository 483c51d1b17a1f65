"""The benchmark of snapshots measures its figures, on a small scale."""

import asyncio
import time

from loadtest.bench.snapshots import SYSTEM_BLOCKS, SYSTEM_PROMPTS, WORKERS, Stalls, fill
from policies import FleetState
from radix.invariants import check
from router.shared import LogClock


def test_a_filled_fleet_holds_that_many_blocks_and_every_tenth_session_twice() -> None:
    """Ten prompts of eight blocks, and 60 sessions of four: a node for each."""
    fleet = FleetState()
    fill(fleet, SYSTEM_PROMPTS * SYSTEM_BLOCKS + 240, 4, LogClock())

    check(fleet.tree)
    assert len(fleet.workers()) == WORKERS
    assert fleet.tree.blocks == SYSTEM_PROMPTS * SYSTEM_BLOCKS + 240
    assert fleet.tree.nodes == SYSTEM_PROMPTS + 60


async def test_a_stall_is_seen_by_the_clock_and_in_cpu_time() -> None:
    """20 ms of work: at least that by the clock, and nearly all of it in CPU time."""
    stalls = Stalls()
    task = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0)
    until_s = time.thread_time() + 0.02
    while time.thread_time() < until_s:
        pass
    while not stalls.cpu_ms:  # noqa: ASYNC110 - until it was noticed
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert stalls.wall_ms >= 18
    assert stalls.cpu_ms >= 18
