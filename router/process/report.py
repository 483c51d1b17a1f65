"""What metrics read rather than count: told at each scrape, by one function for each part of a process."""

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
    PROBES_REBUILT,
    SETTINGS_OVERRIDDEN,
    TRACE_LINES_DROPPED,
    TREE_BLOCKS,
    TREE_NODES,
    WORKERS_SPARED,
    Family,
)
from router.metrics import Component, Metrics
from router.process.client_side import ClientSide
from router.process.log_listener import LogListener
from router.process.tenant_side import TenantSide
from router.process.worker_side import WorkerSide
from router.request_trace import RequestTrace

Report = Callable[[Metrics], None]


def reports_of(*parts: Report | None) -> list[Report]:
    """Leave out what a process has not."""
    return [part for part in parts if part is not None]


def report_requests(gateway: Gateway) -> Report:
    """Return what tells of requests under way and of the queue."""

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
        for reason, total in gateway.placing.decider.offloading.counts.items():
            metrics.follow(OFFLOAD_DECISIONS, total, reason.value)

    return report


def report_clients(clients: ClientSide) -> Report:
    """Return what tells of connections and bodies."""

    def report(metrics: Metrics) -> None:
        metrics.set(CLIENT_CONNECTIONS, clients.clients.connections)
        metrics.set(HELD_BYTES, clients.held.count)

    return report


def report_workers(workers: WorkerSide, handovers: Mapping[str, Handover]) -> Report:
    """Return what tells of workers and of what they are asked."""

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
        for name, handover in handovers.items():
            for event, total in handover.counts.items():
                metrics.follow(HANDOVER_EVENTS, total, name, event)

    return report


def report_log(core: Core, ops: LogListener) -> Report:
    """Return what tells of the shared log."""

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

    return report


def report_settings(live: LiveSettings) -> Report:
    """Return what tells of settings that were changed."""

    def report(metrics: Metrics) -> None:
        refused = len(live.refused)
        metrics.degraded(Component.SETTINGS, on=refused > 0)
        metrics.set(SETTINGS_OVERRIDDEN, len(live.overrides.values()) - refused, "used")
        metrics.set(SETTINGS_OVERRIDDEN, refused, "refused")

    return report


def report_tenants(tenants: TenantSide) -> Report | None:
    """Return what tells of keys and limits; None without a keys file."""
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
    """Return what tells of discovery; None where it is off."""
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
    """Return what tells of lines that were dropped."""

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
"""Where each name of `KvEvents.counts` is counted."""


def report_kv_events(kv_events: KvEvents) -> Report:
    """Return what tells of cache events."""

    def report(metrics: Metrics) -> None:
        counts = kv_events.counts()
        for name, (family, labels) in _KV_EVENTS.items():
            metrics.follow(family, counts.get(name, 0), *labels)

    return report
