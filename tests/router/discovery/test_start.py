"""From settings to discovery."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import Cluster
from fakes.cluster_api import ClusterApi
from fakes.gateway import FakeShared, VirtualTime, log_port, registry

from router.destinations import Destinations
from router.discovery import (
    Discovery,
    DiscoveryRules,
    PodPool,
    check_discovery,
    make_discovery,
    scopes_of,
)
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


def made(settings: Settings, pool: PodPool | None = None) -> Discovery | None:
    shared, time = FakeShared(), VirtualTime()
    return make_discovery(
        settings.discovery,
        Core(shared.fleet, registry(shared, time), log_port(shared, time)),
        Destinations(),
        settings.fleet.pair_labels,
        pool,
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


async def test_a_pool_is_one_selection_whatever_it_selects(tmp_path: Path) -> None:
    """Its scope stays, so that a change of its selector removes the workers of the former one."""
    config = wanted(tmp_path, selector=["app=engine"]).discovery.kubeconfig
    rules = DiscoveryRules(kubeconfig=config)
    for pool in (PodPool("pool", "ns"), PodPool(selector=frozenset({"b=1", "a=1"}), ports=("80",))):
        discovery = made(Settings.model_validate({"discovery": {"kubeconfig": config}}), pool)
        assert discovery is not None
        (watch,) = discovery.watches
        assert scopes_of(rules, pool) == {watch.selection.scope}
        named = ("ns", "inference.networking.k8s.io/pool") if pool.name else ("llm", "a=1,b=1")
        assert (watch.selection.namespace, watch.selection.selector) == named
    assert scopes_of(rules) == frozenset()


def test_a_pool_needs_a_cluster_and_excludes_other_selectors(tmp_path: Path) -> None:
    settings, pool = wanted(tmp_path, selector=["app=engine"]), PodPool("pool")
    with pytest.raises(SettingsError, match="turn off discovery"):
        check_discovery(settings.discovery, pool)
    alone = DiscoveryRules(kubeconfig=settings.discovery.kubeconfig)
    check_discovery(alone, pool)
    Path(alone.kubeconfig).unlink()
    with pytest.raises(SettingsError, match=r"picker\.pool_name: no API server"):
        check_discovery(alone, pool)
