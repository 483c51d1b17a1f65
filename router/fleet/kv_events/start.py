"""From settings to `KvEvents`."""

import importlib.util
from collections.abc import Callable

import httpx

from policies import FleetState, Op
from router.destinations import Destinations
from router.fleet.address import normal_url, worker_id_of
from router.fleet.kv_events.following import KvEvents
from router.fleet.registry import Registry
from router.settings import Settings
from router.shared import LogStatus
from router.sources import SettingsError


def check_kv_events(settings: Settings) -> None:
    """See that events can be received, before anything starts.

    Raises:
        SettingsError: They are wanted, and ZeroMQ is not installed.
    """
    if settings.fleet.kv_events != "off" and importlib.util.find_spec("zmq") is None:
        raise SettingsError(["fleet.kv_events: ZeroMQ is not installed; install cacheway[kv-events]"])


def make_kv_events(
    settings: Settings,
    registry: Registry,
    fleet: FleetState,
    client: httpx.AsyncClient,
    *,
    publish: Callable[[Op], None],
    now_us: Callable[[], int],
    replica: str,
    log_status: Callable[[], LogStatus],
    root_of: Callable[[str, str], int],
    destinations: Destinations,
) -> KvEvents:
    """Build it as the settings say.

    Args:
        settings: All of them.
        registry: The workers.
        fleet: The shared state.
        client: Asks engines where they publish.
        publish: Tells all replicas.
        now_us: Log time.
        replica: Id of this replica.
        log_status: How the shared log is.
        root_of: Root of the token ids that an engine caches under a model's name and a salt.
        destinations: Where the gateway connects to.
    """
    models = settings.placement.models
    with_ids = {name for name, model in models.items() if model.tokenizer}

    def identifies(model: str) -> bool:
        return (model if model in models else "*") in with_ids

    return KvEvents(
        registry,
        fleet,
        client,
        on=settings.fleet.kv_events != "off",
        publish=publish,
        now_us=now_us,
        replica=replica,
        replicas=lambda: log_status().replicas,
        buffered_ops=lambda: log_status().buffered_ops,
        root_of=root_of,
        identifies=identifies,
        named=frozenset(worker_id_of(normal_url(worker.url)) for worker in settings.fleet.workers),
        check_host=destinations.check_host,
        resolve=destinations.resolve,
        timeout_s=settings.fleet.health_check_timeout_s,
    )
