"""Settings changed while two replicas serve: what one is told, both do, and who comes later, too."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from fakes.running import Fleet, RunningGateway, until

from loadtest.chaos.tcp_proxy import TcpProxy
from router.shared import EmbeddedValkey

PROMPT = "The quick brown fox jumps over the lazy dog. " * 100


def chat(text: str = PROMPT, **more: Any) -> dict[str, Any]:
    return {
        "model": "emulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        **more,
    }


async def pair(fleet: Fleet, workers: int = 4, **sections: dict[str, Any]) -> list[RunningGateway]:
    """Two replicas in front of the same engines, both warm."""
    urls = [(await fleet.engine()).url for _ in range(workers)]
    gateways = [await fleet.gateway(*urls, **sections) for _ in range(2)]
    for gateway in gateways:
        await until(lambda gateway=gateway: gateway.process.shared.status.ready)
    return gateways


async def patch(gateway: RunningGateway, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await gateway.client.patch("/settings", json={"values": values, **more})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def most_on_one(gateway: RunningGateway) -> int:
    """Of twelve equal prompts, how many the same worker gets."""
    workers: Counter[str] = Counter()
    for _ in range(12):
        answer = await gateway.client.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 200
        workers[answer.headers["x-cacheway-worker"]] += 1
    return max(workers.values())


@contextlib.asynccontextmanager
async def load(gateways: list[RunningGateway]) -> AsyncIterator[list[int]]:
    """Requests to all of them until it ends; the statuses that they got."""
    statuses: list[int] = []

    async def client(gateway: RunningGateway) -> None:
        while True:
            answer = await gateway.client.post("/v1/chat/completions", json=chat("hello " * 50, stream=True))
            statuses.append(answer.status_code)

    tasks = [asyncio.create_task(client(gateway)) for gateway in gateways for _ in range(4)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_policy_switch_under_load_changes_decisions_on_both_replicas_and_loses_nothing(
    fleet: Fleet,
) -> None:
    """One prompt stays on its worker, however busy that is, until round robin is told to choose."""
    one, two = await pair(fleet, placement={"policy": "prefix_hash", "policy_options": {"load_factor": 1000}})
    async with load([one, two]) as statuses:
        for gateway in (one, two):
            assert await most_on_one(gateway) == 12
        values = {"placement.policy": "round_robin", "placement.policy_options": {}}
        told = await patch(one, values, comment="compare")
        assert told["shared"]
        assert told["changed"]["placement.policy"] == {"before": "prefix_hash", "after": "round_robin"}
        await until(lambda: two.process.gateway.placing.decider.policy.name == "round_robin")
        for gateway in (one, two):
            assert await most_on_one(gateway) < 12
        await two.client.post("/settings/rollback", json={"change_id": told["change_id"]})
        await until(lambda: one.process.gateway.placing.decider.policy.name == "prefix_hash")
        await until(lambda: len(statuses) > 50)
    assert set(statuses) == {200}


async def test_a_restarted_replica_keeps_what_was_changed(fleet: Fleet) -> None:
    """It has it before it is ready, with the history, from the snapshot and the log."""
    one, _ = await pair(fleet, workers=1)
    first = await patch(one, {"queue.size": 7})
    await until(lambda: (one.process.shared.status.snapshot_age_s or 99.0) < 0.5)
    second = await patch(one, {"placement.policy": "min_ttft"})
    third = await fleet.gateway(fleet.engines[0].url, queue={"size": 5})
    await until(lambda: third.process.shared.status.ready)
    assert third.process.settings.queue.size == 7
    assert third.process.gateway.placing.decider.policy.name == "min_ttft"
    history = (await third.client.get("/settings/history")).json()
    assert [change["change_id"] for change in history["changes"]] == [
        second["change_id"],
        first["change_id"],
    ]
    assert history["revision"] == second["revision"]

    await patch(third, {"queue.size": None})
    assert third.process.settings.queue.size == 5
    await until(lambda: one.process.settings.queue.size == 10_000)


async def test_a_change_with_anything_wrong_in_it_changes_nothing(fleet: Fleet) -> None:
    one, two = await pair(fleet, workers=1)
    before = (await one.client.get("/settings")).json()
    answer = await one.client.patch(
        "/settings", json={"values": {"queue.size": 3, "admission.backlog_target_s": 99}}
    )
    assert answer.status_code == 400
    assert "backlog_target_s_max must not be below" in answer.json()["error"]["message"]
    assert (await one.client.get("/settings")).json() == before
    assert two.process.settings.queue.size == 10_000


async def test_of_two_changes_at_once_the_newest_wins_everywhere_and_both_are_in_the_history(
    fleet: Fleet,
) -> None:
    one, two = await pair(fleet, workers=1)
    async with asyncio.TaskGroup() as group:
        for gateway, size in ((one, 11), (two, 22)):
            group.create_task(patch(gateway, {"queue.size": size}))
    await until(lambda: all(len(gateway.process.fleet.overrides.history) == 2 for gateway in (one, two)))
    newest = one.process.fleet.overrides.history[-1]
    assert {gateway.process.settings.queue.size for gateway in (one, two)} == {
        int(newest.values["queue.size"])
    }
    answers = [(await gateway.client.get("/settings/history")).json() for gateway in (one, two)]
    assert answers[0]["changes"] == answers[1]["changes"]
    assert answers[0]["revision"] == answers[1]["revision"]


async def test_without_redis_a_change_counts_here_at_once_and_elsewhere_when_it_is_back(
    fleet: Fleet, valkey: EmbeddedValkey
) -> None:
    """One replica loses Redis, and says so; what the other changed meanwhile comes with it, too."""
    engine = await fleet.engine()
    two = await fleet.gateway(engine.url)
    async with TcpProxy(valkey.url.removeprefix("unix://")) as proxy:
        fleet.redis_url = proxy.url
        one = await fleet.gateway(engine.url)
        await until(lambda: one.process.shared.status.connected and two.process.shared.status.connected)
        await proxy.refuse()
        await until(lambda: not one.process.shared.status.connected)
        told = await patch(one, {"queue.size": 7})
        assert (told["shared"], "lost" in told["note"]) == (False, True)
        assert one.process.settings.queue.size == 7
        await patch(two, {"roles.mode": "off"})
        assert two.process.settings.queue.size == 10_000

        await proxy.heal()
        for gateway in (one, two):
            await until(lambda gateway=gateway: gateway.process.settings.queue.size == 7)
            await until(lambda gateway=gateway: gateway.process.settings.roles.mode == "off")
        history = one.process.fleet.overrides.history
        assert history == two.process.fleet.overrides.history
        await _ended(one)
        fleet.gateways.remove(one)


async def _ended(gateway: RunningGateway) -> None:
    """End a gateway before what it stands on goes."""
    gateway.server.should_exit = True
    await gateway.task
