import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fakes.cluster import Cluster, pod

from router.discovery.inference_pool import PoolName, PoolSource, PoolSpec, read_pool
from router.discovery.source import ApiFailure, Gone, PodEvent, PodList, Trouble

NAME = PoolName("inference.networking.k8s.io", "llm", "pool")


def pool(labels: dict[str, str] | None = None, *ports: int) -> bytes:
    selector = {"matchLabels": {"app": "engine"} if labels is None else labels}
    numbers = [{"number": port} for port in ports or (8000,)]
    return json.dumps({"spec": {"selector": selector, "targetPorts": numbers, "more": {}}}).encode()


class ObjectCluster:
    """A cluster with one pool; ``pool`` None: there is none."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.pool: bytes | None = pool()
        self.fails = False
        self.closed = self.renewed = False

    async def read(self, path: str) -> bytes | None:
        assert path == NAME.path
        if self.fails:
            raise ApiFailure(Trouble.SERVER, "as told")
        return self.pool

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        return await self.cluster.list_pods(namespace, selector)

    def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        return self.cluster.watch_pods(namespace, selector, version, lasts_s)

    async def renew(self) -> None:
        self.renewed = True

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("data", "spec"),
    [
        (pool({"b": "2", "a": "1"}, 8000, 8001), PoolSpec("a=1,b=2", ("8000", "8001"))),
        (b'{"spec": {"selector": {"app": "x"}, "targetPortNumber": 80}}', PoolSpec("app=x", ("80",))),
    ],
)
def test_both_versions_of_pools_are_read(data: bytes, spec: PoolSpec) -> None:
    assert read_pool(data) == spec


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        pool({}),
        pool(None, 0),
        pool(None, 70_000),
        pool(None, *range(1, 10)),
        pool({f"k{n}": "v" for n in range(100)}),
        b'{"spec": {"selector": {"matchLabels": {"a": 1}}, "targetPorts": [{"number": 80}]}}',
        b'{"spec": {"selector": {"app": "x"}}}',
    ],
)
def test_a_pool_that_selects_nothing_sensible_is_a_failure(data: bytes) -> None:
    with pytest.raises(ApiFailure):
        read_pool(data)


async def test_pods_are_listed_by_the_pools_selector() -> None:
    api = ObjectCluster()
    api.cluster.put(pod("a"))
    api.cluster.put(pod("b", ip="10.0.0.2", labels={"app": "other"}))
    source = PoolSource(api, NAME)
    assert source.ports() == ()
    listed = await source.list_pods("llm", "whatever")
    assert [each.metadata.name for each in listed.pods] == ["a"]
    assert source.ports() == ("8000",)


async def test_no_pool_is_a_failure_that_names_it() -> None:
    """So known workers stay, and the problem is told."""
    api = ObjectCluster()
    api.pool = None
    with pytest.raises(ApiFailure, match="there is no InferencePool llm/pool"):
        await PoolSource(api, NAME).list_pods("llm", "")


async def watched(source: PoolSource, version: str) -> list[Any]:
    return [event async for event in source.watch_pods("llm", "", version, 60)]


async def test_a_watch_before_the_first_list_lists_first() -> None:
    with pytest.raises(Gone):
        await watched(PoolSource(ObjectCluster(), NAME), "0")


@pytest.mark.parametrize("change", [pool({"app": "other"}), pool(None, 9000)])
async def test_a_change_of_the_pool_ends_the_watch_so_that_pods_are_listed_again(change: bytes) -> None:
    api = ObjectCluster()
    source = PoolSource(api, NAME, look_s=0.005)
    listed = await source.list_pods("llm", "")
    watching = asyncio.create_task(watched(source, listed.version))
    api.fails = True  # a pool that cannot be read has not changed
    await asyncio.sleep(0.02)
    assert not watching.done()
    api.fails, api.pool = False, change
    with pytest.raises(Gone):
        await watching


async def test_events_pass_and_the_pool_is_looked_at_meanwhile() -> None:
    api = ObjectCluster()
    source = PoolSource(api, NAME, look_s=0.001)
    listed = await source.list_pods("llm", "")
    events = source.watch_pods("llm", "", listed.version, 60)
    api.cluster.put(pod("a"))
    event = await anext(events)
    assert event.pod.metadata.name == "a"
    await events.aclose()


async def test_credentials_and_connections_are_those_of_the_api_server() -> None:
    api = ObjectCluster()
    source = PoolSource(api, NAME)
    await source.renew()
    await source.close()
    assert (api.renewed, api.closed) == (True, True)
