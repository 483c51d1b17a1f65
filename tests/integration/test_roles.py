"""A worker gets another role while requests go on: real sockets, vLLM engines and SGLang engines."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.engine import EngineSettings
from loadtest.engine.handover import HandoverSettings
from loadtest.processes import free_port
from policies import turn_of
from router.pairs.role_planner import TURN

WORDS = "The quick brown fox jumps over the lazy dog. " * 100

CLIENTS = 24


def engine_settings() -> EngineSettings:
    """An engine that prefills some 20 prompts a second, and decodes far more."""
    return EngineSettings(
        dialect="vllm",
        tpot_ms=2.0,
        max_running=16,
        handover=HandoverSettings(protocol="nixl", part="both"),
    )


async def send(gateway: RunningGateway, number: int, tokens: int = 12) -> str:
    """Send one request with a unique long prompt; return its result."""
    body = {
        "model": "emulated",
        "messages": [{"role": "user", "content": f"{number} {WORDS}"}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    if answer.status_code != 200 or not lines or lines[-1] != "data: [DONE]":
        return f"{answer.status_code} {lines[-1:]}"
    errors = [line for line in lines[:-1] if "error" in json.loads(line.removeprefix("data: "))]
    return errors[0] if errors else "done"


async def view(gateway: RunningGateway) -> dict[str, Any]:
    answer = await gateway.client.get("/roles")
    told: dict[str, Any] = answer.json()
    return told


async def keep_asking(
    ask: Callable[[int], Awaitable[str]], first: int, ends: list[str], over: asyncio.Event
) -> None:
    """Send every `CLIENTS`-th request, one after the other, and note each result."""
    for number in range(first, 10**6, CLIENTS):
        if over.is_set():
            return
        ends.append(await ask(number))


async def two_prefill(gateway: RunningGateway) -> bool:
    """True if more than one worker takes prefills."""
    told = await view(gateway)
    return sum(one["role"] == "prefill" and one["serves"] for one in told["workers"]) > 1


async def test_a_worker_turns_though_the_leader_is_gone_half_way_and_no_request_is_lost(
    fleet: Fleet,
) -> None:
    """One worker prefills for three, and the leader serves no client.

    The loop acts after 200 requests, of which every tenth keeps its worker for 4 s.
    """
    engines = [await fleet.engine(engine_settings()) for _ in range(4)]
    limits = "convertible=true max_running_requests=16"
    workers = {
        "prefill": [f"{engines[0].url} none {limits}"],
        "decode": [f"{engine.url} {limits}" for engine in engines[1:]],
    }
    loop = {"mode": "apply", "interval_s": 1.0, "dwell_s_min": 0.0}
    gateways = [await fleet.gateway(fleet=workers, roles=loop) for _ in range(2)]
    await until(lambda: all(len(one.process.shared.status.replicas) == 2 for one in gateways))
    leader, serving = sorted(gateways, key=lambda one: one.process.replica != leads(gateways))
    serving.client.timeout = httpx.Timeout(60)
    ends: list[str] = []
    over = asyncio.Event()

    async def ask(number: int) -> str:
        return await send(serving, number, 2_000 if number % 10 == 0 else 12)

    async def turning() -> bool:
        return any("turning_to" in one for one in (await view(serving))["workers"])

    turned = partial(two_prefill, serving)

    async def led() -> bool:
        return bool((await view(serving))["plan"]["replica"] == serving.process.replica)

    async with asyncio.TaskGroup() as clients:
        for first in range(CLIENTS):
            clients.create_task(keep_asking(ask, first, ends, over))
        await until_async(turning, within_s=60)
        assert not await turned()
        leader.server.should_exit = True
        await leader.task
        fleet.gateways.remove(leader)  # it hears of no later ends
        await until_async(turned, within_s=60)
        await until_async(led, within_s=60)
        over.set()
    assert set(ends) == {"done"}
    plan = (await view(serving))["plan"]
    assert set(plan["turned"].values()) == {"prefill"}


async def test_an_sglang_engine_takes_another_part_and_no_request_is_lost(fleet: Fleet) -> None:
    """One worker prefills for two; the engine gets /pd_role_switch, and its cache is forgotten."""
    engines = [
        await fleet.engine(
            EngineSettings(
                tpot_ms=2.0,
                max_running=16,
                handover=HandoverSettings(protocol="sglang", part=part, port=free_port(), switches=True),
            )
        )
        for part in ("prefill", "decode", "decode")
    ]
    limits = "convertible=true max_running_requests=16"
    workers = {
        "prefill": [f"{engines[0].url} {engines[0].handover.port} {limits}"],
        "decode": [f"{engine.url} {limits}" for engine in engines[1:]],
    }
    loop = {"mode": "apply", "interval_s": 1.0, "dwell_s_min": 0.0}
    gateway = await fleet.gateway(fleet=workers, roles=loop)
    gateway.client.timeout = httpx.Timeout(60)
    ends: list[str] = []
    over = asyncio.Event()

    async with asyncio.TaskGroup() as clients:
        for first in range(CLIENTS):
            clients.create_task(keep_asking(partial(send, gateway), first, ends, over))
        await until_async(partial(two_prefill, gateway), within_s=90)
        after = len(ends)
        await until(lambda: len(ends) > after + 100)
        over.set()
    assert set(ends) == {"done"}
    (new,) = [engine for engine in engines[1:] if engine.role == "prefill"]
    assert new.stats()["prefill_busy_s"] > 0


def leads(gateways: list[RunningGateway]) -> str:
    """Return the replica whose turn it is."""
    names = tuple(one.process.replica for one in gateways)
    return min(names, key=lambda name: turn_of(TURN, name, names))
