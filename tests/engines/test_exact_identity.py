"""Prompts become the ids that a real engine makes of them, and what is predicted of them is what it reuses.

The gateway reads the tokenizer and the template from the model's folder, as vLLM does; `return_token_ids` of
vLLM tells what it made of the same request.
"""

import json
import random
from typing import Any

import httpx
from fakes.real_engines import pair_of, random_words
from fakes.running import Fleet, RunningGateway

from loadtest.vllm import MODEL_NAME, EnginesHome, VllmEngine
from loadtest.vllm.models import tiny_model
from radix import chain_token_ids
from router.gateway.endpoints import Endpoint
from router.gateway.identity import HASH_BYTES
from router.tenant import ANONYMOUS

BLOCK_TOKENS = 32
TEXTS = [
    *(
        "hello",
        "wörld ",
        "日本語",
        "\n",
        "  ",
        "🙂",
        "\t",
        "{}",
        '"quo\\te"',
        "\r\n",
        "'&<>",
        "ａ",
        "e\u0301",
    ),
    *("<|im_end|>", "<|im_start|>user\n", "<think>a\n</think>", "def f(x):\n    return x", "\u2028"),
]

pytestmark = pair_of("qwen3")


def folder() -> str:
    return str(tiny_model(EnginesHome.usual().models, "qwen3"))


async def gateway_with(tokenizer: str, fleet: Fleet, engines: list[VllmEngine]) -> RunningGateway:
    return await fleet.gateway(
        engines[0].url,
        placement={
            "block_tokens": BLOCK_TOKENS,
            "models": {MODEL_NAME: {"tokenizer": tokenizer}},
            "tokenizing_s_max": 30.0,
        },
    )


def text(chance: random.Random) -> str:
    return "".join(chance.choice(TEXTS) for _ in range(chance.randrange(1, 12)))


def content(chance: random.Random) -> Any:
    if chance.random() < 0.7:
        return text(chance)
    return [{"type": "text", "text": text(chance)} for _ in range(chance.randrange(1, 4))]


def call(chance: random.Random) -> dict[str, Any]:
    arguments = {text(chance): [chance.randrange(10**9), chance.random(), None, {"b": 1, "a": text(chance)}]}
    function = {"name": "look", "arguments": json.dumps(arguments, ensure_ascii=chance.random() < 0.5)}
    return {"type": "function", "id": f"c{chance.randrange(9)}", "function": function}


def chat(chance: random.Random) -> dict[str, Any]:
    """A conversation as agents have them: tools, calls, results, parts, thoughts, prefills."""
    messages: list[dict[str, Any]] = []
    if chance.random() < 0.6:
        messages.append({"role": chance.choice(["system", "developer"]), "content": content(chance)})
    for _ in range(chance.randrange(1, 4)):
        messages.append({"role": "user", "content": content(chance)})
        answer: dict[str, Any] = {"role": "assistant", "content": content(chance)}
        if chance.random() < 0.4:
            answer |= {"content": None, "tool_calls": [call(chance) for _ in range(chance.randrange(1, 3))]}
        if chance.random() < 0.3:
            answer["reasoning_content"] = text(chance)
        messages.append(answer)
        if "tool_calls" in answer:
            messages.append({"role": "tool", "tool_call_id": "c1", "content": content(chance)})
    messages.append({"role": "user", "content": content(chance)})
    body: dict[str, Any] = {"model": MODEL_NAME, "messages": messages, "max_tokens": 1}
    if chance.random() < 0.4:
        parameters = {"type": "object", "properties": {"q": {"type": "string", "description": text(chance)}}}
        body["tools"] = [{"type": "function", "function": {"parameters": parameters, "name": "look"}}]
        body["tool_choice"] = "none"
    if chance.random() < 0.2:
        messages.append({"role": "assistant", "content": text(chance) + "x"})
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    return body


async def made_by_engine(engine: VllmEngine, path: str, body: dict[str, Any]) -> list[int]:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=120.0) as client:
        answer = await client.post(path, json={**body, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    ids: list[int] = found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"]
    return ids


async def check(
    gateway: RunningGateway, engine: VllmEngine, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """See that the gateway finds the ids that the engine makes."""
    inside, sent = gateway.process.gateway, json.dumps(body).encode()
    assert inside.tokenizing is not None
    parsed = inside.parse(endpoint, sent, ANONYMOUS)
    found = await inside.tokenizing.now(parsed, sent)
    ids = await made_by_engine(engine, endpoint.value, body)
    path = chain_token_ids(ids, inside.hasher.engine_root(MODEL_NAME, ""), BLOCK_TOKENS)
    if len(ids) % BLOCK_TOKENS == 0:
        path = path[:-HASH_BYTES]
    assert (found.prompt_token_ids, found.paths) == (len(ids), (path,)), body


async def test_chats_have_the_ids_of_the_engine(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await gateway_with(folder(), fleet, engines)
    for _ in range(80):
        await check(gateway, engines[0], Endpoint.CHAT, chat(chance))


async def test_texts_have_the_ids_of_the_engine(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await gateway_with(folder(), fleet, engines)
    for added in (True, False) * 5:
        prompt = text(chance) + random_words(chance, 40)
        body = {"model": MODEL_NAME, "prompt": prompt, "add_special_tokens": added, "max_tokens": 1}
        await check(gateway, engines[0], Endpoint.COMPLETIONS, body)


async def test_an_engine_that_is_asked_says_the_same(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await gateway_with("engine", fleet, engines)
    for _ in range(20):
        await check(gateway, engines[0], Endpoint.CHAT, chat(chance))
    body = {"model": MODEL_NAME, "prompt": random_words(chance, 40), "max_tokens": 1}
    await check(gateway, engines[0], Endpoint.COMPLETIONS, body)


async def test_repeats_and_further_turns_reuse_what_is_predicted(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """To the token: in a dense model every full block before the last token is reused."""
    gateway = await gateway_with(folder(), fleet, engines)
    messages = [{"role": "user", "content": random_words(chance, 60)}]
    seen = []
    for turn in range(6):
        for _ in range(2):
            body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 1, "temperature": 0}
            answer = await gateway.client.post("/v1/chat/completions", json=body, timeout=120.0)
            usage = answer.json()["usage"]
            predicted = int(answer.headers["x-cacheway-cached-tokens"])
            seen.append((predicted, usage["prompt_tokens_details"]["cached_tokens"]))
            # A block that a prompt just fills is cached, but no repeat of it could reuse it.
            full = usage["prompt_tokens"] % BLOCK_TOKENS == 0
            messages = messages if not full else [*messages[:-1], {"role": "user", "content": "x" * turn}]
        messages = [
            *messages,
            {"role": "assistant", "content": random_words(chance, 5)},
            {"role": "user", "content": random_words(chance, 20)},
        ]
    assert seen[0] == (0, 0)
    assert all(predicted == cached for predicted, cached in seen), seen
    assert seen[-1][0] > 400
    assert not (await gateway.client.get("/metrics")).text.count("miscounts_total{")
