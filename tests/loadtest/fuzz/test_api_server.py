"""The gateway's own source of pods reads the lists and watches of this API server."""

import asyncio
import json
from pathlib import Path

import pytest

from loadtest.fuzz.api_server import ApiServer
from loadtest.fuzz.pods import NAMESPACE
from router.discovery.api_server import ApiServer as Source
from router.discovery.source import ApiFailure


def pod(name: str) -> bytes:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": "engine"}}
    return json.dumps({"metadata": metadata, "spec": {}, "status": {"podIP": "127.0.0.1"}}).encode()


async def test_pods_are_listed_and_watched(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put("a", pod("a"))
        source = Source(str(server.kubeconfig(tmp_path)))
        listed = await source.list_pods(NAMESPACE, "app=engine")
        assert [each.metadata.name for each in listed.pods] == ["a"]
        watch = source.watch_pods(NAMESPACE, "app=engine", listed.version, 60)
        first = asyncio.ensure_future(anext(watch))
        while not first.done():
            server.put("b", pod("b"))
            await asyncio.wait((first,), timeout=0.2)
        assert (first.result().kind, first.result().pod.metadata.name) == ("ADDED", "b")
        server.delete("b")
        async for event in watch:
            if event.kind == "DELETED":
                assert event.pod.metadata.name == "b"
                break
        await watch.aclose()
        await source.close()


async def test_a_pod_may_be_no_json(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put("a", b"{{{")
        source = Source(str(server.kubeconfig(tmp_path)))
        with pytest.raises(ApiFailure):
            await source.list_pods(NAMESPACE, "app=engine")
        server.delete("a")
        assert (await source.list_pods(NAMESPACE, "app=engine")).pods == ()
        await source.close()
