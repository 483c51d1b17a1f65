"""Half of the replicas cannot reach Valkey: both halves serve, and agree again when they can."""

import asyncio
import contextlib

import pytest
from fakes.replicas import RunningReplica, Start
from fakes.running import Fleet, until_async

from loadtest.chaos import TcpProxy, ValkeyServer, disagreements, sessions, settled
from loadtest.workload import MODEL


async def in_flight(replicas: list[RunningReplica]) -> list[int]:
    """How many requests each replica counts, over all replicas."""
    return [sum((await replica.loads()).values()) for replica in replicas]


@pytest.mark.deep
async def test_both_halves_serve_through_a_partition_and_agree_after_it(start: Start, fleet: Fleet) -> None:
    """The partition outlasts the heartbeat's two seconds: each half takes the other for dead.

    One stream at each replica runs from before it until after it. When it is healed, each of them is
    counted by all replicas, once; when they have ended, none is.
    """
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ValkeyServer())
        proxy = await stack.enter_async_context(TcpProxy(server.address))
        replicas = await asyncio.gather(*(start(url) for url in (server.url, proxy.url) * 2))
        inside, outside = replicas[::2], replicas[1::2]

        load = await stack.enter_async_context(sessions([replica.url for replica in replicas]))
        await load.completed(60)
        ended = asyncio.Event()
        streams = [asyncio.create_task(stream(replica, ended)) for replica in replicas]

        async def given_up(by: RunningReplica, names: list[str]) -> bool:
            return not set(names) & set((await by.shared())["replicas"])

        async def both_alone() -> bool:
            degraded = [await replica.degraded() for replica in replicas]
            alone = [await given_up(replica, [other.name for other in outside]) for replica in inside]
            return all(degraded[1::2]) and not any(degraded[::2]) and all(alone)

        proxy.blackhole()
        await until_async(both_alone)
        await load.completed(60)
        await proxy.refuse()
        await load.completed(60)
        assert await both_alone()
        await proxy.heal()

        async def together() -> bool:
            everybody = sorted(replica.name for replica in replicas)
            views = [await replica.shared() for replica in replicas]
            return all(view["degraded"] is None and view["replicas"] == everybody for view in views)

        await until_async(together)
        await load.completed(40)
        await load.stop()
        assert load.failed == []

        async def counted_once() -> bool:
            return await in_flight(replicas) == [len(streams)] * len(replicas)

        await until_async(counted_once)
        ended.set()
        assert all(await asyncio.gather(*streams))
        await settled(replicas)
        for replica in replicas:
            workers = (await replica.client.get("/workers")).json()["workers"]
            assert len(workers) == len(fleet.engines)
            assert {(worker["inflight_tokens"], worker["backlog_s"]) for worker in workers} == {(0, 0.0)}
        assert await disagreements(replicas, load.prompts) == []


async def stream(replica: RunningReplica, ended: asyncio.Event) -> bool:
    """A stream that its client leaves when told to; whether it was still running then."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"as long as it takes, {replica.name}"}],
        "max_tokens": 60_000,
        "ignore_eos": True,
        "stream": True,
    }
    async with replica.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if ended.is_set():
                return line != "data: [DONE]"
    return False
