"""Replicas that start without their Redis serve at once, and share as soon as they can."""

import asyncio

from fakes.replicas import RunningReplica, Start
from fakes.running import until_async

from loadtest.chaos import ValkeyServer, disagreements, sessions, settled
from loadtest.processes import free_port


async def all_degraded(replicas: list[RunningReplica]) -> bool:
    return all([await replica.degraded() for replica in replicas])


async def started(start: Start, url: str) -> list[RunningReplica]:
    return list(await asyncio.gather(*(start(url, warm=False) for _ in range(2))))


async def test_a_redis_that_comes_after_the_replicas_is_used(start: Start) -> None:
    port = free_port()
    replicas = await started(start, f"redis://127.0.0.1:{port}")
    await until_async(lambda: all_degraded(replicas))
    async with sessions([replica.url for replica in replicas]) as load:
        await load.completed(100)
        assert await all_degraded(replicas)
        async with ValkeyServer(port=port) as server:
            await load.stop()
            assert load.failed == []
            await settled(replicas)
            assert await disagreements(replicas, load.prompts) == []
            newcomer = await start(server.url)
            await settled([*replicas, newcomer])
            assert await disagreements([*replicas, newcomer], load.prompts) == []


async def test_a_password_that_becomes_right_is_accepted(start: Start) -> None:
    async with ValkeyServer({"requirepass": "first"}) as server:
        replicas = await started(start, f"redis://:second@127.0.0.1:{server.port}")
        await until_async(lambda: all_degraded(replicas))
        async with sessions([replica.url for replica in replicas]) as load:
            await load.completed(60)
            assert await all_degraded(replicas)
            await server.require_password("second")
        assert load.failed == []
        await settled(replicas)
        assert await disagreements(replicas, load.prompts) == []
    for replica in replicas:
        log = b"".join(replica.process.output)  # type: ignore[attr-defined]
        assert b"second" not in log


async def test_a_host_that_has_no_address_degrades_and_nothing_else(start: Start) -> None:
    """The domain never exists (RFC 6761)."""
    replicas = await started(start, "redis://valkey.invalid:6379")
    await until_async(lambda: all_degraded(replicas))
    async with sessions([replica.url for replica in replicas]) as load:
        await load.completed(60)
        assert await all_degraded(replicas)
    assert load.failed == []
