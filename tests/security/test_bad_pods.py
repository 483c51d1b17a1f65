"""Pods that say what no pod should, beside one that is well: discovery goes on, and says what is wrong."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import Cluster, pod
from fakes.cluster_api import ClusterApi
from fakes.running import Fleet, until

BAD: dict[str, dict[str, Any]] = {
    "port": {"cacheway.io/port": "²"},
    "capacity": {"cacheway.io/capacity-tokens": "²"},
    "ranks": {"cacheway.io/dp-size": "٣²"},
    "endless": {"cacheway.io/port": "9" * 10_000},
    "huge": {"cacheway.io/capacity-tokens": str(10**15 - 1)},
    "much": {f"cacheway.io/x{number}": "y" * 256 for number in range(30)},
    "quotes": {f"cacheway.io/x{number}": '"' * 250 for number in range(30)},
    "surrogate": {"cacheway.io/site": "\ud800"},
    "nul": {"cacheway.io/site": "a\u0000b"},
    "type": {"cacheway.io/port": 8000},
    "object": {"cacheway.io/port": {"a": []}},
}


@pytest.fixture
async def api() -> AsyncIterator[ClusterApi]:
    async with ClusterApi(Cluster()).serving() as api:
        yield api


async def test_no_pod_stops_discovery_whatever_it_says(
    fleet: Fleet, api: ClusterApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The watch goes on: pods are found by it, not by the next list, which is minutes away."""
    engines = [await fleet.engine() for _ in range(3)]
    ports = [int(engine.url.rpartition(":")[2]) for engine in engines]
    api.cluster.put(pod("first", ip="127.0.0.1", ports={"http": ports[0]}))
    running = await fleet.gateway(
        discovery={
            "service_discovery": True,
            "selector": ["app=engine"],
            "kubeconfig": api.kubeconfig(tmp_path),
            "resync_s": 300,
        }
    )
    discovery = running.process.discovery
    assert discovery is not None
    found = lambda: {local.worker.labels["discovered"] for local in running.process.registry.all()}  # noqa: E731
    await until(lambda: found() == {"kubernetes:llm/first"} and api.watches == 1)
    for number, (name, annotations) in enumerate(BAD.items(), start=10):
        api.cluster.put(pod(name, ip=f"127.0.0.{number}", ports={"http": ports[1]}, annotations=annotations))
    api.cluster.put(pod("second", ip="127.0.0.1", ports={"http": ports[2]}))
    await until(lambda: found() == {"kubernetes:llm/first", "kubernetes:llm/second"})

    view = (await running.client.get("/discovery")).json()
    refused = {each["name"]: each for each in view["pods"] if each["not_used"]}
    assert set(refused) == set(BAD)
    assert {each["not_used"] for each in refused.values()} <= {"bad_label", "no_port", "unreadable"}
    assert all(each["detail"] for each in refused.values())
    assert view["problem"] is None
    assert [each["failures"] for each in view["selections"]] == [{}]
    assert [each["watch_restarts"] for each in view["selections"]] == [0]
    assert 'cacheway_discovery_pods{state="unreadable"}' in (await running.client.get("/metrics")).text
    bad_events = {"task.failed", "discovery.crashed", "discovery.failed"}
    assert not bad_events & {getattr(record, "event", "") for record in caplog.records}
    api.cluster.edit("port", annotations={"cacheway.io/port": str(ports[1])})
    await until(lambda: "kubernetes:llm/port" in found())
