"""Workers that fail, restart, return and leave, in front of several replicas at once.

What was said is read from the log itself, in the order in which all replicas heard it.
"""

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest
from fakes.running import FAST_ENGINE, Fleet, RunningGateway, until, until_async
from redis.asyncio import Redis

from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.engine.faults import Fault
from policies import Circuit, CircuitSet, Finished, Forget, Left, Op, Placed, Started, decode_ops
from router.fleet import Health

TEXT = "The quick brown fox jumps over the lazy dog. " * 40

SECTIONS: dict[str, dict[str, Any]] = {
    "placement": {"policy": "round_robin", "block_tokens": 16},
    "reliability": {
        "cb_failure_threshold": 3,
        "cb_success_threshold": 2,
        "cb_timeout_duration_secs": 1.0,
        "retry_budget_ratio": 1.0,
    },
    "fleet": {"slow_start_s": 0.0},
}

SLOW_ENGINE = EngineSettings(prefill_tokens_per_s=1e7, prefill_base_ms=0.1, tpot_ms=20, block_tokens=16)
"""A stream of 60 tokens takes 1.2 seconds: long enough for everything that happens meanwhile."""


def chat(number: int = 0, **more: Any) -> dict[str, Any]:
    text = f"{number} {TEXT}"
    return {"model": "emulated", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}


async def replicas(
    all_: Fleet, count: int, *workers: EmulatedEngine, **more: dict[str, Any]
) -> list[RunningGateway]:
    """Replicas that know each other and find all workers healthy."""
    sections = {name: {**SECTIONS.get(name, {}), **more.get(name, {})} for name in SECTIONS | more}
    urls = [worker.url for worker in workers]
    started = [await all_.gateway(*urls, **sections) for _ in range(count)]
    for gateway in started:
        await until(lambda gateway=gateway: len(gateway.process.shared.status.replicas) == count)
    return started


async def said(fleet: Fleet) -> list[Op]:
    """All operations in the log, in its order."""
    redis = Redis.from_url(fleet.redis_url)
    try:
        entries = await redis.xrange(f"cw:{{{fleet.namespace}}}:log")
    finally:
        await redis.aclose()
    return [op for _, fields in entries for op in decode_ops(fields.get(b"o", b""))[0]]


def worker_id(engine: EmulatedEngine) -> str:
    return engine.url.removeprefix("http://")


def circuit(gateway: RunningGateway, engine: EmulatedEngine) -> Circuit:
    local = gateway.process.registry.get(worker_id(engine))
    assert local is not None
    return gateway.process.registry.circuits.state(local)


def slot(gateway: RunningGateway, engine: EmulatedEngine) -> int:
    worker = gateway.process.fleet.worker(worker_id(engine))
    assert worker is not None
    return worker.slot


def held(gateway: RunningGateway, engine: EmulatedEngine) -> int:
    return gateway.process.fleet.tree.held_blocks(slot(gateway, engine))


async def eject(gateways: list[RunningGateway], engine: EmulatedEngine) -> None:
    """Let an engine fail the requests of the first replica until all have ejected it."""
    engine.inject(Fault("error", status=500))
    for number in range(20):
        assert (await gateways[0].client.post("/v1/chat/completions", json=chat(number))).status_code == 200
        if circuit(gateways[0], engine) is Circuit.OPEN:
            break
    await until(lambda: all(circuit(gateway, engine) is Circuit.OPEN for gateway in gateways))


async def test_a_worker_is_ejected_by_all_probed_by_one_and_restored_by_all(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four replicas under load: between ejection and restoration one request at a time reaches the worker.

    Turns to probe are further apart than this machine stalls, and a probe may take longer: both exclude
    others by time.
    """
    monkeypatch.setattr("policies.state.breaker.PROBE_STAGGER_US", 30_000_000)
    monkeypatch.setattr("policies.state.load_reports.LoadReports.tells", lambda *_: True)
    sick, well = await fleet.engine(), await fleet.engine()
    gateways = await replicas(fleet, 4, sick, well)
    await eject(gateways, sick)
    patience = {"reliability.cb_timeout_duration_secs": 60.0}
    for gateway in gateways:
        assert (await gateway.client.patch("/settings", json={"values": patience})).status_code == 200
    sick.mend()
    sick.inject(Fault("slow", seconds=0.3))
    stop = False

    async def load(client: httpx.AsyncClient, number: int) -> None:
        while not stop:
            number += 16
            assert (await client.post("/v1/chat/completions", json=chat(number))).status_code == 200

    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(load(gateways[number % 4].client, number))
        await until(lambda: all(circuit(gateway, sick) is Circuit.CLOSED for gateway in gateways))
        stop = True
    await until(lambda: all(gateway.idle() for gateway in gateways))

    open_, under_way, probers = False, "", []
    for op in await said(fleet):
        match op:
            case CircuitSet(state=state):
                open_ = state is not Circuit.CLOSED
                if state is Circuit.OPEN:
                    probers.clear()
            case Placed() if open_ and op.worker == worker_id(sick):
                assert under_way == "", "two probes at once"
                under_way = op.request_id
                probers.append(op.replica)
            case Finished(request_id=request_id) if request_id == under_way:
                under_way = ""
    assert len(probers) == 2


async def test_a_probe_that_fails_keeps_the_worker_out_for_all(fleet: Fleet) -> None:
    sick, well = await fleet.engine(), await fleet.engine()
    gateways = await replicas(fleet, 2, sick, well)
    await eject(gateways, sick)

    def opened_again() -> bool:
        known = [gateway.process.fleet.circuits.get(worker_id(sick)) for gateway in gateways]
        return all(one is not None and one.state is Circuit.OPEN and one != first for one in known)

    first = gateways[0].process.fleet.circuits.get(worker_id(sick))
    number = 100
    while not opened_again():
        number += 1
        for gateway in gateways:
            answer = await gateway.client.post("/v1/chat/completions", json=chat(number))
            assert (answer.status_code, answer.headers["x-cacheway-worker"]) == (200, worker_id(well))


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_worker_that_restarts_is_forgotten_by_all_at_once_and_once(
    fleet: Fleet, dialect: Any
) -> None:
    """Without a request: the connections that it drops are the sign. Health checks are an hour apart."""
    engine = await fleet.engine(EngineSettings(dialect=dialect, prefill_tokens_per_s=1e7, block_tokens=16))
    gateways = await replicas(
        fleet, 3, engine, fleet={"health_check_interval_s": 3600.0}, upstream={"keepalive_s": 60.0}
    )
    for gateway in gateways:
        assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200
    await until(lambda: all(held(gateway, engine) for gateway in gateways))
    engine.inject(Fault("crash", seconds=0.5))
    await until(lambda: all(held(gateway, engine) == 0 for gateway in gateways))
    workers = [gateway.process.registry.all()[0] for gateway in gateways]
    await until(lambda: all(w.health is Health.HEALTHY and not w.suspected_us for w in workers))
    ops = await said(fleet)
    assert sum(op.cold for op in ops if isinstance(op, Started)) == 1
    assert not [op for op in ops if isinstance(op, Forget)]
    answer = await gateways[1].client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.headers["x-cacheway-cached-tokens"]) == (200, "0")
    await until(lambda: all(held(gateway, engine) for gateway in gateways))


async def test_a_worker_that_returns_starts_slowly_in_all_replicas(fleet: Fleet) -> None:
    """A tenth of the requests may go there, half of which do by turns: 10 of 200, give or take 9 (P99.7)."""
    back, other = await fleet.engine(), await fleet.engine()
    gateways = await replicas(
        fleet,
        2,
        back,
        other,
        fleet={"slow_start_s": 3600.0, "health_check_interval_s": 0.2},
        upstream={"keepalive_s": 60.0},
    )
    for gateway in gateways:
        for number in range(2):
            assert (await gateway.client.post("/v1/chat/completions", json=chat(number))).status_code == 200
    back.inject(Fault("crash", seconds=0.3))
    await until(lambda: all(gateway.process.fleet.returned_us[slot(gateway, back)] for gateway in gateways))

    async def healthy(gateway: RunningGateway) -> bool:
        one = (await gateway.client.get(f"/workers/{worker_id(back)}")).json()
        assert one["share"] <= 0.1 or one["state"] != "healthy"
        return bool(one["state"] == "healthy")

    for gateway in gateways:
        await until_async(partial(healthy, gateway))
        there = 0
        for number in range(100, 300):
            answer = await gateway.client.post("/v1/chat/completions", json=chat(number))
            there += answer.headers["x-cacheway-worker"] == worker_id(back)
        assert 1 <= there <= 25


@pytest.mark.parametrize("heard", ["in the log", "in a snapshot"])
async def test_a_replica_that_was_given_up_counts_again_and_its_stream_goes_on(
    fleet: Fleet, heard: str
) -> None:
    engine = await fleet.engine(SLOW_ENGINE)
    victim, sibling = await replicas(fleet, 2, engine)

    def counted(gateway: RunningGateway) -> float:
        return float(gateway.process.fleet.loads.inflight_requests[slot(gateway, engine)])

    body = chat(max_tokens=60, stream=True, ignore_eos=True)
    async with victim.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await until(lambda: counted(sibling) == 1)
        left = Left(victim.process.replica, sibling.process.clock.now_us())
        if heard == "in the log":
            sibling.process.shared.publish(left)
        else:
            sibling.process.fleet.apply(left)
            victim.process.fleet.apply(left)
        assert counted(sibling) == 0
        await until(lambda: counted(sibling) == counted(victim) == 1)
        assert [line async for line in lines][-2] == "data: [DONE]"
    await until(lambda: victim.idle() and sibling.idle())
    placed = [op for op in await said(fleet) if isinstance(op, Placed)]
    assert [bool(op.paths) for op in placed] == [True]  # a load vector tells that it is in flight still


async def test_a_worker_that_is_removed_finishes_what_it_has_of_all_replicas(fleet: Fleet) -> None:
    leaving, staying = await fleet.engine(SLOW_ENGINE), await fleet.engine(FAST_ENGINE)
    gateways = await replicas(fleet, 2, leaving)
    body = chat(max_tokens=60, stream=True, ignore_eos=True)

    async def stream(gateway: RunningGateway, begun: asyncio.Event) -> str:
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            begun.set()
            return [line async for line in lines][-2]

    pools = [gateway.process.registry.all()[0].pool for gateway in gateways]
    begun = [asyncio.Event() for _ in gateways]
    streams = [
        asyncio.create_task(stream(gateway, event)) for gateway, event in zip(gateways, begun, strict=True)
    ]
    for event in begun:
        await event.wait()
    assert (await gateways[0].client.post("/workers", json={"url": staying.url})).status_code == 202
    assert (await gateways[0].client.delete(f"/workers/{worker_id(leaving)}")).status_code == 202
    await until(
        lambda: all(
            [local.worker.url for local in gateway.process.registry.all()] == [staying.url]
            and gateway.process.registry.all()[0].state == "healthy"
            for gateway in gateways
        )
    )
    for gateway in gateways:
        answer = await gateway.client.post("/v1/chat/completions", json=chat())
        assert answer.headers["x-cacheway-worker"] == worker_id(staying)
    assert not any(task.done() for task in streams)
    assert [pool.in_use for pool in pools] == [1, 1]
    assert await asyncio.gather(*streams) == ["data: [DONE]", "data: [DONE]"]
    await until(lambda: all(pool.open == 0 for pool in pools))
    await until(lambda: all(gateway.idle() for gateway in gateways))
