"""The workers of one process: how they are reached, asked and looked after."""

from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from policies import BOOTSTRAP_HOST_LABEL, FleetState
from router.destinations import Destinations
from router.discovery import scopes_of
from router.fleet import (
    Asker,
    Core,
    EngineMetrics,
    HealthChecks,
    LocalWorker,
    Registry,
    WorkerKey,
    asked_page,
    asking_client,
    label_hosts,
)
from router.open_files import probes_max
from router.process.loops import Loop
from router.proxy import WorkerPool
from router.settings import FleetSettings, Settings
from router.shared import LogPort
from router.tls import worker_context


class WorkerSide:
    """The workers of one process.

    Args:
        settings: The effective settings.
        fleet: The shared state.
        log: Publishes changes.
        discovers: Returns True if discovery sees a pod at a URL.
        may_resend: Returns True if a request that met a stale connection may be sent once more.
        connected: Gets each new connection, and the seconds that it took to make it.
    """

    def __init__(
        self,
        settings: Settings,
        fleet: FleetState,
        log: LogPort,
        *,
        discovers: Callable[[str], bool],
        may_resend: Callable[[], bool],
        connected: Callable[[LocalWorker, float], None],
    ) -> None:
        self._settings = settings
        self._may_resend = may_resend
        worker_key = settings.fleet.worker_api_key
        self._tls = worker_context(settings.upstream)
        self.destinations = _destinations(settings.fleet)
        self._worker_key = WorkerKey(
            worker_key.get_secret_value() if worker_key else None,
            self.destinations,
            urls=(worker.url for worker in settings.fleet.workers),
            scopes=scopes_of(settings.discovery, settings.picker.pool),
            discovers=discovers,
        )
        asker = Asker(self.destinations, self._tls, key_at=self._worker_key.shown_at)
        self.client = asking_client(asker, timeout_s=settings.fleet.health_check_timeout_s)
        registry = Registry(
            fleet,
            log,
            settings.fleet,
            settings.reliability,
            make_pool=self._pool,
            check_host=self.destinations.check_host,
            check_engine_host=self.destinations.check_engine_host,
            worker_key=self._worker_key,
        )
        self.core = Core(fleet, registry, log)
        self.health = HealthChecks(
            registry,
            asker,
            settings.fleet,
            connected,
            replicas=log.replicas,
            places=probes_max(),
        )
        self.engine_metrics = EngineMetrics(
            self.core,
            partial(asked_page, asker),
            settings.admission,
            settings.fleet.health_check_timeout_s,
        )

    def loops(self) -> list[Loop]:
        """Return the tasks to run while the process serves."""
        return [("health checks", self.health.run), ("engine metrics", self.engine_metrics.run)]

    def use(self, new: Settings) -> None:
        """Look after workers by these settings from now on."""
        self._settings = new
        registry = self.core.registry
        registry.rules = new.fleet
        registry.circuits.use(new.reliability, registry.all())
        self.health.use(new.fleet)
        self.engine_metrics.rules = new.admission
        self.engine_metrics.timeout_s = new.fleet.health_check_timeout_s
        for local in registry.all():
            local.pool.rules = new.upstream

    def use_key(self, key: bytes) -> None:
        """Show workers another key."""
        self._worker_key.use(key.decode())
        self.core.registry.key_changed()

    def add_named(self) -> None:
        """Add the workers that the settings name."""
        for worker in self._settings.fleet.workers:
            self.core.registry.add(worker.url, role=worker.role, labels=dict(worker.labels), static=True)

    def _pool(self, url: str) -> WorkerPool:
        upstream = self._settings.upstream
        return WorkerPool(
            url,
            upstream,
            # A burst of new streams waits while its connections are made.
            waiting_max=upstream.connections_max,
            ssl=self._tls,
            resolve=self.destinations.resolve,
            answer_headers=[name.encode() for name in upstream.answer_headers],
            may_resend=self._may_resend,
        )


def _destinations(fleet: FleetSettings) -> Destinations:
    named = {urlsplit(worker.url).hostname or "" for worker in fleet.workers}
    named |= {worker.labels.get(BOOTSTRAP_HOST_LABEL, "").strip("[]") for worker in fleet.workers}
    named |= {host for worker in fleet.workers for host in label_hosts(worker.labels)}
    return Destinations(
        fleet.worker_networks,
        fleet.worker_hosts,
        loopback=not fleet.disable_loopback_workers,
        named=named,
        keyed=fleet.worker_api_key is not None,
    )
