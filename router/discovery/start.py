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
    """Raise `SettingsError` if discovery is on without a client or a configured API server."""
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


def make_discovery(settings: Settings, core: Core, destinations: Destinations) -> Discovery | None:
    """Build discovery by the settings; None where it is off. Raise `ApiFailure` without an API server."""
    discovery = settings.discovery
    if not discovery.service_discovery:
        return None
    # Importing the client takes some 0.1 s and 5 MB.
    from router.discovery.api_server import ApiServer

    watched = [(selection, ApiServer(discovery.kubeconfig)) for selection in selections_of(discovery)]
    pair_labels = (
        {HANDOVER_LABEL: settings.fleet.kv_connector} if settings.fleet.vllm_pd_disaggregation else {}
    )
    return Discovery(
        watched,
        PodRules(discovery.ports, pair_labels, destinations.check_host, destinations.check_engine_host),
        core,
        resync_s=discovery.resync_s,
    )


def scopes_of(discovery: DiscoverySettings) -> frozenset[str]:
    """Scopes of the selections in the settings, which mark discovered workers; may raise `ApiFailure`."""
    if not discovery.service_discovery:
        return frozenset()
    return frozenset(selection.scope for selection in selections_of(discovery))


def selections_of(discovery: DiscoverySettings) -> list[Selection]:
    """Selections of a cluster's pods in the settings; may raise `ApiFailure`."""
    from router.discovery.api_server import find_server

    config = find_server(discovery.kubeconfig)
    return [
        Selection(cluster_of(config), namespace, role, selector)
        for namespace in discovery.namespaces or (config.namespace.strip(),)
        for role, selector in discovery.selectors.items()
    ]


def cluster_of(config: "SingleConfig") -> str:
    """Identify a cluster: seen from its pods, every one has the same address."""
    cluster = config.cluster
    authority = cluster.certificate_auth_data or ""
    if not authority and cluster.certificate_auth:
        try:
            authority = Path(config.abs_file(cluster.certificate_auth)).read_text()
        except OSError:
            authority = ""  # connecting will say so
    return f"{cluster.server} {authority}"
