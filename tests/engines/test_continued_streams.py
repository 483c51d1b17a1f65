"""A stream of a real vLLM that is killed on the way: another one writes the rest, as the first would have.

Weights are noise, and noise spells words with odd tokens, which a tokenizer would cut otherwise. So the
answers are made of tokens that are a whole word with its space: these are cut again as they were.
"""

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.real_engines import pair_of, random_words
from fakes.running import Fleet, RunningGateway, until

from loadtest.vllm import MODEL_NAME, EnginesHome, VllmServer

TIMEOUT_S = 120.0
TOKENS = 300
KILLED_AFTER = 25
PLACEMENT = {"policy": "round_robin"}
ASKS = {"x-cacheway-continue": "true"}


def words() -> list[int]:
    """Ids of tokens that are a space and a word."""
    path = EnginesHome.usual().models / "qwen3" / "tokenizer.json"
    vocabulary: dict[str, int] = json.loads(Path(path).read_bytes())["model"]["vocab"]
    return [number for token, number in vocabulary.items() if token[0] == "Ġ" and token[1:].isalpha()]


def body_of(chance: random.Random, *, chat: bool) -> dict[str, Any]:
    text = random_words(chance, 60)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    return {
        **asked,
        "model": MODEL_NAME,
        "max_tokens": TOKENS,
        "temperature": 0,
        "allowed_token_ids": words(),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def text_of(chunk: dict[str, Any]) -> str:
    if not chunk.get("choices"):
        return ""
    choice = chunk["choices"][0]
    text: str = choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text


async def uninterrupted(server: VllmServer, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=TIMEOUT_S) as client:
        plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        answer = (await client.post(path_of(body), json=plain)).json()
    choice = answer["choices"][0]
    return choice.get("text") or choice["message"]["content"], answer["usage"]


async def killed_on_the_way(
    gateway: RunningGateway, body: dict[str, Any], servers: list[VllmServer], *, core_alone: bool = False
) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Return the text, the chunks and all lines of a stream whose engine is killed after some pieces."""
    text, chunks, lines = "", [], []
    pieces = 0
    async with gateway.client.stream(
        "POST", path_of(body), json=body, headers=ASKS, timeout=TIMEOUT_S
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["x-cacheway-continue"] == "true"
        (victim,) = (each for each in servers if each.url.endswith(answer.headers["x-cacheway-worker"]))
        async for line in answer.aiter_lines():
            lines.append(line)
            if not line.startswith("data: {"):
                continue
            chunks.append(json.loads(line.removeprefix("data: ")))
            text += text_of(chunks[-1])
            pieces += bool(text_of(chunks[-1]))
            if pieces == KILLED_AFTER:
                pieces += 1
                if core_alone:
                    kill_core(victim)
                else:
                    await victim.kill()
    return text, chunks, lines


def kill_core(server: VllmServer) -> None:
    """Kill the engine core: the API server lives on for a moment, and says so in its streams."""
    cores = [
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if each.name.isdigit() and is_core(each, session=server.pid)
    ]
    assert cores
    for core in cores:
        os.kill(core, signal.SIGKILL)


def is_core(process: Path, *, session: int) -> bool:
    try:
        name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
    except OSError:  # it has ended
        return False
    return "EngineCor" in name and int(fields.split()[3]) == session


@pair_of("qwen3")
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
async def test_the_text_is_that_of_one_engine(
    chat: bool, servers: list[VllmServer], fleet: Fleet, chance: random.Random
) -> None:
    gateway = await in_front_of(fleet, servers)
    body = body_of(chance, chat=chat)
    (wanted, usage), (same, _) = await asyncio.gather(*(uninterrupted(each, body) for each in servers))
    assert wanted == same
    text, chunks, lines = await killed_on_the_way(gateway, body, servers)
    assert text == wanted
    assert ": continued" in lines
    assert lines.count("data: [DONE]") == 1
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    (counts,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert counts["prompt_tokens"] == usage["prompt_tokens"]
    assert counts["completion_tokens"] == usage["completion_tokens"] == TOKENS
    recent, _ = gateway.process.gateway.reports.decisions.since(0)
    assert (recent[-1].outcome, recent[-1].continued) == ("completed", 1)
    await until(gateway.idle)


async def in_front_of(fleet: Fleet, servers: list[VllmServer]) -> RunningGateway:
    gateway = await fleet.gateway(*(each.url for each in servers), placement=PLACEMENT)
    registry = gateway.process.registry
    await until(lambda: all(local.models for local in registry.all()))
    await until(lambda: len(registry.eligible(None, registry.now_us())) == len(servers))
    return gateway


@pair_of("qwen3")
async def test_an_engine_whose_core_died_says_so_in_its_stream(
    servers: list[VllmServer], fleet: Fleet, chance: random.Random
) -> None:
    """Its API server ends the stream well formed, with an error event."""
    gateway = await in_front_of(fleet, servers)
    body = body_of(chance, chat=True)
    wanted, _ = await uninterrupted(servers[0], body)
    text, _, lines = await killed_on_the_way(gateway, body, servers, core_alone=True)
    assert (text, lines.count("data: [DONE]")) == (wanted, 1)
    await until(gateway.idle)
