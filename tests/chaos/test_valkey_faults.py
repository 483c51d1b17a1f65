"""Faults of Valkey: no request fails, replicas report the fault at once, and afterwards all agree again.

Two replicas under load, one fault, recovery; then a third joins, which knows only what is in Valkey.
"""

import asyncio
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from fakes.replicas import RunningReplica, Start
from fakes.running import until, until_async

from loadtest.chaos import (
    FAULTS,
    Crowd,
    Fault,
    TcpProxy,
    ValkeyServer,
    disagreements,
    sessions,
    settled,
    staged,
)

QUICK = ("killed, started empty", "paused", "flushed")
"""One each that is gone, that is silent, and that forgets; the others are deep."""


def cases(faults: Iterable[Fault]) -> list[ParameterSet]:
    return [
        pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.deep)
        for fault in faults
    ]


DEGRADED = 'cacheway_degraded{component="redis"}'
BUFFERED = "cacheway_log_buffered_ops"
DROPPED = "cacheway_ops_dropped_total"


async def started(start: Start, redis_url: str, *flags: str) -> list[RunningReplica]:
    return list(await asyncio.gather(*(start(redis_url, *flags) for _ in range(2))))


RATE_PER_S = 30.0
TRICKLE_PER_S = 3.0


def under_load(replicas: list[RunningReplica], rate_per_s: float = RATE_PER_S) -> Crowd:
    return sessions([replica.url for replica in replicas], rate_per_s=rate_per_s)


async def recovered(load: Crowd, replicas: list[RunningReplica]) -> None:
    """Wait until all are well, under so little load that a busy machine itself makes no Redis late."""
    load.rate_per_s = TRICKLE_PER_S
    await until_async(lambda: all_well(replicas))
    load.rate_per_s = RATE_PER_S


async def all_degraded(replicas: list[RunningReplica], word: str = "") -> bool:
    reasons = [await replica.degraded() for replica in replicas]
    return all(reason and word in reason.lower() for reason in reasons)


async def all_well(replicas: list[RunningReplica]) -> bool:
    return all([await replica.degraded() is None for replica in replicas])


async def all_show(replicas: list[RunningReplica], degraded: int) -> bool:
    """True if all metrics say so: a moment after the event, and a busy machine makes any Redis late."""
    return all([await replica.metric(DEGRADED) == degraded for replica in replicas])


async def agree(start: Start, redis_url: str, replicas: list[RunningReplica], prompts: list[str]) -> None:
    """All replicas and one that joins now make the same decisions, and nothing is buffered."""
    assert prompts
    await settled(replicas)  # first, so that they do not learn from the newcomer
    together = [*replicas, await start(redis_url)]
    await settled(together)
    assert await disagreements(together, prompts) == []


@pytest.mark.parametrize("fault", cases(fault for fault in FAULTS if fault.lasting and not fault.half))
async def test_a_valkey_that_fails_for_a_while_costs_no_request_and_no_agreement(
    fault: Fault, start: Start
) -> None:
    async with staged(fault) as stage:
        replicas = await started(start, stage.url)
        async with under_load(replicas) as load:
            await load.completed(100)
            async with fault.strike(stage):
                await until_async(lambda: all_degraded(replicas, fault.word))
                await until_async(lambda: all_show(replicas, 1))
                await until(lambda: all(replica.events("redis.lost") for replica in replicas))
                await load.completed(60)
                assert await all_degraded(replicas)
            await recovered(load, replicas)
            await until(lambda: all(replica.events("redis.recovered") for replica in replicas))
            await load.completed(20)
        assert load.failed == []
        assert load.unsent == 0
        await until_async(lambda: all_show(replicas, 0))
        await agree(start, stage.url, replicas, load.prompts)


@pytest.mark.parametrize("fault", cases(fault for fault in FAULTS if not fault.lasting))
async def test_a_valkey_that_forgets_is_told_again(fault: Fault, start: Start) -> None:
    """A copy is made in the middle of the load: what comes behind it only the replicas remember.

    The replica that looks first notices a log emptied under load, and repairs it for the others.
    """
    async with staged(fault) as stage:
        replicas = await started(start, stage.url)
        async with under_load(replicas) as load:
            await load.completed(60)
            await stage.server.keep_copy()
            await load.completed(100)
            async with fault.strike(stage):
                await until(lambda: any(replica.events("redis.lost") for replica in replicas))
                await load.completed(60)
            await recovered(load, replicas)
            await load.completed(20)
        assert load.failed == []
        assert load.unsent == 0
        await agree(start, stage.url, replicas, load.prompts)


@pytest.mark.deep
async def test_what_a_full_buffer_dropped_is_counted_and_still_reaches_the_others(start: Start) -> None:
    """The smallest buffer holds 1000 operations: some 350 requests."""
    async with ValkeyServer() as server, TcpProxy(server.address) as proxy:
        replicas = await started(start, proxy.url, "--buffer-ops-max", "1000")

        async def overflowed() -> bool:
            return all([await replica.metric(DROPPED) > 0 for replica in replicas])

        async with under_load(replicas, rate_per_s=120) as load:
            await load.completed(50)
            proxy.blackhole()
            await until_async(overflowed)
            assert all([await replica.metric(BUFFERED) <= 1000 for replica in replicas])
            await proxy.heal()
            await recovered(load, replicas)
        assert load.failed == []
        await agree(start, proxy.url, replicas, load.prompts)
