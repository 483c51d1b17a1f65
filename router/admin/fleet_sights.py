"""What the console sees of the running gateway (`router.console.Sights`), read from those who know it.

Nothing is kept here. Loads come from the fold's columns in one go; of the
rest, a look costs a microsecond or two for each worker (`python -m loadtest.bench.console`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policies import ANY_BUCKET, NEVER_TOKENS, Offloading
from router.admin.bucket_view import bucket_rows
from router.admin.decisions_view import described as described_decision
from router.admin.link_view import LinkPorts, described
from router.admin.queue_view import QueuePorts, census
from router.admin.replica_sights import ReplicaSights
from router.console import Conditions, Decisions, ReplicaSight, WorkerFacts, WorkerLoad
from router.gateway.recent_decisions import RecentDecision, RecentDecisions
from router.settings import Settings
from router.shared import LogStatus
from router.tenants import KeysWatch

CLASSES_LISTED = 8
"""Classes of waiting requests that the page lists, those with the most."""


@dataclass(frozen=True, slots=True)
class FleetSights:
    """The gateway, seen by the console.

    Attributes:
        version: Of the gateway.
        recent: The newest decisions.
        offloading: Knows the threshold of remote prefill.
        queue: What waits.
        links: Links between sites.
        log_status: How well this replica shares.
        seen: Looks at replicas.
        settings: As they are now.
        keys: Watches the tenants' keys file, if there is one.
        limits: Why tenants' limits are kept by fair shares; None if they are not.
        ending: Whether this process was told to end.
        refused_settings: Changed settings that this replica cannot use, and why.
    """

    version: str
    recent: RecentDecisions
    offloading: Offloading
    queue: QueuePorts
    links: LinkPorts
    log_status: Callable[[], LogStatus]
    seen: ReplicaSights
    settings: Callable[[], Settings]
    keys: KeysWatch | None
    limits: Callable[[], str | None]
    ending: Callable[[], bool]
    refused_settings: Callable[[], Mapping[str, str]]

    @property
    def replica(self) -> str:
        """Who is asked."""
        return self.queue.replica

    def facts(self) -> Sequence[WorkerFacts]:
        """All workers, in order of their ids."""
        registry, fleet = self.queue.registry, self.queue.fleet
        circuits, buckets = registry.circuits, fleet.buckets
        names = buckets.bounds.names if buckets.bounds is not None else ()
        facts = []
        for local in registry.all():
            worker = local.worker
            number = buckets.of(worker.slot) if names else ANY_BUCKET
            facts.append(
                WorkerFacts(
                    worker.slot,
                    worker.worker_id,
                    worker.role,
                    worker.site,
                    "" if number == ANY_BUCKET else names[number],
                    local.state,
                    circuits.state(local).value,
                    local.engine,
                    tuple([served.model_id for served in local.models or ()]),
                    worker.capacity_tokens or fleet.rules.capacity_tokens,
                )
            )
        return facts

    def loads(self, facts: Sequence[WorkerFacts]) -> Sequence[WorkerLoad]:
        """What they have to do now, in the same order."""
        fleet = self.queue.fleet
        loads, tree, block_tokens = fleet.loads, fleet.tree, fleet.rules.block_tokens
        slots = np.array([each.key for each in facts], dtype=np.intp)
        backlog_s = np.round(loads.backlog_s(slots, self.queue.now_us()), 2).tolist()
        inflight = loads.inflight_requests[slots].astype(np.intp).tolist()
        held_tokens = [tree.held_blocks(each.key) * block_tokens for each in facts]
        return [
            WorkerLoad(each.key, behind_s, requests, _percent(held, each.capacity_tokens))
            for each, behind_s, requests, held in zip(facts, backlog_s, inflight, held_tokens, strict=True)
        ]

    def waiting(self) -> int:
        """Requests that wait, of all replicas."""
        return self.queue.fleet.tickets.count

    def conditions(self) -> Conditions:
        """What may be wrong; the rates are left out."""
        status, links = self.log_status(), self.links
        now_us = links.now_us()
        return Conditions(
            redis=status.degraded_reason,
            warming=None if status.warming is None else (status.warming.phase, status.warming.progress),
            dropped_ops=status.dropped_ops,
            lag_s=status.lag_s,
            keys=None if self.keys is None else self.keys.problem,
            limits=None if self.keys is None else self.limits(),
            links={name: links.state(name, now_us) for name in links.links.rules},
            ending=self.ending(),
            other=[
                (f"setting:{key}", f"The setting {key} was changed, and this replica cannot use it: {why}.")
                for key, why in self.refused_settings().items()
            ],
        )

    async def replicas(self) -> Sequence[ReplicaSight]:
        """All replicas that can be seen, this one included, in order of their ids."""
        return await self.seen.look()

    async def sections(self, *, slow: bool) -> Mapping[str, Any]:
        """What the page shows beside the map, by name: values for JSON."""
        said = {"queue": await self._queue(), "policy": self._policy(), "links": self._links()}
        if slow:
            said["buckets"] = self._buckets()
        return said

    def decisions(self, cursor: int | None, most: int) -> Decisions:
        """The newest decisions of this replica."""
        told, skipped = self.recent.since(cursor or 0, most)
        return Decisions([_told(each) for each in told], skipped, self.recent.cursor)

    async def _queue(self) -> dict[str, Any]:
        counted, now_us = await census(self.queue.fleet.tickets), self.queue.now_us()
        ordered = sorted(counted.classes.items(), key=lambda item: (-item[1].requests, item[0]))
        return {
            **counted.total.described(now_us),
            "classes": [{"class": name, **each.described(now_us)} for name, each in ordered[:CLASSES_LISTED]],
        }

    def _policy(self) -> dict[str, Any]:
        placement = self.settings().placement
        threshold_tokens = self.offloading.threshold_tokens
        return {
            "policy": placement.policy,
            "prefill": placement.prefill_policy or None,
            "decode": placement.decode_policy,
            "shadow": placement.shadow_policy or None,
            "shadow_ratio": placement.shadow_ratio,
            "threshold_tokens": None if threshold_tokens in (None, NEVER_TOKENS) else threshold_tokens,
        }

    def _links(self) -> list[dict[str, Any]]:
        kept = ("link", "state", "cap_bytes_per_s", "reserved_bytes_per_s", "utilisation", "loss_ratio")
        return [
            {**{key: link[key] for key in kept}, "transfers": link["under_way"]["transfers"]}
            for link in described(self.links)["links"]
        ]

    def _buckets(self) -> list[dict[str, Any]]:
        known = self.queue.fleet.buckets
        if known.bounds is None or known.lengths is None:
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
            for row in bucket_rows(self.queue, known.bounds)
        ]


def _percent(held_tokens: int, capacity_tokens: int) -> int:
    return min(round(100 * held_tokens / capacity_tokens), 100) if capacity_tokens else -1


def _told(decision: RecentDecision) -> dict[str, Any]:
    """One decision as ``GET /decisions`` tells it, but what the page does not show and what there was not."""
    return {
        name: value
        for name, value in described_decision(decision).items()
        if value is not None and name not in _NOT_SHOWN
    }


_NOT_SHOWN = frozenset(("number", "endpoint", "status", "ttft_s"))
