"""A worker gets another role while requests go on: real sockets, vLLM engines that can do either."""

import asyncio
import json
from typing import Any

import httpx
from fakes.running import Fleet, RunningGateway, until_async

from loadtest.engine import EngineSettings
from loadtest.engine.handover import HandoverSettings

WORDS = "The quick brown fox jumps over the lazy dog. " * 100

CLIENTS = 24


def engine_settings() -> EngineSettings:
    """One prefills some 20 prompts a second, and decodes far more than that."""
    return EngineSettings(
        dialect="vllm",
        tpot_ms=2.0,
        max_running=16,
        handover=HandoverSettings(protocol="nixl", part="both"),
    )


async def send(gateway: RunningGateway, number: int) -> str:
    """One request with a long prompt of its own; how it ended."""
    body = {
        "model": "emulated",
        "messages": [{"role": "user", "content": f"{number} {WORDS}"}],
        "max_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    if answer.status_code != 200 or not lines or lines[-1] != "data: [DONE]":
        return f"{answer.status_code} {lines[-1:]}"
    errors = [line for line in lines[:-1] if "error" in json.loads(line.removeprefix("data: "))]
    return errors[0] if errors else "done"


async def roles(gateway: RunningGateway) -> dict[str, Any]:
    answer = await gateway.client.get("/roles")
    view: dict[str, Any] = answer.json()
    return view


async def test_a_decode_worker_comes_to_prefill_where_prefill_is_short_and_no_request_is_lost(
    fleet: Fleet,
) -> None:
    """One worker prefills for three; after eleven seconds of leading and 200 requests the loop acts."""
    engines = [await fleet.engine(engine_settings()) for _ in range(4)]
    limits = "convertible=true max_running_requests=16"
    gateway = await fleet.gateway(
        fleet={
            "prefill": [f"{engines[0].url} none {limits}"],
            "decode": [f"{engine.url} {limits}" for engine in engines[1:]],
        },
        roles={"mode": "apply", "interval_s": 1.0, "dwell_s_min": 0.0},
    )
    gateway.client.timeout = httpx.Timeout(60)
    ends: list[str] = []
    over = asyncio.Event()

    async def client(first: int) -> None:
        for number in range(first, 10**6, CLIENTS):
            if over.is_set():
                return
            ends.append(await send(gateway, number))

    async def prefill_workers() -> int:
        view = await roles(gateway)
        return sum(one["role"] == "prefill" and one["serves"] for one in view["workers"])

    async with asyncio.TaskGroup() as clients:
        for first in range(CLIENTS):
            clients.create_task(client(first))

        async def turned() -> bool:
            return await prefill_workers() > 1

        await until_async(turned, within_s=60)
        over.set()
    assert set(ends) == {"done"}
    assert set((await roles(gateway))["plan"]["turned"].values()) == {"prefill"}
