"""LoRA adapters on emulated engines that load them as vLLM and SGLang do, for one gateway and for two."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fakes.running import FAST_ENGINE, Fleet, RunningGateway, until, until_async

from loadtest.engine import EmulatedEngine
from router.models import ModelReader

DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "sglang"])
NAMES = "abcdef"
ENGINES, WORKERS, HELD = 4, 2, 3
"""Engines; workers of each adapter; most adapters of a worker: 12 of 12 places are wanted, unevenly."""


async def engines_of(fleet: Fleet, dialect: Any, number: int, **more: Any) -> list[EmulatedEngine]:
    settings = replace(
        FAST_ENGINE, dialect=dialect, models=("m",), enable_lora=True, lora_load_ms=5.0, **more
    )
    return [await fleet.engine(settings) for _ in range(number)]


async def gateway_of(
    fleet: Fleet, engines: list[EmulatedEngine], names: str, held: int, workers: int = 1
) -> RunningGateway:
    adapters = {name: {"path": f"/adapters/{name}", "base": "m", "workers": workers} for name in names}
    rules = {"adapters": adapters, "adapters_per_worker_max": held}
    gateway = await fleet.gateway(*(engine.url for engine in engines), models=rules)
    registry = gateway.process.registry
    await until(lambda: all(local.models and local.engine for local in registry.all()))
    await until(lambda: len(registry.eligible("m", registry.now_us())) == len(engines))
    return gateway


async def ask(gateway: RunningGateway, name: str, text: str = "hello") -> httpx.Response:
    body = {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return await gateway.client.post("/v1/chat/completions", json=body)


def loaded(engine: EmulatedEngine) -> list[str]:
    return list(engine.adapters.listed())


def wanted(gateway: RunningGateway, name: str) -> set[str]:
    reader = gateway.process.gateway.reader
    assert isinstance(reader, ModelReader)
    assert reader.adapters is not None
    return {local.worker.url for local in reader.adapters.wanted(name)}


@DIALECTS
async def test_adapters_are_loaded_where_they_should_be_and_a_worker_holds_few(
    fleet: Fleet, dialect: str
) -> None:
    """All adapters are asked for in no order; each answer is its adapter's, from one of its workers."""
    engines = await engines_of(fleet, dialect, ENGINES)
    gateway = await gateway_of(fleet, engines, NAMES, HELD, WORKERS)
    chance = random.Random(7)
    names = [chance.choice(NAMES) for _ in range(60)]
    for batch in (names[:20], names[20:40], names[40:]):
        answers = await asyncio.gather(*(ask(gateway, name, f"{name} " * 100) for name in batch))
        for name, answer in zip(batch, answers, strict=True):
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == (name if dialect == "vllm" else f"m:{name}")
            assert f"http://{answer.headers['x-cacheway-worker']}" in wanted(gateway, name)
        assert all(len(loaded(engine)) <= HELD for engine in engines)
    await until(gateway.idle)
    places = Counter(name for engine in engines for name in loaded(engine))
    assert all(engine.url in wanted(gateway, name) for engine in engines for name in loaded(engine)), places
    assert await base_is_served(gateway)


async def base_is_served(gateway: RunningGateway) -> bool:
    return (await ask(gateway, "m")).status_code == 200


@DIALECTS
async def test_the_adapter_used_longest_ago_is_unloaded_and_comes_back(fleet: Fleet, dialect: str) -> None:
    (engine,) = await engines_of(fleet, dialect, 1)
    gateway = await gateway_of(fleet, [engine], "abc", 2)
    for name in "abac":
        assert (await ask(gateway, name)).status_code == 200
    assert sorted(loaded(engine)) == ["a", "c"]
    assert (await ask(gateway, "b")).status_code == 200
    assert sorted(loaded(engine)) == ["b", "c"]
    stats = engine.adapters.stats()
    assert (stats["loads"], stats["unloads"], stats["reloads"]) == (4, 2, 0)


@DIALECTS
async def test_each_adapter_has_a_cache_of_its_own(fleet: Fleet, dialect: str) -> None:
    (engine,) = await engines_of(fleet, dialect, 1)
    gateway = await gateway_of(fleet, [engine], "ab", 2)

    async def cached(name: str) -> int:
        usage = (await ask(gateway, name, "word " * 500)).json()["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    for name in ("m", "a", "b"):
        assert [await cached(name) > 0 for _ in range(2)] == [False, True]


@DIALECTS
async def test_a_request_in_flight_keeps_its_adapter_and_ends(fleet: Fleet, dialect: str) -> None:
    """The long one began first, so its adapter would go by its age."""
    (engine,) = await engines_of(fleet, dialect, 1, tpot_ms=5.0)
    gateway = await gateway_of(fleet, [engine], "abc", 2)
    body = {"model": "a", "prompt": "x" * 400, "max_tokens": 100, "ignore_eos": True}
    long = asyncio.create_task(gateway.client.post("/v1/completions", json=body))
    await until(lambda: engine.scheduler.running == 1)
    for name in "bc":
        assert (await ask(gateway, name)).status_code == 200
    assert long.done() or sorted(loaded(engine)) == ["a", "c"]
    assert (await long).status_code == 200


async def test_what_a_sibling_uses_stays_loaded(fleet: Fleet) -> None:
    """This replica used ``a`` first, its sibling uses it now; so ``b`` goes."""
    (engine,) = await engines_of(fleet, "vllm", 1)
    one, other = [await gateway_of(fleet, [engine], "abc", 2) for _ in range(2)]
    for name in "ab":
        assert (await ask(one, name)).status_code == 200
    registry = other.process.registry
    await until(lambda: registry.lists("a") and registry.lists("b"))
    uses = one.process.models.loader.uses
    before = await uses.newest("ab")
    assert before["a"] < before["b"]
    assert (await ask(other, "a")).status_code == 200

    async def is_told() -> bool:
        newest = await uses.newest("ab")
        return newest["a"] > newest["b"]

    await until_async(is_told)
    assert (await ask(one, "c")).status_code == 200
    assert sorted(loaded(engine)) == ["a", "c"]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_where_adapters_take_turns_no_request_meets_an_engine_without_its_adapter(
    fleet: Fleet, replicas: int
) -> None:
    """One place for three adapters: vLLM would answer 404 to a request that comes behind an unload."""
    (engine,) = await engines_of(fleet, "vllm", 1)
    gateways = [await gateway_of(fleet, [engine], "abc", 1) for _ in range(replicas)]
    for gateway in gateways:
        await until(lambda gateway=gateway: len(gateway.process.shared.status.replicas) == replicas)

    statuses: list[int] = []

    async def client(number: int) -> None:
        chance = random.Random(number)
        for _ in range(3):
            answer = await ask(chance.choice(gateways), chance.choice("abc"))
            statuses.append(answer.status_code)

    await asyncio.gather(*(client(number) for number in range(4)))
    assert statuses == [200] * 12
    assert engine.adapters.stats()["unloads"] > 0


async def test_an_adapter_that_is_wanted_while_a_sibling_unloads_it_is_loaded_again(fleet: Fleet) -> None:
    (engine,) = await engines_of(fleet, "vllm", 1)
    one, other = [await gateway_of(fleet, [engine], "ab", 1) for _ in range(2)]
    for gateway in (one, other):
        await until(lambda gateway=gateway: len(gateway.process.shared.status.replicas) == 2)
    assert (await ask(one, "a")).status_code == 200
    unloading = asyncio.create_task(ask(one, "b"))
    await until(lambda: one.process.gateway.registry.withheld)
    statuses = [(await ask(other, "a")).status_code]
    statuses.append((await unloading).status_code)
    statuses.append((await ask(other, "a")).status_code)
    assert statuses == [200] * 3


@DIALECTS
async def test_an_adapter_without_files_is_told_with_the_engines_reason(fleet: Fleet, dialect: str) -> None:
    (engine,) = await engines_of(fleet, dialect, 1)
    adapters = {"lost": {"path": "/missing/lost", "base": "m"}}
    gateway = await fleet.gateway(engine.url, models={"adapters": adapters})
    await until(lambda: all(local.models and local.engine for local in gateway.process.registry.all()))
    answer = await ask(gateway, "lost")
    assert answer.status_code == 503
    assert "No adapter found for /missing/lost" in answer.json()["error"]["message"]
    assert await base_is_served(gateway)
