"""Engines die, come back, drain and differ, while clients ask: none of them notices."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fakes.real_engines import engines_with, pair_of, random_ids
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.vllm import MODEL_NAME, VllmEngine, VllmServer, VllmSettings

TIMEOUT_S = 120.0
CLIENTS = 4
SMALL, LARGE = 1024, 4096

QUICK = {"health_check_interval_s": 0.5, "slow_start_s": 0.0}
"""The gateway notices a dead engine soon, and a recovered one takes its share at once."""


def completion(prompt: list[int], **more: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}


def named(engine: VllmEngine) -> str:
    """The engine's id at the gateway."""
    return engine.url.removeprefix("http://")


@dataclass
class Load:
    """Clients that each repeat one prompt all the time, and their results."""

    gateway: RunningGateway
    chance: random.Random
    answered: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator["Load"]:
        """Ask until the block ends, then wait for the requests in flight."""
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._ask(ended), name=f"client {number}")
            try:
                yield self
            finally:
                ended.set()

    async def _ask(self, ended: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=self.gateway.url, trust_env=False, timeout=TIMEOUT_S) as client:
            while not ended.is_set():
                body = completion(random_ids(self.chance, 150))
                answer = await client.post("/v1/completions", json=body)
                if answer.status_code == 200:
                    self.answered[answer.headers["x-cacheway-worker"]] += 1
                else:
                    self.refused.append(answer.text)

    async def reaches(self, engine: VllmEngine) -> None:
        """Wait until an engine answers some of the clients."""
        before = self.answered[named(engine)]
        await until(lambda: self.answered[named(engine)] > before + 2, within_s=60)


async def state_of(gateway: RunningGateway, engine: VllmEngine) -> str:
    return str((await gateway.client.get(f"/workers/{named(engine)}")).json()["state"])


async def asked(gateway: RunningGateway, prompt: list[int], **more: Any) -> httpx.Response:
    body = completion(prompt, **more)
    return await gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S)


def cached_tokens(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.deep
@pair_of("gemma3")
async def test_an_engine_that_is_killed_under_load_costs_no_request_and_comes_back_empty(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    """The gateway forgets the engine's cache: the same prompt counts there as one never seen."""
    gateway = await fleet.gateway(*(server.url for server in servers), fleet=QUICK)
    prompt = random_ids(chance, 320)
    warm = await asked(gateway, prompt)
    (victim,) = [server for server in servers if named(server) == warm.headers["x-cacheway-worker"]]
    (other,) = [server for server in servers if server is not victim]
    again = await asked(gateway, prompt)
    assert again.headers["x-cacheway-worker"] == named(victim)
    assert int(again.headers["x-cacheway-cached-tokens"]) > 0
    assert cached_tokens(again) > 0

    async with Load(gateway, chance).going_on() as load:
        await load.reaches(victim)
        await load.reaches(other)
        await victim.kill()

        async def noticed() -> bool:
            return await state_of(gateway, victim) != "healthy"

        await until_async(noticed, within_s=30)
        await load.reaches(other)
        await victim.start()
        await load.reaches(victim)
    assert load.refused == []

    await gateway.client.post(f"/workers/{named(other)}/drain")
    cold = await asked(gateway, prompt)
    assert cold.headers["x-cacheway-worker"] == named(victim)
    assert cold.headers["x-cacheway-cached-tokens"] == "0"
    assert cached_tokens(cold) == 0
    warm = await asked(gateway, prompt)
    assert int(warm.headers["x-cacheway-cached-tokens"]) > 0
    assert cached_tokens(warm) > 0


@pytest.mark.deep
@pair_of("gemma3")
async def test_a_stream_of_an_engine_that_is_killed_ends_with_an_error(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    """The stream has begun, so the client gets an error; the next request goes to another engine."""
    gateway = await fleet.gateway(*(server.url for server in servers), fleet=QUICK)
    body = completion(random_ids(chance, 100), max_tokens=3000, ignore_eos=True, stream=True)
    async with gateway.client.stream("POST", "/v1/completions", json=body, timeout=TIMEOUT_S) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        (victim,) = [server for server in servers if named(server) == answer.headers["x-cacheway-worker"]]
        await victim.kill()
        rest = [line async for line in lines if line]
    assert '"error"' in rest[-1]
    assert "data: [DONE]" not in rest
    answered = await asked(gateway, random_ids(chance, 100))
    assert answered.status_code == 200
    assert answered.headers["x-cacheway-worker"] != named(victim)


@pair_of("gemma3")
async def test_an_engine_that_drains_under_load_finishes_what_it_has_and_gets_nothing_new(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await fleet.gateway(*(engine.url for engine in engines), fleet=QUICK)
    leaving, staying = engines
    async with Load(gateway, chance).going_on() as load:
        await load.reaches(leaving)
        await load.reaches(staying)
        body = completion(random_ids(chance, 100), max_tokens=200, ignore_eos=True, stream=True)
        for _ in range(50):  # until one of them has its stream where we want it
            async with gateway.client.stream(
                "POST", "/v1/completions", json=body, timeout=TIMEOUT_S
            ) as answer:
                if answer.headers["x-cacheway-worker"] != named(leaving):
                    body = completion(random_ids(chance, 100), max_tokens=200, ignore_eos=True, stream=True)
                    continue
                lines = answer.aiter_lines()
                await anext(lines)
                await gateway.client.delete(f"/workers/{named(leaving)}", params={"drain": "true"})
                rest = [line async for line in lines if line]
                break
        assert rest[-1] == "data: [DONE]"

        async def gone() -> bool:
            return (await gateway.client.get(f"/workers/{named(leaving)}")).status_code == 404

        await until_async(gone, within_s=30)
        assert await leaving.metric("vllm:num_requests_running") == 0
        before = load.answered[named(leaving)]
        await load.reaches(staying)
        assert load.answered[named(leaving)] == before
    assert load.refused == []


@pytest.mark.parametrize("labelled", [True, False])
@engines_with(VllmSettings(max_model_tokens=SMALL), VllmSettings(max_model_tokens=LARGE))
async def test_a_long_prompt_goes_only_where_it_fits(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random, labelled: bool
) -> None:
    """The gateway decides by length buckets, or without any by the engines' own ``max_model_len``."""
    small, large = servers
    buckets = {"length_buckets": (SMALL, LARGE)} if labelled else {}
    gateway = await fleet.gateway(*(server.url for server in servers), fleet=QUICK, placement=buckets)
    if labelled:
        for server, bucket in zip(servers, "01", strict=True):
            changed = await gateway.client.put(
                f"/workers/{named(server)}", json={"labels": {"bucket": bucket}}
            )
            assert changed.is_success, changed.text
    takers: Counter[str] = Counter()
    for _ in range(6):
        answer = await asked(gateway, random_ids(chance, SMALL + 100))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-cacheway-worker"] == named(large)
        short = await asked(gateway, random_ids(chance, 200))
        assert short.status_code == 200
        takers[short.headers["x-cacheway-worker"]] += 1
    assert takers[named(small)] > 0

    long_answer = await asked(gateway, random_ids(chance, SMALL - 10), max_tokens=20)
    assert long_answer.status_code == 200, long_answer.text
    for_nobody = await asked(gateway, random_ids(chance, LARGE + 1))
    assert for_nobody.status_code == 400
    assert str(LARGE) in for_nobody.json()["error"]["message"]
