"""From settings to a `Discovery`, where discovery is on."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from policies import HANDOVER_LABEL
from router.destinations import Destinations
from router.discovery.discovery import Discovery
from router.discovery.pods import PodRules
from router.discovery.source import ApiFailure
from router.discovery.watch import Selection
from router.fleet import Core
from router.settings import DiscoverySettings, Settings
from router.sources import SettingsError

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig


def check_discovery(settings: Settings) -> None:
    """See that pods can be asked for, before anything starts.

    Raises:
        SettingsError: There is no client, or no API server is configured.
    """
    if not settings.discovery.service_discovery:
        return
    if importlib.util.find_spec("lightkube") is None:
        problem = "the Kubernetes client is not installed; install cacheway[kubernetes]"
        raise SettingsError([f"discovery.service_discovery: {problem}"])
    from router.discovery.api_server import find_server

    try:
        find_server(settings.discovery.kubeconfig)
    except ApiFailure as failure:
        raise SettingsError([f"discovery.service_discovery: {failure.message}"]) from failure


def make_discovery(
    settings: Settings,
    core: Core,
    destinations: Destinations,
) -> Discovery | None:
    """Build it as the settings say; None where it is off.

    Args:
        settings: All of them.
        core: The fleet.
        destinations: Judges where workers may be.

    Raises:
        ApiFailure: No API server is configured.
    """
    wanted = settings.discovery
    if not wanted.service_discovery:
        return None
    # Importing the client takes some 0.1 s and 5 MB.
    from router.discovery.api_server import ApiServer, find_server

    config = find_server(wanted.kubeconfig)
    watched = [(selection, ApiServer(wanted.kubeconfig)) for selection in selections_of(wanted, config)]
    pair_labels = (
        {HANDOVER_LABEL: settings.fleet.kv_connector} if settings.fleet.vllm_pd_disaggregation else {}
    )
    return Discovery(
        watched,
        PodRules(wanted.ports, pair_labels, destinations.check_host, destinations.check_engine_host),
        core,
        resync_s=wanted.resync_s,
    )


def scopes_of(wanted: DiscoverySettings) -> frozenset[str]:
    """The scopes of the selections that the settings make, by which discovery notes its workers.

    Raises:
        ApiFailure: No API server is configured.
    """
    if not wanted.service_discovery:
        return frozenset()
    from router.discovery.api_server import find_server

    return frozenset(each.scope for each in selections_of(wanted, find_server(wanted.kubeconfig)))


def selections_of(wanted: DiscoverySettings, config: "SingleConfig") -> list[Selection]:
    """The selections that the settings make of a cluster's pods."""
    return [
        Selection(cluster_of(config), namespace, role, selector)
        for namespace in wanted.namespaces or (config.namespace.strip(),)
        for role, selector in wanted.selectors.items()
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
