"""The waiting queue on real sockets: several replicas, a real Valkey, emulated engines.

Engines are as fast as a gateway believes before it has seen an answer: 20 ms and 15,000 tokens/s. A prompt of
`TEXT` is some 3,000 tokens, about 0.2 s, so three of them fill the target backlog of 0.5 s.
"""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fakes.running import Fleet, RunningGateway, serving, until, until_async, warmed

from loadtest.engine import EngineSettings
from policies import Op, Placed

TEXT = "word " * 2400

ENGINE = EngineSettings(prefill_tokens_per_s=15_000, prefill_base_ms=20, tpot_ms=0.1)
STUCK = EngineSettings(prefill_base_ms=600_000, max_running=1)
"""It never sends its first token."""

BUSY = replace(ENGINE, prefill_tokens_per_s=5_000, max_running=1)
"""0.6 s for each request: even a slow machine looks at each queue before it is empty."""

FULL = {"worker_running_max": 1}
"""With one request in flight a worker has no more room, even on a slow machine. The setting counts until the
engine reports its own bound, which wins."""


def chat(name: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{name} {TEXT}"}]
    return {"model": "emulated", "stream": True, "max_tokens": 2, "messages": messages, **more}


def ask(
    gateway: RunningGateway, name: str, *, headers: dict[str, str] | None = None, **more: Any
) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(
        gateway.client.post("/v1/chat/completions", json=chat(name, **more), headers=headers or {})
    )


def tickets(gateway: RunningGateway) -> int:
    return gateway.process.fleet.tickets.count


async def replicas(fleet: Fleet, url: str, count: int, **sections: dict[str, Any]) -> list[RunningGateway]:
    gateways = [await fleet.gateway(url, **sections) for _ in range(count)]
    for gateway in gateways:
        await warmed(gateway.client)
    await until(lambda: all(len(g.process.shared.status.replicas) == count for g in gateways))
    return gateways


async def filled(gateways: list[RunningGateway]) -> list[asyncio.Task[httpx.Response]]:
    """Ask until the only worker has no room, and all replicas know it."""
    tasks: list[asyncio.Task[httpx.Response]] = []
    while not all(tickets(gateway) for gateway in gateways):
        tasks.append(ask(gateways[len(tasks) % len(gateways)], f"filling {len(tasks)}"))
        await until(
            lambda: all(
                g.process.fleet.loads.inflight_requests.sum() + tickets(g)
                >= sum(not task.done() for task in tasks)
                for g in gateways
            )
        )
    return tasks


def codes(answers: list[httpx.Response]) -> list[tuple[int, str]]:
    return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]


async def test_what_came_first_at_any_replica_goes_first(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even on a slow machine, replicas take no sibling for dead."""
    monkeypatch.setattr("router.gateway.placing.GRACE_S", 10.0)
    engine = await fleet.engine(ENGINE)
    gateways = await replicas(fleet, engine.url, 3, queue={"uncached_weight": 0})
    gone: list[tuple[int, int]] = []

    def watch(gateway: RunningGateway) -> None:
        shell, fleet_state = gateway.process.gateway, gateway.process.fleet
        publish = shell.log.publish

        def watched(op: Op) -> None:
            ticket = fleet_state.tickets.get(op.request_id) if isinstance(op, Placed) else None
            if isinstance(op, Placed) and ticket is not None:
                gone.append((op.at_us, ticket.arrived_us))
            publish(op)

        shell.log = replace(shell.log, publish=watched)

    def all_know() -> bool:
        waiting = sum(len(gateway.process.gateway.placing.room) for gateway in gateways)
        return all(tickets(gateway) == waiting for gateway in gateways)

    for gateway in gateways:
        watch(gateway)
    tasks = await filled(gateways)
    for number in range(12):
        shell = gateways[number % 3].process.gateway.placing
        known = shell.room.tickets(), shell.decider.placed_count
        tasks.append(ask(gateways[number % 3], f"queued {number}"))
        await until(lambda: (shell.room.tickets(), shell.decider.placed_count) != known)  # noqa: B023
        await until(all_know)
    answers = await asyncio.gather(*tasks)
    assert {answer.status_code for answer in answers} == {200}
    assert len(gone) >= 8
    assert [arrived_us for _, arrived_us in sorted(gone)] == sorted(arrived_us for _, arrived_us in gone)


async def test_requests_of_a_replica_that_was_killed_are_waited_for_by_nobody(fleet: Fleet) -> None:
    engine = await fleet.engine(BUSY)
    flags = ("--heartbeat-ttl-secs", "1", "--queue-uncached-weight", "0", "--worker-running-max", "1")
    async with serving(fleet.redis_url, fleet.namespace, (engine.url,), *flags) as (victim, client):
        await warmed(client)
        gateway = await fleet.gateway(
            engine.url, shared={"heartbeat_ttl_s": 1.0}, queue={"uncached_weight": 0}, admission=FULL
        )
        await warmed(gateway.client)
        filling = await filled([gateway])
        lost = [
            asyncio.create_task(client.post("/v1/chat/completions", json=chat(f"lost {number}")))
            for number in range(4)
        ]
        await until(lambda: tickets(gateway) >= 4)
        mine = [ask(gateway, f"mine {number}") for number in range(4)]
        victim.kill()
        answers = await asyncio.gather(*filling, *mine)
        assert {answer.status_code for answer in answers} == {200}
        cut = await asyncio.gather(*lost, return_exceptions=True)
        assert any(isinstance(answer, httpx.TransportError) for answer in cut)
        await until(lambda: tickets(gateway) == 0)


async def test_a_client_that_leaves_takes_its_ticket_with_it(fleet: Fleet) -> None:
    engine = await fleet.engine(STUCK)
    first, second = await replicas(fleet, engine.url, 2, admission=FULL)
    tasks = await filled([first, second])
    waiting = tickets(second)
    leaving = ask(first, "leaving")
    await until(lambda: tickets(second) == waiting + 1)
    leaving.cancel()
    await until(lambda: tickets(second) == tickets(first) == waiting)
    for task in tasks:
        task.cancel()
    await until(lambda: tickets(second) == tickets(first) == 0)


async def test_deadlines_end_waiting_and_dispatched_requests_alike(fleet: Fleet) -> None:
    engine = await fleet.engine(STUCK)
    (gateway,) = await replicas(fleet, engine.url, 1, queue={"timeout_s": 0.3}, admission=FULL)
    assert codes([await ask(gateway, "sent", headers={"x-request-timeout": "400ms"})]) == [
        (408, "request_expired")
    ]
    assert engine.counters.requests == 1
    tasks = await filled([gateway])
    waits = ask(gateway, "waits")
    hurried = ask(gateway, "hurried", headers={"x-request-timeout": "0.1"})
    first, _ = await asyncio.wait((waits, hurried), return_when=asyncio.FIRST_COMPLETED)
    assert hurried in first
    assert codes([await waits, await hurried]) == [(408, "request_expired")] * 2
    for task in tasks:
        task.cancel()


async def test_a_full_queue_is_full_for_all_replicas_and_the_more_urgent_displace(fleet: Fleet) -> None:
    engine = await fleet.engine(STUCK)
    gateways = await replicas(fleet, engine.url, 2, queue={"size": 3}, admission=FULL)
    first, second = gateways
    tasks = await filled(gateways)
    low = {"x-priority": "low"}
    tasks.append(ask(first, "low", headers=low))
    await until(lambda: tickets(second) == 2)
    tasks.append(ask(second, "normal"))
    await until(lambda: tickets(first) == 3)
    rejected = await ask(first, "more", headers=low)
    assert codes([rejected]) == [(429, "queue_full")]
    assert int(rejected.headers["retry-after"]) >= 1
    assert codes([await ask(second, "more")]) == [(429, "queue_full")]
    urgent = ask(first, "urgent", headers={"x-priority": "high"})
    displaced = tasks[-2]
    assert codes([await displaced]) == [(429, "request_displaced")]
    assert int(displaced.result().headers["retry-after"]) >= 1
    await until(lambda: tickets(second) == 3)
    for task in (*tasks, urgent):
        task.cancel()
    await until(lambda: tickets(first) == tickets(second) == 0)


async def test_a_shutdown_lets_those_who_wait_finish(fleet: Fleet) -> None:
    engine = await fleet.engine(ENGINE)
    async with serving(fleet.redis_url, fleet.namespace, (engine.url,)) as (process, client):
        await warmed(client)
        tasks = [
            asyncio.create_task(client.post("/v1/chat/completions", json=chat(f"request {number}")))
            for number in range(8)
        ]

        async def waiting() -> bool:
            return bool((await client.get("/queue")).json()["waiting"]["requests"])

        await until_async(waiting)
        process.terminate()
        answers = await asyncio.gather(*tasks)
        assert {answer.status_code for answer in answers} == {200}


async def test_a_header_without_meaning_is_the_clients_mistake(fleet: Fleet) -> None:
    engine = await fleet.engine(ENGINE)
    gateway = await fleet.gateway(engine.url)
    for header in ("x-priority", "x-request-timeout"):
        answer = await ask(gateway, "one", headers={header: "soon"})
        assert codes([answer]) == [(400, "invalid_value")]
        assert answer.json()["error"]["param"] == header


@pytest.mark.parametrize("path", ["/tokenize"])
async def test_a_request_without_a_prompt_does_not_wait_for_those_with_one(fleet: Fleet, path: str) -> None:
    engine = await fleet.engine(STUCK)
    gateway = await fleet.gateway(engine.url, admission=FULL)
    await warmed(gateway.client)
    tasks = await filled([gateway])
    answer = await gateway.client.post(path, json={"model": "emulated", "prompt": "hello"})
    assert answer.status_code == 200
    for task in tasks:
        task.cancel()
