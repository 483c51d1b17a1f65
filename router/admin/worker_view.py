"""Workers as JSON: role, state, load, cache, connections, and progress of draining.

``GET /discovery`` lists the pods that were found, the result for each, and the state of discovery. All of a
worker is the same in every replica but ``connections``, ``detail`` and ``hits``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI

from policies import ANY_BUCKET, CONVERTIBLE_LABEL, Worker
from router.admin.parts import AdminParts
from router.admin.tree_view import evidence
from router.discovery import Discovery
from router.fleet import Health, LocalWorker, Registry, worker_id_of
from router.gateway import Gateway
from router.handover.bootstrap import bootstrap_of

_OTHER_LEG = {"prefill": "decode", "decode": "prefill"}


class Legs:
    """Number of workers of each role and protocol."""

    def __init__(self, registry: Registry) -> None:
        self._all: Counter[tuple[str, str]] = Counter()
        self._ready: Counter[tuple[str, str]] = Counter()
        for local in registry.all():
            kind = local.worker.role, local.protocol
            self._all[kind] += 1
            self._ready[kind] += local.health is Health.HEALTHY and not local.worker.draining

    def partners(self, local: LocalWorker) -> dict[str, int] | None:
        """Number of workers that could take the other half of a prefill or decode worker's requests."""
        role = _OTHER_LEG.get(local.worker.role)
        if role is None:
            return None
        kind = role, local.protocol
        return {"ready": self._ready[kind], "total": self._all[kind]}


def described(gateway: Gateway, local: LocalWorker, legs: Legs) -> dict[str, Any]:
    """Return one worker as JSON."""
    worker, loads, slots = local.worker, gateway.fleet.loads, local.slots
    now_us, started = gateway.log.now_us(), gateway.fleet.started(worker.worker_id)
    circuit = gateway.registry.circuits.of(local)
    return {
        "id": worker.worker_id,
        "url": worker.url,
        "opaque_name": gateway.reader.names.name_of(worker.worker_id).decode(),
        "role": worker.role,
        "worker_type": "regular" if worker.role == "plain" else worker.role,
        "site": local.worker.site or None,
        "bucket": _bucket(gateway, slots[0]),
        "state": local.state,
        "is_healthy": local.health is Health.HEALTHY,
        "detail": local.detail,
        "circuit": gateway.registry.circuits.state(local).value,
        "circuit_by": circuit.replica if circuit else None,
        "spared": not gateway.registry.circuits.spared.isdisjoint(slots),
        "circuit_wait_s": round(max(0, circuit.until_us - now_us) / 1e6, 3) if circuit else 0.0,
        "share": round(gateway.registry.share(local, now_us), 3),
        "started_unix_s": started.started_unix_ms / 1000 if started else None,
        "engine": local.engine or None,
        "models": [served.model_id for served in local.models or ()],
        "labels": worker.labels,
        **_part(local, legs),
        "capacity_tokens": worker.capacity_tokens,
        "host_tokens": gateway.fleet.host_tokens(worker),
        "held_tokens": sum(_held_tokens(gateway, slot) for slot in slots),
        **evidence(gateway.fleet, local.places[0].worker_id),
        "hits": _hits(gateway, local.places),
        "draining": worker.draining,
        "leaving": worker.leaving,
        "inflight_requests": int(loads.inflight_requests[slots].sum()),
        "inflight_tokens": int(loads.inflight_tokens[slots].sum()),
        "slowdown": round(max(map(gateway.fleet.columns.slowdown, slots)), 3),
        "backlog_s": round(float(loads.backlog_s(np.array(slots), now_us).sum()), 6),
        "ranks": [_rank(gateway, place, now_us) for place in local.places if place.rank >= 0],
        "key_withheld": gateway.registry.withholds_key(worker.worker_id),
        "connections": {"open": local.pool.open, "idle": local.pool.idle},
    }


def _rank(gateway: Gateway, place: Worker, now_us: int) -> dict[str, Any]:
    """Return a data-parallel rank as JSON."""
    loads, slot = gateway.fleet.loads, place.slot
    return {
        "id": place.worker_id,
        "rank": place.rank,
        "capacity_tokens": place.capacity_tokens,
        "held_tokens": _held_tokens(gateway, slot),
        **evidence(gateway.fleet, place.worker_id),
        "hits": _hits(gateway, (place,)),
        "inflight_requests": int(loads.inflight_requests[slot]),
        "inflight_tokens": int(loads.inflight_tokens[slot]),
        "backlog_s": round(loads.backlog_at_s(slot, now_us), 6),
    }


def _held_tokens(gateway: Gateway, slot: int) -> int:
    return gateway.fleet.tree.held_blocks(slot) * gateway.fleet.rules.block_tokens


def _part(local: LocalWorker, legs: Legs) -> dict[str, Any]:
    """Return a worker's part in prefill and decode; None for no part."""
    leg, labels = local.worker.role in _OTHER_LEG, local.worker.labels
    listens = local.worker.role == "prefill" and local.protocol != "nixl"
    bootstrap = bootstrap_of(local) if listens else None
    return {
        "handover": (local.protocol or None) if leg else None,
        "bootstrap_host": bootstrap and bootstrap.host,
        "bootstrap_port": bootstrap and bootstrap.port,
        "partners": legs.partners(local),
        "convertible": labels.get(CONVERTIBLE_LABEL) == "true",
    }


def _bucket(gateway: Gateway, slot: int) -> str | None:
    """Return a worker's length bucket; None if it takes any length."""
    buckets = gateway.fleet.buckets
    number = buckets.of(slot)
    return None if buckets.lengths is None or number == ANY_BUCKET else buckets.lengths.names[number]


def _hits(gateway: Gateway, places: Sequence[Worker]) -> dict[str, Any]:
    """Return the cached share of the prompts that this replica sent there, as the worker reported it."""
    hits = [gateway.placing.feedback.hits(place.worker_id) for place in places]
    prompt_tokens, cached_tokens = (sum(column) for column in zip(*hits, strict=True))
    return {
        "reported_prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "hit_ratio": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else None,
    }


def progress(gateway: Gateway, local: LocalWorker) -> dict[str, Any]:
    """Return the progress of draining."""
    fleet, worker, slots, now_us = gateway.fleet, local.worker, local.slots, gateway.log.now_us()
    inflight = int(fleet.loads.inflight_requests[slots].sum())
    waited_for = {slot for slot in slots if fleet.tickets.waits_for(slot)}
    waiting = sum(ticket.slot in waited_for for ticket in fleet.tickets) if waited_for else 0
    drained = worker.draining and not inflight and not waiting
    since_us = worker.drain_us or worker.version[0]
    return {
        "worker_id": worker.worker_id,
        "draining": worker.draining,
        "drained": drained,
        "leaving": worker.leaving,
        "elapsed_s": round(max(now_us - since_us, 0) / 1e6, 3) if worker.draining else None,
        "inflight_requests": inflight,
        "inflight_tokens": int(fleet.loads.inflight_tokens[slots].sum()),
        "waiting_for_it": waiting,
        "expected_s": _expected_s(gateway, local, inflight, now_us) if worker.draining else None,
    }


def _expected_s(gateway: Gateway, local: LocalWorker, inflight: int, now_us: int) -> float | None:
    """Return the expected time until the requests in flight end, in seconds; None if it is unknown.

    Prefill and a mean decode, where their length is known; else the time that the newest requests of this
    replica took there.
    """
    if not inflight:
        return 0.0
    decode_s = gateway.fleet.decode_fit(local.worker.worker_class).decode_s
    if not decode_s and local.worker.role != "prefill":
        stay_s = gateway.reports.decisions.stay_s({place.worker_id for place in local.places})
        return None if stay_s is None else round(stay_s, 3)
    backlog_s = gateway.fleet.loads.backlog_s(np.array(local.slots), now_us).sum()
    return round(float(backlog_s) + decode_s, 3)


def add_discovery_view(api: FastAPI, parts: AdminParts) -> None:
    """Serve the view of pods."""
    discovery = parts.discovery

    @api.get("/discovery", tags=["workers"])
    async def pods_and_workers() -> dict[str, Any]:
        """Pods of the cluster that are selected: their workers, or why they have none; and the lists.

        Every replica checks by itself, so this is the view of the replica that is asked.
        """
        return {"enabled": False} if discovery is None else discovered(discovery)


def discovered(discovery: Discovery) -> dict[str, Any]:
    """Return the pods as JSON."""
    clock_s, age_s = discovery.clock(), discovery.list_age_s()
    return {
        "enabled": True,
        "problem": discovery.problem,
        "list_age_s": None if age_s is None else round(age_s, 1),
        "states": dict(sorted(discovery.states().items())),
        "selections": [
            {
                "namespace": watch.selection.namespace,
                "role": watch.selection.role or None,
                "selector": watch.selection.selector,
                "pods": len(watch.pods),
                "list_age_s": None if watch.listed_s is None else round(clock_s - watch.listed_s, 1),
                "problem": watch.problem,
                "failures": {trouble.value: count for trouble, count in sorted(watch.failures.items())},
                "watch_restarts": watch.restarts,
                "missed": watch.missed,
            }
            for watch in discovery.watches
        ],
        "pods": [
            {
                "namespace": sighting.pod.metadata.namespace,
                "name": sighting.pod.metadata.name,
                "uid": sighting.pod.uid,
                "ip": sighting.pod.status.pod_ip or None,
                "phase": sighting.pod.status.phase,
                "ready": sighting.pod.ready,
                "roles": sorted(selection.role or "by label" for selection in sighting.selections),
                "workers": sorted(worker_id_of(url) for url in sighting.claims),
                "failures": sighting.failures,
                "not_used": None if sighting.refused is None else sighting.refused.reason.value,
                "detail": None if sighting.refused is None else sighting.refused.detail,
            }
            for sighting in sorted(
                discovery.sightings.values(), key=lambda seen: (seen.pod.name, seen.pod.uid)
            )
        ],
    }
