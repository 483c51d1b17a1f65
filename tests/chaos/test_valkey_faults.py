"""Whatever happens to Valkey: no request fails, it is seen at once, and afterwards all agree again.

Two replicas under load, one fault, recovery; then a third joins, which knows only what is in Valkey.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from fakes.replicas import RunningReplica, Start
from fakes.running import until, until_async

from loadtest.chaos import SentinelGroup, SteadyLoad, TcpProxy, ValkeyServer, disagreements, settled

Fault = Callable[[ValkeyServer, TcpProxy], AbstractAsyncContextManager[None]]

METRIC = 'cacheway_degraded{component="redis"}'


@contextlib.asynccontextmanager
async def killed_and_restarted_empty(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    await server.kill()
    yield
    await server.start()


@contextlib.asynccontextmanager
async def killed_and_restarted_with_its_data(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    """All that was written is in the append-only file; what was buffered there meanwhile comes on top."""
    await server.command("CONFIG", "SET", "appendfsync", "always")
    await server.command("CONFIG", "SET", "appendonly", "yes")
    await server.command("CONFIG", "REWRITE")
    await server.kill()
    yield
    await server.start()


@contextlib.asynccontextmanager
async def paused(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    server.pause()
    yield
    server.resume()


@contextlib.asynccontextmanager
async def out_of_memory(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    await server.configure(maxmemory=1)
    yield
    await server.configure(maxmemory=0)


@contextlib.asynccontextmanager
async def read_only(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    """As a demoted primary is; it keeps what it has."""
    await server.read_only()
    yield
    await server.read_only(on=False)


@contextlib.asynccontextmanager
async def without_its_replicas(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    await server.configure(min_replicas_to_write=1)
    yield
    await server.configure(min_replicas_to_write=0)


@contextlib.asynccontextmanager
async def refusing_the_password(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    await server.require_password("another")
    yield
    await server.require_password("")


@contextlib.asynccontextmanager
async def slow(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    """Every answer comes 100 ms late."""
    proxy.delay_s = 0.05
    yield
    proxy.delay_s = 0.0


@contextlib.asynccontextmanager
async def silent_network(server: ValkeyServer, proxy: TcpProxy) -> AsyncIterator[None]:
    proxy.blackhole()
    yield
    await proxy.heal()


LASTING: list[tuple[Fault, str]] = [
    (killed_and_restarted_empty, ""),
    (killed_and_restarted_with_its_data, ""),
    (paused, ""),
    (out_of_memory, "memory"),
    (read_only, "read"),
    (without_its_replicas, "replicas"),
    (refusing_the_password, "auth"),
    (slow, "slow"),
    (silent_network, ""),
]


@pytest.fixture
async def server() -> AsyncIterator[ValkeyServer]:
    async with ValkeyServer() as server:
        yield server


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(server.address) as proxy:
        yield proxy


async def started(start: Start, redis_url: str, *flags: str) -> list[RunningReplica]:
    return list(await asyncio.gather(*(start(redis_url, *flags) for _ in range(2))))


async def all_degraded(replicas: list[RunningReplica], word: str = "") -> bool:
    reasons = [await replica.degraded() for replica in replicas]
    return all(reason and word in reason.lower() for reason in reasons)


async def all_well(replicas: list[RunningReplica]) -> bool:
    return all([await replica.degraded() is None for replica in replicas])


async def agree(start: Start, redis_url: str, replicas: list[RunningReplica], prompts: list[str]) -> None:
    """All replicas and one that joins now make the same decisions, and nothing is buffered."""
    assert prompts
    await settled(replicas)
    assert await disagreements(replicas, prompts) == []
    together = [*replicas, await start(redis_url)]
    await settled(together)
    assert await disagreements(together, prompts) == []


@pytest.mark.parametrize(("fault", "word"), LASTING, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_valkey_that_fails_for_a_while_costs_no_request_and_no_agreement(
    fault: Fault, word: str, server: ValkeyServer, proxy: TcpProxy, start: Start
) -> None:
    """The reason is named where it is not simply that nobody answers."""
    replicas = await started(start, proxy.url)
    async with SteadyLoad([replica.url for replica in replicas]) as load:
        await load.completed(100)
        async with fault(server, proxy):
            await until_async(lambda: all_degraded(replicas, word))
            assert [await replica.metric(METRIC) for replica in replicas] == [1, 1]
            await until(lambda: all(replica.events("redis.lost") for replica in replicas))
            await load.completed(60)
            assert await all_degraded(replicas)
        await until_async(lambda: all_well(replicas))
        assert [await replica.metric(METRIC) for replica in replicas] == [0, 0]
        await until(lambda: all(replica.events("redis.recovered") for replica in replicas))
        await load.completed(20)
    assert load.failed == []
    assert load.unsent == 0
    await agree(start, proxy.url, replicas, load.prompts)


async def flushed(server: ValkeyServer) -> None:
    await server.command("FLUSHALL")


async def rolled_back(server: ValkeyServer) -> None:
    await server.roll_back()


@pytest.mark.parametrize("lose", [flushed, rolled_back])
async def test_a_valkey_that_forgets_is_told_again(
    lose: Callable[[ValkeyServer], AbstractAsyncContextManager[None]],
    server: ValkeyServer,
    proxy: TcpProxy,
    start: Start,
) -> None:
    """The copy is of the first half of the load; the replicas alone know the second."""
    replicas = await started(start, proxy.url)
    async with SteadyLoad([replica.url for replica in replicas]) as load:
        await load.completed(60)
        await server.keep_copy()
        await load.completed(100)
        await lose(server)
        await until(lambda: all(replica.events("redis.lost") for replica in replicas))
        await load.completed(60)
        await until_async(lambda: all_well(replicas))
    assert load.failed == []
    await agree(start, proxy.url, replicas, load.prompts)


async def test_a_sentinel_failover_costs_no_request_and_no_agreement(start: Start) -> None:
    """Replication is asynchronous: what the primary had acknowledged last, its successor may never see."""
    async with SentinelGroup(replicas=1) as group:
        replicas = await started(start, group.url)
        async with SteadyLoad([replica.url for replica in replicas]) as load:
            await load.completed(100)
            first = await group.primary()
            await first.kill()
            await until_async(lambda: all_degraded(replicas))
            await load.completed(60)
            assert await group.primary() is not first
            await until_async(lambda: all_well(replicas), within_s=30)
            await load.completed(20)
        assert load.failed == []
        await agree(start, group.url, replicas, load.prompts)


async def test_what_a_full_buffer_dropped_is_counted_and_still_reaches_the_others(
    server: ValkeyServer, proxy: TcpProxy, start: Start
) -> None:
    """The smallest buffer holds 1000 operations: some 350 requests."""
    replicas = await started(start, proxy.url, "--buffer-ops-max", "1000")
    dropped = "cacheway_ops_dropped_total"

    async def overflowed() -> bool:
        return all([await replica.metric(dropped) > 0 for replica in replicas])

    async with SteadyLoad([replica.url for replica in replicas], rate_per_s=150) as load:
        await load.completed(50)
        server.pause()
        await until_async(overflowed, within_s=60)
        assert all([await replica.metric("cacheway_log_buffered_ops") <= 1000 for replica in replicas])
        server.resume()
        await until_async(lambda: all_well(replicas))
    assert load.failed == []
    await agree(start, proxy.url, replicas, load.prompts)
