"""From settings to a `Discovery`, where discovery is on."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from router.destinations import Destinations
from router.discovery.discovery import Discovery
from router.discovery.pods import PodRules
from router.discovery.rules import DiscoveryRules
from router.discovery.source import ApiFailure
from router.discovery.watch import Selection
from router.errors import SettingsError
from router.fleet import Core

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig


def check_discovery(rules: DiscoveryRules) -> None:
    """See that pods can be asked for, before anything starts.

    Raises:
        SettingsError: There is no client, or no API server is configured.
    """
    if not rules.service_discovery:
        return
    if importlib.util.find_spec("lightkube") is None:
        problem = "the Kubernetes client is not installed; install Cacheway with the extra kubernetes"
        raise SettingsError([f"discovery.service_discovery: {problem}"])
    from router.discovery.api_server import find_server

    try:
        find_server(rules.kubeconfig)
    except ApiFailure as failure:
        raise SettingsError([f"discovery.service_discovery: {failure.message}"]) from failure


def make_discovery(
    rules: DiscoveryRules,
    core: Core,
    destinations: Destinations,
    pair_labels: Mapping[str, str],
) -> Discovery | None:
    """Build it as the settings say; None where it is off.

    Args:
        rules: Which pods.
        core: The fleet.
        destinations: Judges where workers may be.
        pair_labels: Labels of prefill and decode workers whose pods do not set them.

    Raises:
        ApiFailure: No API server is configured.
    """
    if not rules.service_discovery:
        return None
    # Importing the client takes some 0.1 s and 5 MB.
    from router.discovery.api_server import ApiServer, find_server

    config = find_server(rules.kubeconfig)
    watched = [(selection, ApiServer(rules.kubeconfig)) for selection in selections_of(rules, config)]
    return Discovery(
        watched,
        PodRules(rules.ports, pair_labels, destinations.check_host, destinations.check_engine_host),
        core,
        resync_s=rules.resync_s,
    )


def scopes_of(rules: DiscoveryRules) -> frozenset[str]:
    """The scopes of the selections that the settings make, by which discovery notes its workers.

    Raises:
        ApiFailure: No API server is configured.
    """
    if not rules.service_discovery:
        return frozenset()
    from router.discovery.api_server import find_server

    return frozenset(each.scope for each in selections_of(rules, find_server(rules.kubeconfig)))


def selections_of(rules: DiscoveryRules, config: "SingleConfig") -> list[Selection]:
    """The selections that the settings make of a cluster's pods."""
    return [
        Selection(cluster_of(config), namespace, role, selector)
        for namespace in rules.namespaces or (config.namespace.strip(),)
        for role, selector in rules.selectors.items()
    ]


def cluster_of(config: "SingleConfig") -> str:
    """What tells a cluster from others: seen from its pods, every one has the same address."""
    cluster = config.cluster
    authority = cluster.certificate_auth_data or ""
    if not authority and cluster.certificate_auth:
        try:
            authority = Path(config.abs_file(cluster.certificate_auth)).read_text()
        except OSError:
            authority = ""  # connecting will say so
    return f"{cluster.server} {authority}"
