"""Gateways that find their workers in a cluster: real sockets to an API server, to engines and to Valkey."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import Cluster, pod
from fakes.cluster_api import ClusterApi
from fakes.running import Fleet, RunningGateway, until

from loadtest.engine import EmulatedEngine

SELECTOR = ["app=engine"]


@pytest.fixture
async def api() -> AsyncIterator[ClusterApi]:
    async with ClusterApi(Cluster()).serving() as api:
        yield api


def engine_pod(engine: EmulatedEngine, name: str = "a", **more: Any) -> dict[str, Any]:
    """A pod on this machine, whose engine listens on a port of its own."""
    port = int(engine.url.rpartition(":")[2])
    return pod(name, ip="127.0.0.1", ports={"http": port}, **more)


async def gateway(fleet: Fleet, api: ClusterApi, folder: Path, **discovery: Any) -> RunningGateway:
    return await fleet.gateway(
        discovery={
            "service_discovery": True,
            "selector": SELECTOR,
            "kubeconfig": api.kubeconfig(folder),
            **discovery,
        }
    )


def states(running: RunningGateway) -> dict[str, str]:
    return {
        local.worker.labels.get("discovered", ""): local.state for local in running.process.registry.all()
    }


async def chat(running: RunningGateway) -> int:
    body = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return (await running.client.post("/v1/chat/completions", json=body)).status_code


async def test_pods_serve_from_the_start_come_and_go(fleet: Fleet, api: ClusterApi, tmp_path: Path) -> None:
    first, second = await fleet.engine(), await fleet.engine()
    api.cluster.put(engine_pod(first))
    running = await gateway(fleet, api, tmp_path)
    assert states(running) == {"kubernetes:llm/a": "healthy"}
    assert await chat(running) == 200

    api.cluster.put(engine_pod(second, "b"))
    await until(lambda: states(running).get("kubernetes:llm/b") == "healthy")
    api.cluster.edit("a", ready=False)
    await until(lambda: states(running)["kubernetes:llm/a"] == "draining")
    assert await chat(running) == 200
    api.cluster.edit("a", ready=True)
    await until(lambda: states(running)["kubernetes:llm/a"] == "healthy")
    api.cluster.delete("b")
    await until(lambda: states(running) == {"kubernetes:llm/a": "healthy"})
    assert await chat(running) == 200


async def test_a_pod_that_is_deleted_finishes_what_it_has(
    fleet: Fleet, api: ClusterApi, tmp_path: Path
) -> None:
    """A worker drains when the deletion of its pod is announced; it is removed after its last answer."""
    slow = await fleet.engine()
    api.cluster.put(engine_pod(slow))
    running = await gateway(fleet, api, tmp_path)
    body = {"model": "emulated", "prompt": "hi", "max_tokens": 10_000, "stream": True}
    async with running.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        api.cluster.edit("a", deleting=True)
        await until(lambda: states(running) == {"kubernetes:llm/a": "draining"})
        lines = [line async for line in answer.aiter_lines()]
        assert lines[-2] == "data: [DONE]"
    await until(lambda: not states(running))


async def test_several_replicas_find_the_same_and_leave_what_people_said(
    fleet: Fleet, api: ClusterApi, tmp_path: Path
) -> None:
    engine = await fleet.engine()
    api.cluster.put(engine_pod(engine, labels={"cacheway.io/site": "dc1"}))
    replicas = [await gateway(fleet, api, tmp_path, resync_s=1) for _ in range(3)]
    worker_id = replicas[0].process.registry.all()[0].worker.worker_id
    replicas[0].process.registry.change(worker_id, draining=True, labels={"zone": "b"})
    lists = api.cluster.lists
    api.cluster.edit("a", labels={"cacheway.io/site": "dc2"})

    def as_said() -> bool:
        workers = [replica.process.registry.all() for replica in replicas]
        return all(
            len(known) == 1
            and known[0].worker.draining
            and known[0].worker.labels["zone"] == "b"
            and known[0].worker.site == "dc2"
            for known in workers
        )

    await until(as_said)
    await until(lambda: api.cluster.lists > lists + 6)
    assert as_said()


async def test_an_api_server_that_is_gone_costs_news_only(
    fleet: Fleet, api: ClusterApi, tmp_path: Path
) -> None:
    engine = await fleet.engine()
    api.cluster.put(engine_pod(engine))
    running = await gateway(fleet, api, tmp_path, resync_s=1)
    discovery = running.process.discovery
    assert discovery is not None
    api.forbidden.add("llm")
    api.cut()
    await until(lambda: discovery.problem is not None)
    assert "forbidden" in str(discovery.problem)
    (sentence,) = (await running.client.get("/readiness")).json()["degraded"]
    assert sentence.startswith("discovery of pods: pods app=engine in llm: HTTP 403")
    exposition = (await running.client.get("/metrics")).text
    assert 'cacheway_degraded{component="kubernetes"} 1.0' in exposition
    assert 'cacheway_discovery_pods{state="used"} 1.0' in exposition
    assert await chat(running) == 200
    api.forbidden.clear()
    await until(lambda: discovery.problem is None)
    assert 'cacheway_degraded{component="kubernetes"} 0.0' in (await running.client.get("/metrics")).text


async def test_a_gateway_starts_without_an_api_server(fleet: Fleet, api: ClusterApi, tmp_path: Path) -> None:
    """The gateway serves with the named workers, and finds the others later."""
    named, found = await fleet.engine(), await fleet.engine()
    api.cluster.put(engine_pod(found))
    api.status = 503
    running = await fleet.gateway(
        named.url,
        discovery={
            "service_discovery": True,
            "selector": SELECTOR,
            "kubeconfig": api.kubeconfig(tmp_path),
            "resync_s": 1,
        },
    )
    assert await chat(running) == 200
    api.status = 0
    await until(lambda: states(running) == {"": "healthy", "kubernetes:llm/a": "healthy"})


async def test_prefill_and_decode_pods_share_requests(fleet: Fleet, api: ClusterApi, tmp_path: Path) -> None:
    """Roles come from the selectors, the bootstrap port from the annotation that SGLang's router reads."""
    plain = await fleet.engine()
    api.cluster.put(
        engine_pod(plain, "p", labels={"part": "p"}, annotations={"sglang.ai/bootstrap-port": "8997"})
    )
    api.cluster.put(pod("d", ip="127.0.0.1", ports={"http": 1}, labels={"part": "d"}))
    running = await gateway(
        fleet,
        api,
        tmp_path,
        selector=[],
        prefill_selector=["app=engine", "part=p"],
        decode_selector=["app=engine", "part=d"],
    )
    workers = {local.worker.role: local.worker for local in running.process.registry.all()}
    assert sorted(workers) == ["decode", "prefill"]
    assert workers["prefill"].labels["bootstrap_port"] == "8997"


async def test_a_burst_of_pods_is_one_round(fleet: Fleet, api: ClusterApi, tmp_path: Path) -> None:
    """300 pods at addresses without a listener become workers at once, and are gone at once."""
    running = await gateway(fleet, api, tmp_path)
    for number in range(300):
        api.cluster.put(pod(f"p{number}", ip="127.0.0.1", ports={"http": 1000 + number}))
    await until(lambda: len(running.process.registry.all()) == 300)
    for number in range(300):
        api.cluster.delete(f"p{number}")
    await until(lambda: not running.process.registry.all())
    await asyncio.sleep(0)
