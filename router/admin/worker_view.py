"""How a worker is shown: its role, state, load, cache and connections, and how far it is with draining.

All but ``connections``, ``detail`` and ``hits``, which are the asked replica's own, is the same in every
replica.
"""

from collections import Counter
from typing import Any

from policies import ANY_BUCKET, CONVERTIBLE_LABEL
from router.admin.kv_events_view import evidence
from router.admin.ports import AdminPorts
from router.fleet import Health, LocalWorker
from router.handover.bootstrap import bootstrap_of

_OTHER_LEG = {"prefill": "decode", "decode": "prefill"}


class Legs:
    """How many workers there are of each role and protocol, for a look at who can work with whom."""

    def __init__(self, ports: AdminPorts) -> None:
        self._all: Counter[tuple[str, str]] = Counter()
        self._ready: Counter[tuple[str, str]] = Counter()
        for local in ports.registry.all():
            kind = local.worker.role, local.protocol
            self._all[kind] += 1
            self._ready[kind] += local.health is Health.HEALTHY and not local.worker.draining

    def partners(self, local: LocalWorker) -> dict[str, int] | None:
        """Of a prefill or decode worker: how many could take the other half of its requests."""
        role = _OTHER_LEG.get(local.worker.role)
        if role is None:
            return None
        kind = role, local.protocol
        return {"ready": self._ready[kind], "total": self._all[kind]}


def described(ports: AdminPorts, local: LocalWorker, legs: Legs) -> dict[str, Any]:
    """One worker with its role, site, state, load and cache."""
    worker, loads, slot = local.worker, ports.fleet.loads, local.worker.slot
    now_us, started = ports.now_us(), ports.fleet.started(worker.worker_id)
    circuit = ports.registry.circuits.of(local)
    return {
        "id": worker.worker_id,
        "url": worker.url,
        "role": worker.role,
        "worker_type": "regular" if worker.role == "plain" else worker.role,
        "site": local.site or None,
        "bucket": _bucket(ports, slot),
        "state": local.state,
        "is_healthy": local.health is Health.HEALTHY,
        "detail": local.detail,
        "circuit": ports.registry.circuits.state(local).value,
        "circuit_by": circuit.replica if circuit else None,
        "spared": slot in ports.registry.circuits.spared,
        "circuit_wait_s": round(max(0, circuit.until_us - now_us) / 1e6, 3) if circuit else 0.0,
        "share": round(ports.registry.share(local, now_us), 3),
        "started_unix_s": started.started_unix_ms / 1000 if started else None,
        "engine": local.engine or None,
        "models": [served.model_id for served in local.models or ()],
        "labels": worker.labels,
        **_part(local, legs),
        "capacity_tokens": worker.capacity_tokens,
        "held_tokens": ports.fleet.tree.held_blocks(slot) * ports.fleet.rules.block_tokens,
        **evidence(ports.fleet, worker.worker_id),
        "hits": _hits(ports, worker.worker_id),
        "draining": worker.draining,
        "leaving": worker.leaving,
        "inflight_requests": int(loads.inflight_requests[slot]),
        "inflight_tokens": int(loads.inflight_tokens[slot]),
        "backlog_s": round(loads.backlog_at_s(slot, now_us), 6),
        "key_withheld": ports.registry.withholds_key(worker.worker_id),
        "connections": {"open": local.pool.open, "idle": local.pool.idle},
    }


def _part(local: LocalWorker, legs: Legs) -> dict[str, Any]:
    """What part a worker has in prefill and decode; None for what it does not."""
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


def _bucket(ports: AdminPorts, slot: int) -> str | None:
    """The length bucket that a worker belongs to; None if it takes any length."""
    buckets = ports.fleet.buckets
    number = buckets.of(slot)
    return None if buckets.lengths is None or number == ANY_BUCKET else buckets.lengths.names[number]


def _hits(ports: AdminPorts, worker_id: str) -> dict[str, Any]:
    """How much of the prompts of this replica's requests was cached there, as the worker said."""
    prompt_tokens, cached_tokens = ports.hits(worker_id)
    return {
        "reported_prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "hit_ratio": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else None,
    }


def progress(ports: AdminPorts, local: LocalWorker) -> dict[str, Any]:
    """How far a worker is with draining."""
    fleet, worker, slot, now_us = ports.fleet, local.worker, local.worker.slot, ports.now_us()
    inflight = int(fleet.loads.inflight_requests[slot])
    waiting = sum(ticket.slot == slot for ticket in fleet.tickets) if fleet.tickets.waits_for(slot) else 0
    drained = worker.draining and not inflight and not waiting
    since_us = worker.drain_us or worker.version[0]
    return {
        "worker_id": worker.worker_id,
        "draining": worker.draining,
        "drained": drained,
        "leaving": worker.leaving,
        "elapsed_s": round(max(now_us - since_us, 0) / 1e6, 3) if worker.draining else None,
        "inflight_requests": inflight,
        "inflight_tokens": int(fleet.loads.inflight_tokens[slot]),
        "waiting_for_it": waiting,
        "expected_s": _expected_s(ports, local, inflight, now_us) if worker.draining else None,
    }


def _expected_s(ports: AdminPorts, local: LocalWorker, inflight: int, now_us: int) -> float | None:
    """How long what is in flight will still take; None if nobody knows.

    Its prefill and a mean decode, where all replicas learn how long those are; else as long as the newest
    requests of this replica were there.
    """
    if not inflight:
        return 0.0
    decode_s = ports.fleet.decode_fit(local.worker.worker_class).decode_s
    if not decode_s and local.worker.role != "prefill":
        stay_s = (
            None if ports.gateway is None else ports.gateway.reports.decisions.stay_s(local.worker.worker_id)
        )
        return None if stay_s is None else round(stay_s, 3)
    return round(ports.fleet.loads.backlog_at_s(local.worker.slot, now_us) + decode_s, 3)
