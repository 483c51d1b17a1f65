"""Replicas as separate processes: each learns all that one of them learns."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes.running import Fleet, serving, until_async, warmed

from loadtest.client import LoadClient, Outcome
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.ideal import IdealCache
from loadtest.replay import replay
from loadtest.workload import MODEL, WorkloadShape, agent_sessions

ENGINE = EngineSettings(
    models=(MODEL,), prefill_tokens_per_s=400_000, prefill_base_ms=1, tpot_ms=0.2, cache_tokens=150_000
)
"""Times short enough for a test, and caches that hold the whole workload only together."""

WORKLOAD = WorkloadShape(sessions=24, start_window_s=0.5, turns=(4, 7), think_s=0.01)

TEXT = "The quick brown fox jumps over the lazy dog. "


@contextlib.asynccontextmanager
async def replica(
    fleet: Fleet, namespace: str, *worker_urls: str, flags: tuple[str, ...] = ()
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """A replica that is ready and in step with its siblings, and a client of it."""
    shared = ("--snapshot-interval-secs", "1")
    async with serving(fleet.redis_url, namespace, worker_urls, *shared, *flags) as (process, client):
        await warmed(client)
        yield process, client


def urls(engines: list[EmulatedEngine]) -> list[str]:
    return [engine.url for engine in engines]


async def hit_rate(fleet: Fleet, engines: list[EmulatedEngine], replicas: int) -> float:
    """Replay the workload on empty caches: cached over prompt tokens, as the engines report them."""
    namespace = f"{fleet.namespace}-{replicas}"
    outcomes: list[Outcome] = []
    async with contextlib.AsyncExitStack() as stack:
        running = await asyncio.gather(
            *(stack.enter_async_context(replica(fleet, namespace, *urls(engines))) for _ in range(replicas))
        )
        clients = [client for _, client in running]
        assert (await clients[0].post("/flush_cache")).json()["failed"] == {}
        unsent = await replay(
            agent_sessions(WORKLOAD, seed=1),
            [str(client.base_url).rstrip("/") for client in clients],
            await stack.enter_async_context(LoadClient()),
            IdealCache(ENGINE.block_tokens),
            lambda sample: outcomes.append(sample.outcome),
            inflight_max=1,
        )
    assert unsent == 0
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    return sum(o.cached_tokens for o in outcomes) / sum(o.prompt_tokens for o in outcomes)


async def test_turns_sent_to_alternating_replicas_hit_as_often_as_with_one(fleet: Fleet) -> None:
    """129 requests of 24 sessions, one at a time, so that a miss is a replica that did not know.

    The hit rate is 0.84; replicas that share nothing reach 0.62. A request that reaches a replica on a busy
    machine before the log does costs 0.01.
    """
    engines = [await fleet.engine(ENGINE) for _ in range(4)]
    alone = await hit_rate(fleet, engines, 1)
    together = await hit_rate(fleet, engines, 4)
    assert alone > 0.75
    assert together == pytest.approx(alone, abs=0.03)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


async def decision(client: httpx.AsyncClient, text: str) -> tuple[str, int]:
    """Return a replica's placement of a prompt, and the part that it expects to be cached there.

    Ask once the replica has heard that its siblings' requests have ended: a reservation counts for longer
    than two requests to two replicas, one after the other, take.
    """

    async def idle() -> bool:
        loads = (await client.get("/get_loads")).json()["loads"]
        return all(load["load"] == 0 for load in loads)

    await until_async(idle)
    answer = await client.post("/v1/chat/completions", json=chat(text))
    assert answer.status_code == 200
    return answer.headers["x-cacheway-worker"], int(answer.headers["x-cacheway-cached-tokens"])


@pytest.mark.deep
async def test_a_fresh_replica_decides_like_its_siblings(fleet: Fleet) -> None:
    """Workers differ only in their caches: no congestion, which would change while the replicas are compared.

    A prompt that was sent before is held by one worker and stays so. After a known start, each replica gets
    its own new end, longer than the block of 1 KiB. Cold prompts are made cold again before the second
    replica is asked.
    """
    engines = [await fleet.engine(ENGINE) for _ in range(4)]
    same = ("--congestion-max", "0")
    async with contextlib.AsyncExitStack() as stack:
        start = functools.partial(replica, fleet, fleet.namespace, *urls(engines), flags=same)
        (_, sibling), (_, other) = [await stack.enter_async_context(start()) for _ in range(2)]
        prompts = [f"{number} " + TEXT * (40 * number) for number in range(1, 13)]
        placed = [
            (await decision((sibling, other)[number % 2], prompt))[0] for number, prompt in enumerate(prompts)
        ]
        assert len(set(placed)) > 1

        async def snapshot_written() -> bool:
            return (await sibling.get("/readiness")).json()["shared"]["snapshot_age_s"] is not None

        await until_async(snapshot_written)
        _, newcomer = await stack.enter_async_context(start())
        for prompt, worker in zip(prompts, placed, strict=True):
            known = await decision(sibling, prompt)
            assert known[0] == worker
            assert known[1] >= len(prompt) / 4 - 2 * 256
            assert await decision(newcomer, prompt) == known
            longer = await decision(sibling, prompt + "one " * 1000)
            assert longer[0] == worker
            assert await decision(newcomer, prompt + "two " * 1000) == longer

        async def empty(client: httpx.AsyncClient) -> bool:
            workers = (await client.get("/workers")).json()["workers"]
            return all(worker["held_tokens"] == 0 for worker in workers)

        for number in range(6):
            cold = f"cold {number} " + TEXT * 100
            chosen = []
            for client in (sibling, newcomer):
                assert (await sibling.post("/flush_cache")).json()["failed"] == {}
                await until_async(functools.partial(empty, client))
                chosen.append(await decision(client, cold))
            assert chosen[0] == chosen[1]
            assert chosen[0][1] == 0
