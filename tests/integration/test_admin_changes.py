"""Changes that operators make at one replica hold for all and outlive it; on real sockets."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
from fakes.running import Fleet, RunningGateway, command, serving, until, until_async, warmed

from loadtest.engine import EngineSettings
from loadtest.processes import free_port
from router.tenants.keys import digest_of

SLOW = EngineSettings(prefill_base_ms=1, tpot_ms=40, emit_interval_ms=1)
ROUNDS = 4
"""Rounds of three labels each."""

STUCK = EngineSettings(prefill_base_ms=600_000, max_running=1)
"""Never says its first token, and runs one request: an engine's own bound wins over
`admission.worker_running_max`, which counts until the engine has reported one."""


def chat(name: str = "some", **more: Any) -> dict[str, Any]:
    """A prompt of some 3,000 tokens; those of other names share nothing with it."""
    return {
        "model": "emulated",
        "messages": [{"role": "user", "content": f"{name} {'word ' * 2400}"}],
        **more,
    }


async def test_a_drained_worker_is_removed_although_the_replica_that_was_asked_dies(fleet: Fleet) -> None:
    """The stream goes on for four seconds; the worker stays until then, and its removal is the sibling's."""
    engine, other = await fleet.engine(SLOW), await fleet.engine()
    worker = engine.url.removeprefix("http://")
    urls = (engine.url, other.url)
    async with (
        serving(fleet.redis_url, fleet.namespace, urls) as (process, asked),
        serving(fleet.redis_url, fleet.namespace, urls) as (_, sibling),
        httpx.AsyncClient(base_url=engine.url, trust_env=False) as direct,
    ):
        await warmed(asked)
        await warmed(sibling)
        body = chat(stream=True, max_tokens=100, ignore_eos=True)
        await sibling.post(f"/workers/{other.url.removeprefix('http://')}/drain")

        async def only_one_serves() -> bool:
            workers = (await sibling.get("/workers")).json()["workers"]
            return [each["state"] for each in workers].count("draining") == 1

        await until_async(only_one_serves)
        async with sibling.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            told = (await asked.delete(f"/workers/{worker}?drain=true")).json()
            assert (told["status"], told["draining"], told["leaving"]) == ("draining", True, True)

            async def heard() -> bool:
                return bool((await sibling.get(f"/workers/{worker}")).json()["leaving"])

            await until_async(heard)
            process.send_signal(signal.SIGKILL)
            progress = (await sibling.get(f"/workers/{worker}/drain")).json()
            assert (progress["inflight_requests"], progress["drained"]) == (1, False)
            rest = [line async for line in lines]
        assert [line for line in rest if line][-1] == "data: [DONE]"

        async def gone() -> bool:
            return (await sibling.get(f"/workers/{worker}")).status_code == 404

        await until_async(gone)
        assert (await direct.get("/health")).status_code == 200, "it is the gateway's word alone"
        changes = (await sibling.get("/audit")).json()["changes"]
        assert [change["action"] for change in changes] == [
            "DELETE /workers/{worker_id}",
            "POST /workers/{worker_id}/drain",
        ]


async def test_a_wait_is_ended_at_any_replica(fleet: Fleet) -> None:
    engine = await fleet.engine(STUCK)
    # With one request in flight the worker has no room again, however slow this machine is.
    gateways = [await fleet.gateway(engine.url, admission={"worker_running_max": 1}) for _ in range(2)]
    for gateway in gateways:
        await warmed(gateway.client)
    await until(lambda: all(len(g.process.shared.status.replicas) == 2 for g in gateways))
    holder, sibling = gateways
    tasks: list[asyncio.Task[httpx.Response]] = []
    while not sibling.process.fleet.tickets.count:
        body = chat(f"filling {len(tasks)}", max_tokens=2)
        tasks.append(asyncio.create_task(holder.client.post("/v1/chat/completions", json=body)))
        known = len(tasks)
        loads, tickets = sibling.process.fleet.loads, sibling.process.fleet.tickets
        await until(lambda: loads.inflight_requests.sum() + tickets.count >= known)  # noqa: B023
    waiting = tasks.pop()
    (ticket,) = (await sibling.client.get("/queue/tickets")).json()["tickets"]
    assert ticket["replica"] == holder.process.replica
    assert (await sibling.client.delete(f"/queue/{ticket['ticket']}")).status_code == 202
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_expired")
    assert "An operator ended" in answer.json()["error"]["message"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_admin_api_has_a_port_of_its_own(fleet: Fleet) -> None:
    engine = await fleet.engine()
    port = free_port()
    gateway = await fleet.gateway(engine.url, admin={"port": port})
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as admin:
        assert (await admin.get("/admin/workers")).json()["total"] == 1
        assert (await admin.post("/v1/chat/completions", json=chat())).status_code == 404
        refused = await gateway.client.get("/workers")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert "--admin-port 0" in refused.json()["error"]["message"]
        assert (await gateway.client.get("/v1/models")).status_code == 200
        replicas = (await admin.get("/replicas")).json()["replicas"]
        assert [each["admin_address"] for each in replicas] == [f"127.0.0.1:{port}"]


async def test_processes_that_share_the_admin_port_know_each_other(fleet: Fleet, tmp_path: Path) -> None:
    """Each of the processes lists both, and takes the token."""
    engine = await fleet.engine()
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens: {{ann: {{role: read, hash: 'sha256:{digest_of(b'secret').hex()}'}}}}")
    port, admin_port = free_port(), free_port()
    arguments = (
        *("serve", "--host", "127.0.0.1", "--port", str(port), "--workers", "2"),
        *("--admin-port", str(admin_port), "--admin-tokens-file", str(file)),
        *("--worker-urls", engine.url, "--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
    )
    url = f"http://127.0.0.1:{admin_port}"
    async with command(*arguments, ready_url=f"{url}/readiness", environ={"CACHEWAY_ADMIN_PORT": ""}):
        token = {"authorization": "Bearer secret"}
        answered: set[str] = set()

        async def both_answered_and_know_both() -> bool:
            async with httpx.AsyncClient(base_url=url, headers=token, trust_env=False) as client:
                told = (await client.get("/replicas")).json()
                answered.add(told["asked"])
                known = [each["known"] for each in told["replicas"]]
            return len(answered) == 2 and known == [True, True]

        await until_async(both_answered_and_know_both)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/replicas")).status_code == 401


def rates(before: dict[str, Any], after: dict[str, Any]) -> int:
    return int(after["requests"].get("completed", 0) - before["requests"].get("completed", 0))


async def test_what_the_fleet_does_is_the_difference_of_two_looks(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateways = [await fleet.gateway(engine.url) for _ in range(2)]
    for gateway in gateways:
        await warmed(gateway.client)
    await until(lambda: all(len(g.process.shared.status.replicas) == 2 for g in gateways))

    async def look() -> dict[str, dict[str, Any]]:
        told = (await gateways[0].client.get("/replicas")).json()
        return {each["replica"]: each for each in told["replicas"]}

    before = await look()
    for gateway in gateways:
        assert (await gateway.client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200

    async def counted() -> bool:
        after = await look()
        return [rates(before[name], after[name]) for name in sorted(before)] == [1, 1]

    await until_async(counted)
    told = (await look())[gateways[1].process.replica]
    assert told["prompt_tokens"] > 2000
    assert told["ttft_counts"][-1] == 0, "of streams only is the first byte the first token"


async def test_labels_set_through_three_replicas_at_once_are_all_there_and_a_removal_stays(
    fleet: Fleet,
) -> None:
    """Each round sets three labels at once; all answers are 202."""
    engine = await fleet.engine()
    gateways = [await fleet.gateway(engine.url) for _ in range(3)]
    for gateway in gateways:
        await warmed(gateway.client)
    path = f"/workers/{engine.url.removeprefix('http://')}"
    wanted: dict[str, str] = {}
    for round_ in range(ROUNDS):
        labels = [{f"label-{round_}-{number}": str(round_)} for number in range(3)]
        changes = [
            gateway.client.patch(path, json={"labels": each})
            for gateway, each in zip(gateways, labels, strict=True)
        ]
        assert [answer.status_code for answer in await asyncio.gather(*changes)] == [202] * 3
        for each in labels:
            wanted |= each

    def known() -> list[dict[str, str]]:
        return [gateway.process.registry.all()[0].worker.labels for gateway in gateways]

    await until(lambda: all(wanted.items() <= labels.items() for labels in known()))

    # Two replicas change it while the third removes it: in any order it is gone, and stays so.
    late = [gateway.client.patch(path, json={"labels": {"late": "yes"}}) for gateway in gateways[:2]]
    removed, *others = await asyncio.gather(gateways[2].client.delete(path), *late)
    assert removed.status_code == 202
    assert {answer.status_code for answer in others} <= {202, 404}
    added = [f"127.0.0.1:{free_port()}" for _ in gateways]
    for gateway, worker in zip(gateways, added, strict=True):
        assert (await gateway.client.post("/workers", json={"url": f"http://{worker}"})).status_code == 202
    # Each replica has then received all earlier changes of the others.
    await until(lambda: all(ids(gateway) >= {*added} for gateway in gateways))
    assert [ids(gateway) for gateway in gateways] == [{*added}] * 3


def ids(gateway: RunningGateway) -> set[str]:
    return {local.worker.worker_id for local in gateway.process.registry.all()}
