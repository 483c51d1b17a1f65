"""A client's view of a real engine through the gateway: its limits, its errors, and leaving it."""

import asyncio
import functools
import json
import random
from math import inf
from typing import Any

import httpx
import pytest
from fakes.real_engines import pair_of, random_ids, random_words
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.vllm import MODEL_NAME, VllmEngine

pytestmark = pair_of("gemma3")

TIMEOUT_S = 120.0
FREED_WITHIN_S = 1.0
TRIES = 5
LONG_ANSWER = 2000


def completion(prompt: object, **more: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": 4, "temperature": 0, **more}


async def total(engines: list[VllmEngine], metric: str) -> float:
    return sum(await asyncio.gather(*(engine.metric(metric) for engine in engines)))


async def running(engines: list[VllmEngine]) -> float:
    """Requests that the engines run or keep waiting."""
    return await total(engines, "vllm:num_requests_running") + await total(
        engines, "vllm:num_requests_waiting"
    )


async def generated(engines: list[VllmEngine]) -> float:
    return await total(engines, "vllm:generation_tokens_total")


async def more_generated(engines: list[VllmEngine], before: float) -> bool:
    return await generated(engines) > before


async def until_idle(engines: list[VllmEngine]) -> float:
    """Wait until the engines are idle; return the seconds, including those of the queries."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def idle() -> bool:
        return await running(engines) == 0

    await until_async(idle, within_s=30)
    return loop.time() - began_s


async def direct(engine: VllmEngine, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
    return await _posted(httpx.AsyncClient(base_url=engine.url, trust_env=False), path, body)


async def posted(gateway: RunningGateway, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
    return await _posted(httpx.AsyncClient(base_url=gateway.url, trust_env=False), path, body)


async def _posted(client: httpx.AsyncClient, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client:
        headers = {"content-type": "application/json"}
        return await client.post(path, content=content, headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine_within_a_second(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, stream: bool
) -> None:
    """Engines stop early; the time to query them is subtracted, since a busy machine makes it long.

    The fastest of a few tries counts, and one in which the engine computed the whole answer does not: a tiny
    model needs a second or two for it, in which a busy machine may not run the engine's front end. The first
    answer of an engine does not count: it loads modules late, while it computes all tokens.
    """
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    for engine in engines:
        client = httpx.AsyncClient(base_url=engine.url, trust_env=False)
        await _posted(client, "/v1/completions", completion(random_ids(chance, 10), stream=stream))
    await until_idle(engines)
    freed_s = []
    for _ in range(TRIES):
        before = await generated(engines)
        body = completion(random_ids(chance, 100), max_tokens=LONG_ANSWER, ignore_eos=True, stream=stream)
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=TIMEOUT_S) as client:
            request = client.build_request("POST", "/v1/completions", json=body)
            asking = asyncio.create_task(client.send(request, stream=True), name="a client that leaves")
            if stream:
                answer = await asking
                await anext(answer.aiter_lines())
                await answer.aclose()
            else:
                await until_async(functools.partial(more_generated, engines, before), within_s=30)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        took_s, asked_s = await until_idle(engines), await until_idle(engines)
        whole = await generated(engines) - before >= LONG_ANSWER
        freed_s.append(inf if whole else took_s - asked_s)
        await until(gateway.idle)
        if freed_s[-1] < FREED_WITHIN_S:
            break
    assert min(freed_s) < FREED_WITHIN_S, freed_s


async def test_a_client_that_leaves_in_the_middle_of_a_prefill_frees_the_engine(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """Twelve long prompts, so that some are prefilled and the others wait in the engine."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    length = await engines[0].max_model_tokens() - LONG_ANSWER - 1
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=TIMEOUT_S) as client:
        asking = [
            asyncio.create_task(
                client.post(
                    "/v1/completions", json=completion(random_ids(chance, length), max_tokens=LONG_ANSWER)
                )
            )
            for _ in range(12)
        ]

        async def busy() -> bool:
            return await running(engines) > 0

        await until_async(busy, within_s=30)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    await until_idle(engines)
    await until(gateway.idle)


LONG = [7] * 40_000

BAD: dict[str, tuple[str, dict[str, Any] | bytes]] = {
    "a prompt that is too long": ("/v1/completions", completion(LONG)),
    "a chat that is too long": ("/v1/chat/completions", chat("word " * 40_000)),
    "an answer that would be too long": ("/v1/completions", completion([7] * 50, max_tokens=40_000)),
    "a temperature below zero": ("/v1/chat/completions", chat("text", temperature=-1)),
    "no answers at all": ("/v1/completions", completion("text", n=0)),
    "no messages": ("/v1/chat/completions", {"model": MODEL_NAME}),
    "an unknown role": (
        "/v1/chat/completions",
        {"model": MODEL_NAME, "messages": [{"role": "nobody", "content": "text"}], "max_tokens": 0},
    ),
    "a token that the vocabulary does not have": ("/v1/completions", completion([10**6])),
    "a schema that is none": (
        "/v1/chat/completions",
        chat(
            "text",
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}},
        ),
    ),
    "an empty prompt": ("/v1/completions", completion([])),
    "a stream that cannot begin": ("/v1/completions", completion(LONG, stream=True)),
}


@pytest.mark.parametrize("what", BAD)
async def test_errors_of_the_engine_reach_the_client_as_they_are(
    fleet: Fleet, engines: list[VllmEngine], what: str
) -> None:
    """The fault is the request's: the gateway asks one worker, once, and counts no failure of it."""
    path, body = BAD[what]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    said = await direct(engines[0], path, body)
    passed = await posted(gateway, path, body)
    assert 400 <= said.status_code < 500, said.text
    assert passed.status_code == said.status_code, passed.text
    assert passed.content == said.content
    assert passed.headers["content-type"] == said.headers["content-type"]
    metrics = (await gateway.client.get("/metrics")).text
    assert not any(
        line.startswith("cacheway_redispatches_total") and not line.endswith(" 0.0")
        for line in metrics.splitlines()
    )
    workers = (await gateway.client.get("/workers")).json()["workers"]
    assert [worker["state"] for worker in workers] == ["healthy", "healthy"]


@pytest.mark.parametrize("body", [b"{", chat("text", max_tokens="many"), {"messages": []}], ids=str)
async def test_a_body_that_cannot_be_placed_has_the_status_that_an_engine_gives_it(
    fleet: Fleet, engines: list[VllmEngine], body: dict[str, Any] | bytes
) -> None:
    """The gateway needs a request's model and length, and reports their errors itself, in the same shape."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    said = await direct(engines[0], "/v1/chat/completions", body)
    refused = await posted(gateway, "/v1/chat/completions", body)
    assert refused.status_code == said.status_code == 400
    assert refused.json()["error"].keys() >= {"message", "type", "param", "code"}


async def test_many_bad_requests_eject_nobody(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    for _ in range(20):
        bad = await posted(gateway, "/v1/completions", completion("text", temperature=-1))
        assert bad.status_code == 400
    good = await posted(gateway, "/v1/completions", completion(random_ids(chance, 50)))
    assert good.status_code == 200


@pytest.mark.parametrize("beyond", [-1, 0, 1])
async def test_a_prompt_of_the_models_whole_length_is_answered_and_one_beyond_is_refused(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, beyond: int
) -> None:
    """With the one token of an answer, the prompt has as many tokens as the model; fewer; one more."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    limit = await engines[0].max_model_tokens()
    body = completion(random_ids(chance, limit - 1 + beyond), max_tokens=1)
    passed = await posted(gateway, "/v1/completions", body)
    assert passed.status_code == (200 if beyond <= 0 else 400), passed.text
    if beyond <= 0:
        assert passed.json()["usage"]["prompt_tokens"] == limit - 1 + beyond
    else:
        assert passed.content == (await direct(engines[0], "/v1/completions", body)).content


async def test_a_chat_of_the_models_whole_length_is_answered_and_one_beyond_is_refused(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """The template's tokens count, too. A special token stays one token beside any text."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    limit = await engines[0].max_model_tokens()

    text = random_words(chance, limit // 10)
    counted = await posted(gateway, "/tokenize", chat(text))
    text += "<|bos|>" * (limit - 1 - counted.json()["count"])
    answered = await posted(gateway, "/v1/chat/completions", chat(text, max_tokens=1))
    assert answered.status_code == 200, answered.text
    assert answered.json()["usage"]["prompt_tokens"] == limit - 1
    beyond = chat(text + "<|bos|>", max_tokens=1)
    refused = await posted(gateway, "/v1/chat/completions", beyond)
    assert refused.status_code == 400
    assert refused.content == (await direct(engines[0], "/v1/chat/completions", beyond)).content


async def test_an_answer_that_ends_by_itself_is_as_long_as_the_model_allows(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """The request gives no length: the engine fills the context, and reports it."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    limit = await engines[0].max_model_tokens()
    body = completion(random_ids(chance, limit - 20), max_tokens=None, ignore_eos=True)
    answer = (await posted(gateway, "/v1/completions", body)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] in (
        limit - 4,
        limit,
    )  # without a number it is 16, as in OpenAI's API
