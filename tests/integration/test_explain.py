"""Explanations on real sockets: each equals the next request's placement, from any replica.

Engines are as fast as a gateway believes before it has seen an answer, 20 ms and 15,000 tokens/s.
"""

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fakes.pairs import open_pairs
from fakes.running import Fleet, RunningGateway, until, warmed

from loadtest.engine import EngineSettings

ENGINE = EngineSettings(prefill_tokens_per_s=15_000, prefill_base_ms=20, tpot_ms=1.0)
SYSTEM = "You are a careful agent. " * 850
"""21 KB: some 5,300 tokens, 20 blocks."""


def chat(user: str, words: int = 50, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{user} {'word ' * words}"},
    ]
    return {"model": "emulated", "max_tokens": 2, "stream": True, "messages": messages, **more}


async def ask(gateway: RunningGateway, body: dict[str, Any]) -> str:
    """Send a request; return its worker."""
    answer = await gateway.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return answer.headers["x-cacheway-worker"]


async def explained(gateway: RunningGateway, body: dict[str, Any], **question: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/explain", json={"request": body, **question})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_what_is_explained_is_what_the_next_request_gets(fleet: Fleet) -> None:
    engines = [await fleet.engine(ENGINE) for _ in range(4)]
    gateway = await fleet.gateway(*[engine.url for engine in engines])
    await warmed(gateway.client)
    for number in range(8):
        body = chat(f"user {number % 3}")
        found = await explained(gateway, body)
        assert found["decision"]["outcome"] == "place"
        assert found["decision"]["worker"] == await ask(gateway, body)
        costs = [one["cost"] for one in found["candidates"]]
        assert costs == sorted(costs)
        await until(gateway.idle)
    assert found["candidates"][0]["matched_tokens"] > 5000
    assert all(one["lost_because"] for one in found["candidates"][1:])


async def test_decisions_shadow_and_tree_tell_of_the_same_traffic(fleet: Fleet) -> None:
    engines = [await fleet.engine(ENGINE) for _ in range(3)]
    gateway = await fleet.gateway(
        *[engine.url for engine in engines],
        placement={"shadow_policy": "least_load", "shadow_ratio": 1.0},
        fleet={"unlisted_models": "refuse"},
    )
    await warmed(gateway.client)
    for number in range(6):
        await ask(gateway, chat(f"user {number}"))
    await until(gateway.idle)
    assert (await gateway.client.post("/v1/chat/completions", json={"model": "none"})).status_code == 404

    said = (await gateway.client.get("/decisions?limit=7")).json()["decisions"]
    shadow = (await gateway.client.get("/shadow")).json()["models"]["emulated"]
    tree = (await gateway.client.get("/tree")).json()
    held = (await gateway.client.get("/tree/workers")).json()["workers"]

    assert [each["outcome"] for each in said] == ["model_not_found"] + ["completed"] * 6
    assert [each["reason"] for each in said[1:]] == ["affinity"] * 5 + ["cold"]
    assert shadow["judged"] == 6
    prefix = tree["prefixes"][0]
    assert prefix["requests"] == 6
    assert 20 <= prefix["blocks"] <= 21
    assert prefix["holders"] == [held[0]["worker"]]
    assert prefix["prefix"] == said[1]["prefix"]
    assert held[0]["held_tokens"] > 5000


async def test_every_replica_explains_what_the_others_placed(fleet: Fleet) -> None:
    """One replica serves a long prompt; the other explains that its worker has it, and rejects the rest."""
    engines = [await fleet.engine(ENGINE) for _ in range(2)]
    urls = [engine.url for engine in engines]
    one, other = await fleet.gateway(*urls), await fleet.gateway(*urls)
    for gateway in (one, other):
        await warmed(gateway.client)
    worker = await ask(one, chat("anybody"))
    await until(lambda: other.process.fleet.tree.blocks >= 20)
    found = await explained(other, chat("anybody"))
    assert (found["decision"]["worker"], found["decision"]["reason"]) == (worker, "affinity")
    (lost,) = [each["lost_because"] for each in found["candidates"] if each["worker"] != worker]
    assert "of prefill" in lost
    assert (await other.client.get("/decisions")).json()["decisions"] == []


async def test_a_drained_worker_and_a_busy_one_say_why_it_is_not_them(fleet: Fleet) -> None:
    slow = EngineSettings(prefill_base_ms=600_000, max_running=1)
    engines = [await fleet.engine(slow) for _ in range(2)]
    gateway = await fleet.gateway(*[engine.url for engine in engines], admission={"worker_running_max": 1})
    await warmed(gateway.client)
    first, second = [local.worker.worker_id for local in gateway.process.registry.all()]
    await gateway.client.put(f"/workers/{first}", json={"draining": True})
    tasks = [asyncio.create_task(ask(gateway, chat(f"{n} " * 5000))) for n in range(2)]
    try:
        await until(lambda: gateway.process.fleet.tickets.count)
        found = await explained(gateway, chat("next"))
        assert (found["decision"]["outcome"], found["decision"]["reason"]) == ("wait", "no_room")
        assert f"{second} has " in found["decision"]["why"]
        assert found["not_candidates"] == [
            {
                "worker": first,
                "reason": "draining",
                "detail": "it takes no new requests until it is put back in service",
            }
        ]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("protocol", ["sglang", "nixl"])
async def test_a_pair_is_explained_with_both_workers(protocol: str) -> None:
    async with open_pairs(protocol) as pairs:
        gateway = pairs.replicas["calm"]
        found = await explained(
            gateway, {**chat("pair"), "messages": [{"role": "user", "content": "x " * 3000}]}
        )
        prefill, decode = (
            {engine.url.removeprefix("http://") for engine in pairs.engines[role]}
            for role in ("prefill", "decode")
        )
        assert found["decision"]["outcome"] == "place"
        assert found["decision"]["worker"] in prefill
        assert found["decision"]["decode_worker"] in decode
        assert {one["worker"] for one in found["decode_candidates"]} == decode


PAGE = Path(__file__).parents[2] / "docs" / "explain.md"
ADMIN = "localhost:29100"


def commands() -> list[list[str]]:
    """The page's commands, as a shell would parse them."""
    lines = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


async def test_the_commands_of_the_page_work(fleet: Fleet) -> None:
    engine = await fleet.engine(ENGINE)
    gateway = await fleet.gateway(engine.url)
    await warmed(gateway.client)
    await ask(gateway, chat("anybody"))
    assert len(commands()) == 8
    (recent, *_) = (await gateway.client.get("/decisions")).json()["decisions"]
    for command in commands():
        name, silent, *options = command
        assert (name, silent) == ("curl", "-s")
        data = options[options.index("-d") + 1] if "-d" in options else None
        if data is not None:
            data = re.sub(r'("request_id": )"[^"]*"', rf'\1"{recent["request_id"]}"', data)
        (url,) = [option for option in options if option.startswith(ADMIN)]
        method = "POST" if data is not None or "-X" in options else "GET"
        answer = await gateway.client.request(method, url.removeprefix(ADMIN), content=data)
        assert answer.status_code == 200, (command, answer.text)
        assert answer.json()
