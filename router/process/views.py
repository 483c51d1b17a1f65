"""What operators see of a process and may do to it: the ports of the admin API, and the console's feeds."""

from collections.abc import Callable
from importlib.metadata import version

from router.admin import (
    AdminPorts,
    FleetSights,
    LinkPorts,
    OffloadPorts,
    QueuePorts,
    ReplicaSights,
    SettingsPorts,
)
from router.console import EventStream, Pulse
from router.discovery import Discovery
from router.fleet import RolePlanner
from router.fleet.kv_events import KvEvents
from router.gateway import Gateway
from router.live_settings import LiveSettings
from router.process.tenant_side import TenantSide
from router.process.worker_side import WorkerSide
from router.proxy import Ending
from router.samples import Samples
from router.shared import SharedState


class Views:
    """The views of one process.

    Args:
        gateway: Decides, and remembers.
        live: The settings as they are now.
        workers: The workers' side.
        tenants: The tenants' side.
        shared: Knows the vitals of all replicas.
        ending: Whether this process was told to end.

    Attributes:
        pulse: The fleet's figures of the last ten minutes.
        console: Feeds the console's pages.
        samples: What a scrape reads of workers, links and the plan.
    """

    def __init__(
        self,
        gateway: Gateway,
        live: LiveSettings,
        workers: WorkerSide,
        tenants: TenantSide,
        shared: SharedState,
        ending: Ending,
    ) -> None:
        self._gateway, self._live, self._workers, self._tenants = gateway, live, workers, tenants
        self._shared, self._ending = shared, ending
        self.samples = Samples(gateway)
        log, placing, reports = gateway.log, gateway.placing, gateway.reports
        self._queue = QueuePorts(
            replica=log.replica,
            fleet=gateway.fleet,
            registry=gateway.registry,
            admission=placing.admission,
            room=placing.room,
            settings=lambda: live.current.queue,
            refusals=reports.refusals,
            now_us=log.now_us,
        )
        self._links = LinkPorts(gateway.fleet.links, self.samples.link_state, log.now_us)
        sights = FleetSights(
            version=version("cacheway"),
            recent=reports.decisions,
            offloading=placing.decider.offloading,
            queue=self._queue,
            links=self._links,
            log_status=log.status,
            seen=ReplicaSights(shared.replicas_vitals),
            settings=lambda: live.current,
            keys=tenants.keys,
            limits=lambda: tenants.leases.degraded_reason,
            ending=lambda: ending.begun,
            refused_settings=lambda: live.refused,
        )
        self.pulse = Pulse(sights)
        self.console = EventStream(sights, self.pulse, lambda: ending.begun)

    def ports(
        self,
        degraded: Callable[[], tuple[str, ...]],
        roles: RolePlanner,
        discovery: Discovery | None,
        kv_events: KvEvents,
    ) -> AdminPorts:
        """Return what the admin API may see and do.

        Args:
            degraded: What does not work, a sentence each.
            roles: Plans roles.
            discovery: Of pods; None where it is off.
            kv_events: Follows what engines say of their caches.
        """
        gateway, live, tenants, ending = self._gateway, self._live, self._tenants, self._ending
        log, settings = gateway.log, live.current
        return AdminPorts(
            version=version("cacheway"),
            replica=log.replica,
            fleet=gateway.fleet,
            registry=gateway.registry,
            publish=log.publish,
            now_us=log.now_us,
            log_status=log.status,
            request_id_of=gateway.reader.request_id_of,
            door=gateway.reader.door,
            keys=tenants.keys,
            limiter=tenants.limiter,
            tokens=tenants.tokens,
            replicas_vitals=self._shared.replicas_vitals,
            degraded=degraded,
            hits=gateway.placing.feedback.hits,
            metrics=gateway.metrics,
            client=self._workers.client,
            shutting_down=lambda: ending.begun,
            queue=self._queue,
            links=self._links,
            offload=OffloadPorts(
                gateway.placing.decider.offloading,
                lambda: live.current.offload,
                tuple(gateway.fleet.rules.links),
                log.now_us,
            ),
            roles=roles,
            gateway=gateway,
            body_bytes_max=settings.server.body_bytes_max,
            discovery=discovery,
            kv_events=kv_events,
            settings=SettingsPorts(log.replica, live, log.status),
            console=self.console,
        )
