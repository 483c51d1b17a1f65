"""Engines' reports and behaviour, and the load that they are given: real sockets, emulated engines."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
from fakes.running import FAST_ENGINE, Fleet, RunningGateway, until

MODEL = "emulated"
LOOKING = {"engine_metrics_interval_s": 0.05}


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


async def ask(gateway: RunningGateway, text: str, **more: Any) -> httpx.Response:
    answer = await gateway.client.post("/v1/chat/completions", json=chat(text, **more))
    assert answer.status_code == 200, answer.text
    return answer


async def test_all_replicas_know_what_one_of_them_read(fleet: Fleet) -> None:
    engine = await fleet.engine(replace(FAST_ENGINE, max_running=2, tpot_ms=5))
    gateways = [await fleet.gateway(engine.url, admission=LOOKING) for _ in range(2)]
    worker_id = f"127.0.0.1:{engine.port}"
    asked = asyncio.create_task(ask(gateways[0], "long", max_tokens=200))

    def running(gateway: RunningGateway) -> bool:
        known = gateway.process.fleet.reports.get(worker_id)
        return known is not None and (known.running, known.running_max) == (1, 2)

    await until(lambda: all(running(gateway) for gateway in gateways))
    for gateway in gateways:
        (slot,) = [worker.slot for worker in gateway.process.fleet.workers()]
        assert gateway.process.gateway.placing.admission.running_max(slot) == 2
    metrics = (await gateways[0].client.get("/metrics")).text
    assert f'cacheway_worker_reported_running_requests{{worker="{worker_id}"}} 1.0' in metrics
    assert f'cacheway_worker_running_max_requests{{worker="{worker_id}"}} 2.0' in metrics
    await asked


async def test_what_an_engine_could_not_run_waits_here_and_not_there(fleet: Fleet) -> None:
    engine = await fleet.engine(replace(FAST_ENGINE, max_running=2, tpot_ms=5))
    gateway = await fleet.gateway(engine.url, admission=LOOKING)
    (slot,) = [worker.slot for worker in gateway.process.fleet.workers()]
    await ask(gateway, "first")
    await until(lambda: gateway.process.gateway.placing.admission.running_max(slot) == 2)
    asked = [asyncio.create_task(ask(gateway, f"{number}", max_tokens=100)) for number in range(5)]
    await until(lambda: len(gateway.process.gateway.placing.room) == 3)
    assert engine.scheduler.waiting == 0
    await asyncio.gather(*asked)
    assert engine.scheduler.running_max == 2
    await until(gateway.idle)


async def test_followers_find_what_their_leader_computed(fleet: Fleet) -> None:
    """1,500 tokens in steps of 1,024: a request that joined the second step would compute a third again."""
    engine = await fleet.engine(
        replace(FAST_ENGINE, prefill_tokens_per_s=10_000, chunk_tokens=1024, dialect="sglang")
    )
    gateway = await fleet.gateway(engine.url)
    await ask(gateway, "hello")
    text = "The quick brown fox jumps over the lazy dog. " * 130
    leader = asyncio.create_task(ask(gateway, text))
    await until(lambda: engine.scheduler.running > 0)
    answers = await asyncio.gather(*(ask(gateway, f"{text} {number}") for number in range(5)))
    await leader
    for answer in answers:
        usage = answer.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.95 * usage["prompt_tokens"] - 16, usage
    await until(gateway.idle)
