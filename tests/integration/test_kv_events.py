"""Replicas share the engines' reports of their caches, and survive the replica that listens."""

import contextlib
from pathlib import Path
from typing import Any

import httpx
from fakes.running import Fleet, serving, until_async, warmed

from loadtest.engine import EngineSettings
from loadtest.engine.kv_settings import KvEventsSettings

FLAGS = ("--kv-events", "auto", "--block-tokens", "64", "--heartbeat-ttl-secs", "2")


async def held_tokens(client: httpx.AsyncClient) -> int:
    """Return the tokens that a replica believes the only worker holds."""
    (worker,) = (await client.get("/workers")).json()["workers"]
    return int(worker["held_tokens"])


async def state(client: httpx.AsyncClient) -> str:
    """Return how far a replica follows the only worker; empty if it does not."""
    (worker,) = (await client.get("/kv_events")).json()["workers"]
    return str(worker["followed"]["state"]) if worker["followed"] else ""


async def prompted(url: str, first: int) -> None:
    """Ask the engine itself, past the gateway: only its events can report it."""
    body: dict[str, Any] = {"model": "tiny", "prompt": list(range(first, first + 640)), "max_tokens": 1}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        (await client.post(f"{url}/v1/completions", json=body)).raise_for_status()


async def test_all_replicas_know_what_one_hears_and_another_one_listens_when_it_is_killed(
    fleet: Fleet, tmp_path: Path
) -> None:
    events = KvEventsSettings(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    engine = await fleet.engine(EngineSettings(models=("tiny",), dialect="vllm", kv_events=events))
    async with contextlib.AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(serving(fleet.redis_url, fleet.namespace, [engine.url], *FLAGS))
            for _ in range(2)
        ]
        for _, client in replicas:
            await warmed(client)
        labels = {"kv_events": events.endpoint, "kv_replay": str(events.replay_endpoint)}
        worker_id = engine.url.removeprefix("http://")
        (await replicas[0][1].patch(f"/workers/{worker_id}", json={"labels": labels})).raise_for_status()

        async def live() -> bool:
            return sorted([await state(client) for _, client in replicas]) == ["", "live"]

        await until_async(live)
        await prompted(engine.url, 1_000)

        async def all_know() -> bool:
            return all([await held_tokens(client) == 640 for _, client in replicas])

        await until_async(all_know)
        (owner,) = [each for each in replicas if await state(each[1]) == "live"]
        (survivor,) = (client for each, client in replicas if each is not owner[0])
        owner[0].kill()
        await owner[0].wait()

        async def taken_over() -> bool:
            return await state(survivor) == "live"

        await until_async(taken_over)
        await prompted(engine.url, 5_000)

        async def knows() -> bool:
            return await held_tokens(survivor) == 1280

        await until_async(knows)

        async def tracks() -> bool:
            (worker,) = (await survivor.get("/workers")).json()["workers"]
            return bool(worker["evidence"] == "events")

        await until_async(tracks)
