"""From settings to a `Discovery`, where discovery is on."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from router.destinations import Destinations
from router.discovery.discovery import Discovery
from router.discovery.inference_pool import PodPool, PoolName, PoolSource
from router.discovery.pods import PodRules
from router.discovery.rules import DiscoveryRules
from router.discovery.source import ApiFailure, Source
from router.discovery.watch import Selection
from router.errors import SettingsError
from router.fleet import Core

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig


def check_discovery(rules: DiscoveryRules, pool: PodPool | None = None) -> None:
    """See that pods can be asked for, before anything starts.

    Raises:
        SettingsError: There is no client, or no API server is configured.
    """
    if pool is not None and rules.service_discovery:
        problem = "pods are found by the pool; turn off discovery.service_discovery"
        raise SettingsError([f"picker.pool_name: {problem}"])
    if not (rules.service_discovery or pool):
        return
    name = "picker.pool_name" if pool else "discovery.service_discovery"
    if importlib.util.find_spec("lightkube") is None:
        problem = "the Kubernetes client is not installed; install Cacheway with the extra kubernetes"
        raise SettingsError([f"{name}: {problem}"])
    from router.discovery.api_server import find_server

    try:
        find_server(rules.kubeconfig)
    except ApiFailure as failure:
        raise SettingsError([f"{name}: {failure.message}"]) from failure


def make_discovery(
    rules: DiscoveryRules,
    core: Core,
    destinations: Destinations,
    pair_labels: Mapping[str, str],
    pool: PodPool | None = None,
) -> Discovery | None:
    """Build it as the settings say; None where it is off.

    Args:
        rules: Selection of pods.
        core: The fleet.
        destinations: Judges where workers may be.
        pair_labels: Labels of prefill and decode workers whose pods do not set them.
        pool: A picker's pool.

    Raises:
        ApiFailure: No API server is configured.
    """
    if not (rules.service_discovery or pool):
        return None
    # Importing the client takes some 0.1 s and 5 MB.
    from router.discovery.api_server import ApiServer, find_server

    config = find_server(rules.kubeconfig)
    ports = rules.ports
    pool_ports: Callable[[], tuple[str, ...]] = tuple
    selections = selections_of(rules, config, pool)
    watched: list[tuple[Selection, Source]]
    if pool is not None and pool.name:
        (selection,) = selections
        name = PoolName(pool.group, selection.namespace, pool.name)
        source = PoolSource(ApiServer(rules.kubeconfig), name)
        watched, pool_ports = [(selection, source)], source.ports
    else:
        watched = [(selection, ApiServer(rules.kubeconfig)) for selection in selections]
        ports = rules.ports if pool is None else pool.ports
    return Discovery(
        watched,
        PodRules(ports, pair_labels, destinations.check_host, destinations.check_engine_host, pool_ports),
        core,
        resync_s=rules.resync_s,
    )


def scopes_of(rules: DiscoveryRules, pool: PodPool | None = None) -> frozenset[str]:
    """The scopes of the selections that the settings make, by which discovery notes its workers.

    Raises:
        ApiFailure: No API server is configured.
    """
    if not (rules.service_discovery or pool):
        return frozenset()
    from router.discovery.api_server import find_server

    return frozenset(each.scope for each in selections_of(rules, find_server(rules.kubeconfig), pool))


def selections_of(
    rules: DiscoveryRules, config: "SingleConfig", pool: PodPool | None = None
) -> list[Selection]:
    """The selections that the settings make of a cluster's pods.

    A pool is one selection with any selector, so a change of its selector changes the workers of this scope.
    """
    if pool is not None:
        selector = ",".join(sorted(pool.selector)) or f"{pool.group}/{pool.name}"
        namespace = pool.namespace or config.namespace.strip()
        return [Selection(cluster_of(config), namespace, "", selector)]
    return [
        Selection(cluster_of(config), namespace, role, selector)
        for namespace in rules.namespaces or (config.namespace.strip(),)
        for role, selector in rules.selectors.items()
    ]


def cluster_of(config: "SingleConfig") -> str:
    """Address and authority of a cluster: seen from its pods, every cluster has the same address."""
    cluster = config.cluster
    authority = cluster.certificate_auth_data or ""
    if not authority and cluster.certificate_auth:
        try:
            authority = Path(config.abs_file(cluster.certificate_auth)).read_text()
        except OSError:
            authority = ""  # connecting will say so
    return f"{cluster.server} {authority}"
