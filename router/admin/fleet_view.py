"""The console's view of the running gateway (`router.console.FleetView`).

Only the vitals of the look before are kept, for how busy each replica was since. Loads come from the fold's
columns in one go; the rest costs a microsecond or two for each worker (`python -m loadtest.bench.console`).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from policies import ANY_BUCKET
from policies.disaggregation import NEVER_TOKENS
from router.admin.decisions_view import described as described_decision
from router.admin.link_view import described
from router.admin.parts import AdminParts
from router.admin.queue_view import census
from router.admin.role_view import bucket_rows
from router.console import Conditions, Counters, Decisions, ReplicaView, WorkerFacts, WorkerLoad
from router.gateway.recent_decisions import RecentDecision
from router.samples import link_state
from router.shared import Vitals

WORKERS_FAULT = frozenset(("worker_error", "handover_failed", "kv_transfer_failed"))
"""Outcomes of requests that workers failed, beside those that begin with ``upstream_``."""

LIMITED = frozenset(
    (
        "rejected",
        "queue_full",
        "request_displaced",
        "rate_limit_exceeded",
        "client_rate_limit_exceeded",
        "held_bytes_exceeded",
        "too_many_requests",
    )
)
"""Outcomes that clients saw as 429."""

UNAVAILABLE = frozenset(("no_worker_available", "shutting_down", "overloaded"))
"""Outcomes that clients saw as 503."""

CLASSES_LISTED = 8
"""Classes of waiting requests that the page lists, those with the most."""


class ProcessFleetView:
    """The gateway, seen by the console; ``replicas`` is `ReplicaViews.look`."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts, self._gateway = parts, parts.gateway
        self.replica, self.version = parts.gateway.log.replica, parts.version
        self.replicas = ReplicaViews(parts.vitals).look

    def facts(self) -> Sequence[WorkerFacts]:
        """All workers, or their data-parallel ranks, in order of their ids."""
        registry, fleet = self._gateway.registry, self._gateway.fleet
        circuits, buckets = registry.circuits, fleet.buckets
        names = buckets.bounds.names if buckets.bounds is not None else ()
        facts = []
        for local, place in registry.places():
            number = buckets.of(place.slot) if names else ANY_BUCKET
            facts.append(
                WorkerFacts(
                    place.slot,
                    place.worker_id,
                    place.role,
                    place.site,
                    "" if number == ANY_BUCKET else names[number],
                    local.state,
                    circuits.state(local).value,
                    local.engine,
                    tuple([served.model_id for served in local.models or ()]),
                    place.capacity_tokens or fleet.rules.capacity_tokens // len(local.places),
                )
            )
        return facts

    def loads(self, facts: Sequence[WorkerFacts]) -> Sequence[WorkerLoad]:
        """Loads of the workers, in the order of their facts."""
        fleet = self._gateway.fleet
        loads, tree, block_tokens = fleet.loads, fleet.tree, fleet.rules.block_tokens
        slots = np.array([each.key for each in facts], dtype=np.intp)
        backlog_s = np.round(loads.backlog_s(slots, self._gateway.log.now_us()), 2).tolist()
        inflight = loads.inflight_requests[slots].astype(np.intp).tolist()
        held_tokens = [tree.held_blocks(each.key) * block_tokens for each in facts]
        return [
            WorkerLoad(each.key, behind_s, requests, _percent(held, each.capacity_tokens))
            for each, behind_s, requests, held in zip(facts, backlog_s, inflight, held_tokens, strict=True)
        ]

    def waiting(self) -> int:
        """Requests that wait, of all replicas."""
        return self._gateway.fleet.tickets.count

    def conditions(self) -> Conditions:
        """Conditions that may be wrong, without the rates."""
        gateway, keys, live = self._gateway, self._parts.keys, self._parts.live
        status, now_us = gateway.log.status(), gateway.log.now_us()
        return Conditions(
            redis=status.degraded_reason,
            warming=None if status.warming is None else (status.warming.phase, status.warming.progress),
            dropped_ops=status.dropped_ops,
            lag_s=status.lag_s,
            keys=None if keys is None else keys.problem,
            limits=None if gateway.limiter is None else gateway.limiter.degraded_reason,
            links={
                name: link_state(self._parts.pairs.offloading, name, now_us)
                for name in gateway.fleet.links.rules
            },
            ending=self._parts.ending.begun,
            lost_replicas=status.lost,
            other=[
                (f"setting:{key}", f"The setting {key} was changed, and this replica cannot use it: {why}.")
                for key, why in live.refused.items()
            ],
        )

    async def sections(self, *, slow: bool) -> Mapping[str, Any]:
        """Sections of the page beside the map, by name, as JSON values."""
        report = {"queue": await self._queue(), "policy": self._policy(), "links": self._links()}
        if slow:
            report["buckets"] = self._buckets()
        return report

    def decisions(self, cursor: int | None, most: int) -> Decisions:
        """The newest decisions of this replica."""
        recent = self._gateway.reports.decisions
        newest, skipped = recent.since(cursor or 0, most)
        return Decisions([_told(each) for each in newest], skipped, recent.cursor)

    async def _queue(self) -> dict[str, Any]:
        counted, now_us = await census(self._gateway.fleet.tickets), self._gateway.log.now_us()
        ordered = sorted(counted.classes.items(), key=lambda item: (-item[1].requests, item[0]))
        return {
            **counted.total.described(now_us),
            "classes": [{"class": name, **each.described(now_us)} for name, each in ordered[:CLASSES_LISTED]],
        }

    def _policy(self) -> dict[str, Any]:
        placement = self._parts.live.current.placement
        threshold_tokens = self._parts.pairs.offloading.threshold_tokens
        return {
            "policy": placement.policy,
            "prefill": placement.prefill_policy or None,
            "decode": placement.decode_policy,
            "shadow": placement.shadow_policy or None,
            "shadow_ratio": placement.shadow_ratio,
            "threshold_tokens": None if threshold_tokens in (None, NEVER_TOKENS) else threshold_tokens,
        }

    def _links(self) -> list[dict[str, Any]]:
        fields = ("link", "state", "cap_bytes_per_s", "reserved_bytes_per_s", "utilisation", "loss_ratio")
        return [
            {**{key: link[key] for key in fields}, "transfers": link["under_way"]["transfers"]}
            for link in described(self._gateway, self._parts.pairs.offloading)["links"]
        ]

    def _buckets(self) -> list[dict[str, Any]]:
        division = self._gateway.fleet.buckets
        if division.bounds is None or division.lengths is None:
            return []
        return [
            {
                "name": row["name"],
                "workers": len(row["workers"]),
                "requests": row["requests"],
                "load": row["load"],
                "backlog_s": row["backlog_s"],
                "spilled": sum(
                    count
                    for taker, count in row["placed"].items()
                    if taker not in (row["name"], "any_length")
                ),
            }
            for row in bucket_rows(self._gateway, division.bounds)
        ]


def _percent(held_tokens: int, capacity_tokens: int) -> int:
    return min(round(100 * held_tokens / capacity_tokens), 100) if capacity_tokens else -1


def _told(decision: RecentDecision) -> dict[str, Any]:
    """One decision of ``GET /decisions``, reduced to the fields of the page that are set."""
    return {
        name: value
        for name, value in described_decision(decision).items()
        if value is not None and name not in _NOT_SHOWN
    }


_NOT_SHOWN = frozenset(("number", "endpoint", "status", "ttft_s"))


class ReplicaViews:
    """Vitals of replicas, and how busy each was since the look before.

    A replica without vitals is listed by its id alone; its counters are left out, so that its
    return is no leap (`router.console.rate_window`).
    """

    def __init__(self, vitals: Callable[[], Awaitable[Mapping[str, Vitals | None]]]) -> None:
        self._vitals = vitals
        self._before: Mapping[str, Vitals | None] = {}

    async def look(self) -> Sequence[ReplicaView]:
        """All replicas that can be seen, in order of their ids."""
        found = await self._vitals()
        fleet_view = [
            ReplicaView(replica, None if report is None else counters(report), self._shown(replica, report))
            for replica, report in sorted(found.items())
        ]
        self._before = found
        return fleet_view

    def _shown(self, replica: str, report: Vitals | None) -> dict[str, Any]:
        if report is None:
            return {"known": False}
        return {
            "known": True,
            "version": report.version,
            "admin_address": report.admin_address,
            "started_unix_s": report.started_unix_s,
            "ready": report.ready,
            "inflight": report.inflight,
            "waiting": report.waiting,
            "lag_s": round(report.lag_s, 4),
            "loop_lag_s": round(report.loop_lag_s, 4),
            "cpu_ratio": _busy(self._before.get(replica), report),
            "rss_bytes": report.rss_bytes,
            "writes_snapshots": report.holds_snapshot_lease,
            "degraded": report.degraded,
        }


def counters(report: Vitals) -> Counters:
    """Return the counters that rates are made of. ``ttft_counts`` are cumulative there, per bucket here."""

    def those(outcomes: Collection[str]) -> int:
        return sum(count for outcome, count in report.requests.items() if outcome in outcomes)

    return Counters(
        requests=sum(report.requests.values()),
        failed=sum(
            count
            for outcome, count in report.requests.items()
            if outcome in WORKERS_FAULT or outcome.startswith("upstream_")
        ),
        rejected=report.rejected,
        prompt_tokens=report.reported_prompt_tokens,
        cached_tokens=report.cached_tokens,
        ttft_counts=_by_bucket(report.ttft_counts),
        ttft_bounds_s=report.ttft_bounds_s,
        limited=those(LIMITED),
        unavailable=those(UNAVAILABLE),
        refused=those(("worker_refused",)),
        tpot_counts=_by_bucket(report.tpot_counts),
        tpot_bounds_s=report.tpot_bounds_s,
        all_prompt_tokens=report.prompt_tokens,
        output_tokens=report.output_tokens,
    )


def _by_bucket(upto: Sequence[int]) -> tuple[int, ...]:
    return tuple(now - before for now, before in zip(upto, (0, *upto), strict=False))


def _busy(before: Vitals | None, now: Vitals) -> float | None:
    """Return the busy share of a core since the look before; None if unknown."""
    if before is None or before.started_unix_s != now.started_unix_s:
        return None
    elapsed_s = now.at_unix_s - before.at_unix_s
    return round((now.cpu_s - before.cpu_s) / elapsed_s, 3) if elapsed_s > 0 else None
