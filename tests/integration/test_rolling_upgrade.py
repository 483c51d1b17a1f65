"""Two versions of the gateway on one log: the older one serves on, and says what it did not understand."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes.running import Fleet, serving, until_async, warmed
from redis.asyncio import Redis

from loadtest.engine import EngineSettings
from policies import FleetState

ENGINE = EngineSettings(prefill_tokens_per_s=1e6, prefill_base_ms=1, tpot_ms=0.2)
TEXT = "The quick brown fox jumps over the lazy dog. "

CURRENT = ("-m", "router")
NEXT = (
    "-c",
    """
import sys
import msgspec
from policies import FleetState, Placed
from policies.fleet import fleet
from policies.state import ops, snapshot
from router.shared import placed_forms
from router.__main__ import main
from router.shared import SharedState

class Novelty(msgspec.Struct, frozen=True, array_like=True, tag=99, gc=False):
    subject: str
    at_us: int

ops._ops = ops.OpDecoder((*ops.OP_KINDS, Novelty))
placed_forms._decoder = ops.OpDecoder((*placed_forms.ENTRY_KINDS, Novelty))
fleet.SNAPSHOT_VERSION = snapshot.SNAPSHOT_VERSION = snapshot.SNAPSHOT_VERSION + 1

class NextFleetState(FleetState):
    snapshot_version = fleet.SNAPSHOT_VERSION

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.handlers[Novelty] = lambda op: None

class NextSharedState(SharedState):
    def publish(self, op, *more):
        super().publish(op, *more)
        if isinstance(op, Placed):
            super().publish(Novelty(op.request_id, op.at_us))

import router.app
router.app.FleetState, router.app.SharedState = NextFleetState, NextSharedState
sys.exit(main())
""",
)
"""The next version: it has an operation more, says it for every request, and writes snapshots of its own."""


@contextlib.asynccontextmanager
async def replica(
    fleet: Fleet, program: tuple[str, ...], *worker_urls: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """A replica of a version that is ready and warm, and a client of it."""
    flags = ("--snapshot-interval-secs", "1", "--congestion-max", "0")
    async with serving(fleet.redis_url, fleet.namespace, worker_urls, *flags, program=program) as running:
        await warmed(running[1])
        yield running


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """A metric, added up over its labels."""
    lines = (await client.get("/metrics")).text.splitlines()
    prefixes = (f"cacheway_{name} ", f"cacheway_{name}{{")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(prefixes))


async def decision(client: httpx.AsyncClient, text: str) -> tuple[str, int]:
    """Where a replica sends a prompt, and how much it expects to be cached there; asked while all is idle."""

    async def idle() -> bool:
        loads = (await client.get("/get_loads")).json()["loads"]
        return all(load["load"] == 0 for load in loads)

    await until_async(idle)
    body: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json={**body, "max_tokens": 4})
    assert answer.status_code == 200
    return answer.headers["x-cacheway-worker"], int(answer.headers["x-cacheway-cached-tokens"])


@pytest.mark.parametrize("first", ["current", "next"])
async def test_two_versions_on_one_log_place_the_same_and_the_older_one_counts_what_it_skips(
    fleet: Fleet, first: str
) -> None:
    """Whichever was there first, as in an upgrade and its undoing. 12 prompts, each asked of both, twice."""
    urls = [(await fleet.engine(ENGINE)).url for _ in range(4)]
    programs = {"current": CURRENT, "next": NEXT}
    order = [first, *(programs.keys() - {first})]
    async with contextlib.AsyncExitStack() as stack:
        clients: dict[str, httpx.AsyncClient] = {}
        for version in order:
            _, clients[version] = await stack.enter_async_context(replica(fleet, programs[version], *urls))
        current, newer = clients["current"], clients["next"]
        prompts = [f"{number} " + TEXT * (40 * number) for number in range(1, 13)]
        for number, prompt in enumerate(prompts):
            pair = (current, newer) if number % 2 else (newer, current)
            before = await metric(pair[1], "ops_applied_total")
            worker, _ = await decision(pair[0], prompt)

            async def heard(sibling: httpx.AsyncClient = pair[1], before: float = before) -> bool:
                return await metric(sibling, "ops_applied_total") > before

            await until_async(heard)
            known = await decision(pair[1], prompt)
            assert known[0] == worker
            assert known[1] >= len(prompt) / 4 - 2 * 256
            assert await decision(pair[0], prompt) == known

        async def counted() -> bool:
            """One operation for each request that the newer version placed, one or two for a prompt."""
            return await metric(current, "ops_skipped_total") == 6 * 2 + 6

        await until_async(counted)
        assert await metric(newer, "ops_skipped_total") == 0


async def test_a_snapshot_of_the_next_version_is_left_alone_and_refused_loudly(fleet: Fleet) -> None:
    """The older replica looks every second; the newer one is seen to write three times."""
    urls = [(await fleet.engine(ENGINE)).url]
    key = f"cw:{{{fleet.namespace}}}:snap"
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(fleet.redis_url))
        _, current = await stack.enter_async_context(replica(fleet, CURRENT, *urls))
        _, newer = await stack.enter_async_context(replica(fleet, NEXT, *urls))
        seen: list[bytes] = []

        async def written_by_the_newer_one() -> bool:
            version, at_us = await redis.hmget(key, "v", "at")
            if version == str(FleetState.snapshot_version + 1).encode() and at_us not in seen:
                seen.append(at_us)
            assert not seen or version == str(FleetState.snapshot_version + 1).encode()
            return len(seen) == 3

        await until_async(written_by_the_newer_one)
        process, late = await stack.enter_async_context(replica(fleet, CURRENT, *urls))
        assert await metric(late, "snapshots_refused_total") == 1
        refused: list[dict[str, object]] = []

        async def told() -> bool:
            lines = [json.loads(line) for line in process.output]  # type: ignore[attr-defined]
            refused[:] = [line for line in lines if line.get("event") == "snapshot.refused"]
            return bool(refused)

        await until_async(told)
        assert [(line["reason"], line["version"], line["version_read"]) for line in refused] == [
            ("version", FleetState.snapshot_version + 1, FleetState.snapshot_version)
        ]
        for client in (current, newer, late):
            assert (await decision(client, TEXT))[0]
