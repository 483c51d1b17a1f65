"""Data-parallel ranks on real sockets: the gateway chooses them, and emulated engines obey."""

import asyncio
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest
from fakes.running import FAST_ENGINE, Fleet, RunningGateway, free_port, until, until_async

from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.kv_settings import KvEventsSettings

MODEL = "emulated"
RANKS = 2
LONG = "The quick brown fox jumps over the lazy dog. " * 400

Dialect = Literal["sglang", "vllm"]


def chat(*turns: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, **more}


async def ask(gateway: RunningGateway, *turns: str, **more: Any) -> httpx.Response:
    answer = await gateway.client.post("/v1/chat/completions", json=chat(*turns, **more))
    assert answer.status_code == 200, answer.text
    return answer


def ranked(dialect: Dialect, **more: Any) -> EngineSettings:
    return replace(FAST_ENGINE, dialect=dialect, dp_ranks=RANKS, cache_tokens=200_000, **more)


def rank_of(answer: httpx.Response) -> int:
    return int(answer.headers["x-cacheway-worker"].rpartition("@")[2])


async def parted(gateway: RunningGateway, ranks: int = RANKS) -> None:
    await until(lambda: [len(local.places) for local in gateway.process.registry.all()] == [ranks])


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_conversation_stays_at_its_rank_and_finds_its_cache_there(
    fleet: Fleet, dialect: Dialect
) -> None:
    engine = await fleet.engine(ranked(dialect))
    gateway = await fleet.gateway(engine.url)
    await parted(gateway)
    used = set()
    for number in range(8):
        first = f"conversation {number}. {LONG}"
        rank = rank_of(await ask(gateway, first))
        used.add(rank)
        again = await ask(gateway, first, "yes", f"more {LONG[:2000]}")
        assert rank_of(again) == rank
        reported = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reported >= 0.8 * (again.json()["usage"]["prompt_tokens"] - 600)
        assert int(again.headers["x-cacheway-cached-tokens"]) == pytest.approx(reported, abs=300)
    assert used == set(range(RANKS))
    assert all(rank.cache.held_tokens > 10_000 for rank in engine.scheduler.ranks)


async def test_generate_names_the_rank_in_its_body_and_a_client_cannot(fleet: Fleet) -> None:
    engine = await fleet.engine(ranked("sglang"))
    gateway = await fleet.gateway(engine.url)
    await parted(gateway)
    for number in range(4):
        before = [rank.cache.held_tokens for rank in engine.scheduler.ranks]
        text = f"prompt {number}. {LONG}"
        body = {"text": text, "sampling_params": {"max_new_tokens": 2}}
        refused = await gateway.client.post("/generate", json=body | {"routed_dp_rank": 1})
        assert refused.json()["error"]["code"] == "forbidden_field"
        answer = await gateway.client.post("/generate", json=body)
        assert answer.status_code == 200, answer.text
        after = [rank.cache.held_tokens for rank in engine.scheduler.ranks]
        grown = [number for number in range(RANKS) if after[number] > before[number]]
        assert grown == [rank_of(answer)]


async def test_pairs_name_both_ranks(fleet: Fleet) -> None:
    prefill = await fleet.engine(
        ranked("sglang", handover=HandoverSettings(protocol="sglang", part="prefill"))
    )
    decode = await fleet.engine(ranked("sglang", handover=HandoverSettings(protocol="sglang", part="decode")))
    gateway = await fleet.gateway()
    registry = gateway.process.registry
    registry.add(prefill.url, role="prefill")
    registry.add(decode.url, role="decode")
    await until(lambda: [len(local.places) for local in registry.all()] == [RANKS, RANKS])
    await until(lambda: len(registry.eligible(MODEL, gateway.process.gateway.log.now_us())) == RANKS)
    first = f"conversation. {LONG}"
    await ask(gateway, first)
    (rank,) = [rank.number for rank in prefill.scheduler.ranks if rank.cache.held_tokens]
    again = await ask(gateway, first, "yes", "more")
    assert [rank.number for rank in prefill.scheduler.ranks if rank.cache.held_tokens] == [rank]
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 3000


async def test_the_worker_is_drained_and_removed_with_its_ranks(fleet: Fleet) -> None:
    engines = [await fleet.engine(ranked("sglang")) for _ in range(2)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    registry = gateway.process.registry
    await until(lambda: [len(local.places) for local in registry.all()] == [RANKS, RANKS])
    gone, stays = (f"127.0.0.1:{engine.port}" for engine in engines)
    (shown,) = [
        each for each in (await gateway.client.get("/workers")).json()["workers"] if each["id"] == gone
    ]
    assert [each["id"] for each in shown["ranks"]] == [f"{gone}@0", f"{gone}@1"]
    assert [each["capacity_tokens"] for each in shown["ranks"]] == [shown["capacity_tokens"] // RANKS] * RANKS
    (await gateway.client.delete(f"/workers/{gone}?drain=true")).raise_for_status()
    for number in range(6):
        answer = await ask(gateway, f"{number} {LONG}")
        assert answer.headers["x-cacheway-worker"].startswith(f"{stays}@")
    await until(lambda: [local.worker.worker_id for local in registry.all()] == [stays])
    assert [worker.worker_id for worker in gateway.process.fleet.workers()] == [stays]


async def test_a_restarted_engine_may_have_other_ranks(fleet: Fleet) -> None:
    port = free_port()
    async with EmulatedEngine(ranked("sglang", port=port)) as engine:
        gateway = await fleet.gateway(engine.url)
        await parted(gateway)
        await ask(gateway, LONG)
    restarted = await fleet.engine(replace(ranked("sglang", port=port), dp_ranks=4, cache_tokens=400_000))
    await parted(gateway, 4)
    (local,) = gateway.process.registry.all()
    assert {place.capacity_tokens for place in local.places} == {restarted.settings.cache_tokens // 4}
    assert (await ask(gateway, LONG)).headers["x-cacheway-cached-tokens"] == "0"


async def test_without_dp_aware_the_engine_chooses(fleet: Fleet) -> None:
    engine = await fleet.engine(ranked("sglang"))
    gateway = await fleet.gateway(engine.url, fleet={"dp_aware": False})
    for number in range(4):
        answer = await ask(gateway, f"{number} {LONG}")
        assert answer.headers["x-cacheway-worker"] == f"127.0.0.1:{engine.port}"
    assert all(rank.cache.held_tokens for rank in engine.scheduler.ranks)  # in turn, with any blocks cached


async def test_the_load_of_each_rank_is_read(fleet: Fleet) -> None:
    engine = await fleet.engine(ranked("vllm", tpot_ms=5))
    gateway = await fleet.gateway(engine.url, admission={"engine_metrics_interval_s": 0.05})
    await parted(gateway)
    asked = asyncio.create_task(ask(gateway, "long", max_tokens=200))

    def seen() -> list[int]:
        reports = gateway.process.fleet.reports
        places = gateway.process.registry.all()[0].places
        found = [reports.get(place.worker_id) for place in places]
        return sorted(-1 if report is None else report.running for report in found)

    await until(lambda: seen() == [0, 1])
    await asked


async def test_the_events_of_a_rank_tell_what_that_rank_holds(fleet: Fleet) -> None:
    port = free_port()
    events = KvEventsSettings(f"tcp://*:{port}", f"tcp://*:{port + RANKS}")
    engine = await fleet.engine(ranked("vllm", models=("tiny",), kv_events=events))
    gateway = await fleet.gateway(fleet={"kv_events": "auto"}, placement={"block_tokens": 64})
    gateway.process.registry.add(
        engine.url,
        labels={
            "kv_events": f"tcp://127.0.0.1:{port}",
            "kv_replay": f"tcp://127.0.0.1:{port + RANKS}",
        },
    )
    await parted(gateway)
    process = gateway.process
    places = process.registry.all()[0].places

    await until(lambda: all(process.fleet.tracks(place.worker_id) for place in places), 20)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for rank, blocks in enumerate((10, 20)):
            body = {
                "model": "tiny",
                "prompt": list(range(1000 * rank, 1000 * rank + 64 * blocks)),
                "max_tokens": 1,
            }
            headers = {"x-data-parallel-rank": str(rank)}
            (await client.post(f"{engine.url}/v1/completions", json=body, headers=headers)).raise_for_status()

    async def told() -> bool:
        return [process.fleet.tree.held_blocks(place.slot) for place in places] == [10, 20]

    await until_async(told)
