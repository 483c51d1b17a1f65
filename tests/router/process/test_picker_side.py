"""A process has a picker where the settings say so."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from fakes.cluster import Cluster
from fakes.cluster_api import ClusterApi
from fakes.gateway import Bench

from router.open_files import UNLIMITED
from router.process.client_side import ClientSide
from router.process.picker_side import _is_listed, make_picker, picker_loops
from router.relaying import Routes
from router.settings import Settings


async def test_without_the_setting_nothing_is_made() -> None:
    bench = Bench()
    clients = ClientSide(bench.settings, bench.metrics, UNLIMITED)
    assert (
        make_picker(
            bench.settings, bench.gateway, bench.metrics, clients, None, bench.pairs, Routes(bench.settings)
        )
        is None
    )
    assert picker_loops(bench.settings, None) == []


async def test_its_loops_are_the_servers_and_the_objects_of_a_named_pool(tmp_path: Path) -> None:
    async with ClusterApi(Cluster()).serving() as api:
        for pool, names in (("", ["picker"]), ("pool", ["picker", "pool objects"])):
            sections = {
                "picker": {"enabled": True, "pool_name": pool},
                "discovery": {"kubeconfig": api.kubeconfig(tmp_path)},
            }
            bench = Bench()
            settings = Settings.model_validate(sections)
            clients = ClientSide(settings, bench.metrics, UNLIMITED)
            picker = make_picker(
                settings, bench.gateway, bench.metrics, clients, None, bench.pairs, Routes(settings)
            )
            assert picker is not None
            assert [name for name, _ in picker_loops(settings, picker)] == names
            bench.metrics.flush()
            assert b"cacheway_picker_streams 0.0" in cast(tuple[bytes, str], bench.metrics.exposition())[0]
            clients.ending.begin()
            assert not picker.ready
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("method", "path", "listed"),
    [
        (b"POST", b"/v1/chat/completions", True),
        (b"POST", b"/v1/audio/transcriptions", True),
        (b"GET", b"/v1/responses/a", True),
        (b"GET", b"/more", True),
        (b"GET", b"/v1/models", True),
        (b"HEAD", b"/v1/models/m", True),
        (b"GET", b"/health", True),
        (b"GET", b"/v1/models/org%2Fm-1.5", True),
        (b"GET", b"/v1/models/../../metrics", False),
        (b"GET", b"/v1/models/%2e%2E/x", False),
        (b"POST", b"/v1/models", False),
        (b"GET", b"/metrics", False),
        (b"POST", b"/flush_cache", False),
        (b"POST", b"/v1/load_lora_adapter", False),
        (b"GET", b"/v1/chat/completions", False),
        (b"POST", b"/shutdown", False),
    ],
)
def test_only_listed_paths_may_reach_a_worker(method: bytes, path: bytes, listed: bool) -> None:
    routes = Routes(Settings.model_validate({"upstream": {"pass_through": ["/more"]}}))
    assert _is_listed(routes, method, path) is listed
