"""State of a process: metrics that are read at each scrape, counts of the log, and faults in sentences."""

from collections.abc import Callable, Mapping

from router.discovery import Discovery
from router.fleet import Core, Health
from router.fleet.kv_events import KvEvents
from router.gateway import Gateway
from router.handover import Handover
from router.live_settings import LiveSettings
from router.logs import lines_dropped
from router.metric_families import (
    CLIENT_CONNECTIONS,
    DISCOVERY_FAILURES,
    DISCOVERY_MISSED,
    DISCOVERY_RESTARTS,
    ENGINE_REPORT_FAILURES,
    ENGINE_REPORTS,
    HANDOVER_EVENTS,
    HEADER_NAMES_DROPPED,
    HELD_BYTES,
    INFLIGHT_REQUESTS,
    KV_EVENT_BATCHES,
    KV_EVENT_CORRECTIONS,
    KV_EVENT_FORGETS,
    KV_EVENT_GAPS,
    KV_EVENT_LOSSES,
    KV_EVENT_REPLAYS,
    KV_EVENTS,
    KV_EVENTS_INVALID,
    LIMIT_ROUNDS,
    LIMIT_SHARES,
    LOG_LINES_DROPPED,
    OFFLOAD_DECISIONS,
    OWN_POLICY_DECISIONS,
    OWN_POLICY_LATE,
    OWN_POLICY_OFF,
    OWN_POLICY_SECONDS,
    PROBES_REBUILT,
    REGISTERS_DIFFER,
    REGISTERS_PUBLISHED_AGAIN,
    SESSIONS,
    SESSIONS_UNTOLD,
    SETTINGS_OVERRIDDEN,
    STORED_RESPONSES,
    STORED_RESPONSES_UNTOLD,
    TRACE_LINES_DROPPED,
    TREE_BLOCKS,
    TREE_NODES,
    WORKERS_SPARED,
    Family,
)
from router.metrics import Component, Metrics
from router.own_policies import FailureReason, OwnPolicies
from router.pairs import PairPlugin
from router.process.client_side import ClientSide
from router.process.tenant_side import TenantSide
from router.process.worker_side import WorkerSide
from router.request_trace import RequestTrace
from router.sessions import Sessions
from router.shared import NoListener, RefusalReason, SessionHomes, StoredResponses

Report = Callable[[Metrics], None]


class LogListener(NoListener):
    """Counts operations and refused snapshots for the metrics.

    ``changed`` is called when operations of others were applied, or a snapshot was merged.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.published_ops = 0
        self.applied_ops = 0
        self.snapshots_refused = 0

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        """Count this replica's operations."""
        self.published_ops += ops

    def applied(self, ops: int, lag_s: float) -> None:
        """Count other replicas' operations; they may let a waiting request go."""
        self.applied_ops += ops
        self._changed()

    def snapshot_merged(self) -> None:
        """All may be new."""
        self._changed()

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """Count an unusable snapshot; the log line has the reason."""
        self.snapshots_refused += 1


def reports_of(*parts: Report | None) -> list[Report]:
    """Drop the reports of parts that are off."""
    return [part for part in parts if part is not None]


def report_requests(gateway: Gateway) -> Report:
    """Return the report of requests under way and of the queue."""

    def report(metrics: Metrics) -> None:
        room, inversions = gateway.placing.room, gateway.fleet.tickets.inversions
        metrics.set(INFLIGHT_REQUESTS, gateway.sending.inflight)
        metrics.queue(
            gateway.placing.waiting(gateway.reader.priorities.names),
            drain_s=room.longest_drain_s(),
            inversions=inversions.count,
            inversion_s_max=inversions.us_max / 1e6,
            rooms_overdue=room.overdue,
        )

    return report


def report_clients(clients: ClientSide) -> Report:
    """Return the report of connections and bodies."""

    def report(metrics: Metrics) -> None:
        metrics.set(CLIENT_CONNECTIONS, clients.clients.connections)
        metrics.set(HELD_BYTES, clients.held.count)

    return report


def report_sessions(
    gateway: Gateway, sessions: Sessions, homes: SessionHomes, responses: StoredResponses
) -> Report:
    """Return the report of sessions, stored responses and headers."""

    def report(metrics: Metrics) -> None:
        metrics.set(SESSIONS, len(sessions))
        metrics.follow(SESSIONS_UNTOLD, homes.dropped)
        metrics.set(STORED_RESPONSES, len(responses))
        metrics.follow(STORED_RESPONSES_UNTOLD, responses.dropped)
        metrics.set(HEADER_NAMES_DROPPED, gateway.reader.forwarding.headers.dropped)

    return report


def report_workers(workers: WorkerSide) -> Report:
    """Return the report of workers and of questions to them."""

    def report(metrics: Metrics) -> None:
        core = workers.core
        healthy = all(local.health is Health.HEALTHY for local in core.registry.all())
        metrics.degraded(Component.WORKERS, on=not healthy)
        metrics.set(WORKERS_SPARED, len(core.registry.circuits.spared))
        metrics.follow(ENGINE_REPORTS, workers.engine_metrics.reports)
        metrics.follow(ENGINE_REPORT_FAILURES, workers.engine_metrics.failures)
        metrics.follow(PROBES_REBUILT, workers.health.rebuilt)
        metrics.set(TREE_BLOCKS, core.fleet.tree.blocks)
        metrics.set(TREE_NODES, core.fleet.tree.nodes)

    return report


def report_pairs(pairs: PairPlugin, handovers: Mapping[str, Handover]) -> Report:
    """Return the report of requests that two workers share."""

    def report(metrics: Metrics) -> None:
        for reason, total in pairs.offloading.counts.items():
            metrics.follow(OFFLOAD_DECISIONS, total, reason.value)
        for name, handover in handovers.items():
            for event, total in handover.counts.items():
                metrics.follow(HANDOVER_EVENTS, total, name, event)

    return report


def report_log(core: Core, ops: LogListener) -> Report:
    """Return the report of the shared log."""
    reported: set[str] = set()

    def report(metrics: Metrics) -> None:
        status = core.log.status()
        metrics.degraded(Component.REDIS, on=status.degraded_reason is not None)
        metrics.shared_log(
            lag_s=status.lag_s,
            snapshot_age_s=status.snapshot_age_s,
            buffered_ops=status.buffered_ops,
            published_ops=ops.published_ops,
            applied_ops=ops.applied_ops,
            dropped_ops=status.dropped_ops,
            shortened=status.onward_ops,
            incomplete=status.unknown_paths,
            skipped_ops=status.skipped_ops,
            snapshots_refused=ops.snapshots_refused,
        )
        reported.update(status.differing)
        for register in reported:
            metrics.set(REGISTERS_DIFFER, len(status.differing.get(register, ())), register)
        for register, total in status.published_again.items():
            metrics.follow(REGISTERS_PUBLISHED_AGAIN, total, register)

    return report


def report_settings(live: LiveSettings) -> Report:
    """Return the report of changed settings."""

    def report(metrics: Metrics) -> None:
        refused = len(live.refused)
        metrics.degraded(Component.SETTINGS, on=refused > 0)
        metrics.set(SETTINGS_OVERRIDDEN, len(live.overrides.values()) - refused, "used")
        metrics.set(SETTINGS_OVERRIDDEN, refused, "refused")

    return report


def report_own_policies(own: OwnPolicies) -> Report | None:
    """Return the report of users' policies; None without any."""
    if not own.records:
        return None

    def report(metrics: Metrics) -> None:
        for name, record in own.records.items():
            metrics.follow(OWN_POLICY_DECISIONS, record.decisions, name)
            metrics.follow(OWN_POLICY_LATE, record.late, name)
            metrics.follow(OWN_POLICY_SECONDS, record.seconds, name)
            for reason in FailureReason:
                metrics.set(OWN_POLICY_OFF, record.reason is reason, name, reason.value)

    return report


def report_tenants(tenants: TenantSide) -> Report | None:
    """Return the report of keys and limits; None without a keys file."""
    keys, leases = tenants.keys, tenants.leases
    if keys is None:
        return None

    def report(metrics: Metrics) -> None:
        metrics.degraded(Component.KEYS, on=keys.problem is not None)
        metrics.keys_read(loaded=keys.loaded_count, refused=keys.refused_count)
        metrics.degraded(Component.LIMITS, on=leases.degraded_reason is not None)
        metrics.follow(LIMIT_ROUNDS, leases.rounds)
        metrics.follow(LIMIT_SHARES, leases.alone)

    return report


def report_discovery(discovery: Discovery | None) -> Report | None:
    """Return the report of discovery; None where it is off."""
    if discovery is None:
        return None

    def report(metrics: Metrics) -> None:
        metrics.degraded(Component.KUBERNETES, on=discovery.problem is not None)
        metrics.follow(DISCOVERY_RESTARTS, sum(watch.restarts for watch in discovery.watches))
        metrics.follow(DISCOVERY_MISSED, sum(watch.missed for watch in discovery.watches))
        for trouble, total in discovery.failures().items():
            metrics.follow(DISCOVERY_FAILURES, total, trouble.value)

    return report


def report_lines(trace: RequestTrace | None) -> Report:
    """Return the report of dropped lines."""

    def report(metrics: Metrics) -> None:
        metrics.follow(LOG_LINES_DROPPED, lines_dropped())
        if trace is not None:
            metrics.follow(TRACE_LINES_DROPPED, trace.dropped)

    return report


_KV_EVENTS: dict[str, tuple[Family, tuple[str, ...]]] = {
    "batches": (KV_EVENT_BATCHES, ()),
    **{kind: (KV_EVENTS, (kind,)) for kind in ("stored", "removed", "cleared", "unknown")},
    "damaged": (KV_EVENTS_INVALID, ("batch",)),
    "invalid": (KV_EVENTS_INVALID, ("message",)),
    "gaps": (KV_EVENT_GAPS, ()),
    **{outcome: (KV_EVENT_REPLAYS, (outcome,)) for outcome in ("answered", "unanswered")},
    **{reason: (KV_EVENT_LOSSES, (reason,)) for reason in ("restart", "gap", "again")},
    "forgets": (KV_EVENT_FORGETS, ()),
    "corrections": (KV_EVENT_CORRECTIONS, ()),
}
"""Family and labels for each name of `KvEvents.counts`."""


def report_kv_events(kv_events: KvEvents) -> Report:
    """Return the report of cache events."""

    def report(metrics: Metrics) -> None:
        counts = kv_events.counts()
        for name, (family, labels) in _KV_EVENTS.items():
            metrics.follow(family, counts.get(name, 0), *labels)

    return report


def troubles(core: Core, tenants: TenantSide, discovery: Discovery | None) -> tuple[str, ...]:
    """Return a sentence for each part that does not work; ``discovery`` is None where it is off."""
    status, found = core.log.status(), []
    if status.degraded_reason is not None:
        found.append(f"the shared log: {status.degraded_reason}")
    workers = core.registry.all()
    unwell = sum(local.health is not Health.HEALTHY for local in workers)
    if unwell:
        found.append(f"{unwell} of {len(workers)} workers {'is' if unwell == 1 else 'are'} not healthy")
    files = (("keys", tenants.keys), ("tokens", tenants.tokens))
    found += [
        f"the file of {noun} cannot be used; its former content holds, and the log says why"
        for noun, watch in files
        if watch is not None and watch.problem is not None
    ]
    if discovery is not None and discovery.problem is not None:
        found.append(f"discovery of pods: {discovery.problem}; known workers stay")
    if tenants.leases.degraded_reason is not None:
        found.append(f"limits of tenants: {tenants.leases.degraded_reason}")
    return tuple(found)
