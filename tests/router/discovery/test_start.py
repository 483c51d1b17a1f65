"""From settings to discovery."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import Cluster
from fakes.cluster_api import ClusterApi
from fakes.gateway import FakeShared, VirtualTime, log_port, registry

from router.destinations import Destinations
from router.discovery import Discovery, DiscoveryRules, check_discovery, make_discovery
from router.discovery.api_server import find_server
from router.discovery.start import cluster_of
from router.errors import SettingsError
from router.fleet import Core
from router.settings import Settings


def wanted(folder: Path, **discovery: Any) -> Settings:
    api = ClusterApi(Cluster())
    api.url = "http://127.0.0.1:1"
    sections = {"service_discovery": True, "kubeconfig": api.kubeconfig(folder), **discovery}
    return Settings.model_validate({"discovery": sections})


def made(settings: Settings) -> Discovery | None:
    shared, time = FakeShared(), VirtualTime()
    return make_discovery(
        settings.discovery,
        Core(shared.fleet, registry(shared, time), log_port(shared, time)),
        Destinations(),
        settings.fleet.pair_labels,
    )


def test_without_it_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    check_discovery(DiscoveryRules())
    assert made(Settings()) is None


async def test_each_namespace_and_role_is_a_selection(tmp_path: Path) -> None:
    settings = wanted(
        tmp_path, prefill_selector=["part=p"], decode_selector=["part=d"], namespaces=["a", "b"]
    )
    discovery = made(settings)
    assert discovery is not None
    assert [(watch.selection.namespace, watch.selection.role) for watch in discovery.watches] == [
        ("a", "prefill"),
        ("a", "decode"),
        ("b", "prefill"),
        ("b", "decode"),
    ]


async def test_the_gateways_own_namespace_is_the_default(tmp_path: Path) -> None:
    discovery = made(wanted(tmp_path, selector=["app=engine"]))
    assert discovery is not None
    assert [watch.selection.namespace for watch in discovery.watches] == ["llm"]


def test_clusters_differ_by_their_authority(tmp_path: Path) -> None:
    """Seen from its pods, every cluster has the same address."""
    scopes = set()
    for authority in ("one", "two"):
        settings = wanted(tmp_path, selector=["app=engine"])
        path = Path(settings.discovery.kubeconfig)
        (tmp_path / "ca").write_text(authority)
        path.write_text(path.read_text().replace('"server"', '"certificate-authority": "ca", "server"'))
        scopes.add(cluster_of(find_server(str(path))))
    assert len(scopes) == 2


def test_a_client_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"the extra kubernetes"):
        check_discovery(wanted(tmp_path, selector=["app=engine"]).discovery)


def test_a_cluster_that_cannot_be_found_stops_the_start(tmp_path: Path) -> None:
    settings = wanted(tmp_path, selector=["app=engine"])
    check_discovery(settings.discovery)
    Path(settings.discovery.kubeconfig).unlink()
    with pytest.raises(SettingsError, match="no API server is configured"):
        check_discovery(settings.discovery)
