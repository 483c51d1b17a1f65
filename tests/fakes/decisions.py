"""Facts of a fold that decisions read, beside their definition, in a world with many collisions.

Two workers and a few prompts with common beginnings. Congestion and the service of flows are compared
separately: they count arrivals, and a snapshot cannot tell its reader which arrivals both have counted
(`policies.state.loads`).
"""

from math import fsum

import numpy as np
from fakes.naive_fold import NaiveFold

from policies import (
    FULL_ATTENTION,
    AttentionProfile,
    Audited,
    Circuit,
    CircuitSet,
    Expire,
    FleetState,
    Ticket,
    Tracked,
)
from policies.state.ops import REGISTERS
from radix import chain_bytes

WORKERS = ("a:1", "b:1")
PROMPTS = ("a", "ab", "abc", "abca", "abd", "ac", "b")
CLASSES = ("default", "slow")
MODELS = ("small", "large")
LANE = "|"
WAITING_FLOW = "normal/one"
SERVED_FLOWS = ("normal/one", "normal/two", "high/one")
PROFILES = (
    FULL_ATTENTION,
    AttentionProfile("sliding_window", window_tokens=128),
    AttentionProfile("linear", retained_interval_tokens=600),
)

Differences = dict[str, tuple[object, object]]


def path(letters: str) -> bytes:
    """One block per letter; equal beginnings give equal hashes."""
    return chain_bytes(letters.encode(), root=1, block_bytes=1)


PATHS = tuple(map(path, PROMPTS))


def differences(fleet: FleetState, naive: NaiveFold, now_us: int) -> Differences:
    """Seen and defined facts by subject, where they differ."""
    return _differing(_seen(fleet, now_us), _defined(naive, now_us))


def congestion_differences(fleet: FleetState, naive: NaiveFold, now_us: int) -> Differences:
    """The same for congestion and service, of a fold that was first asked now and never met a snapshot."""
    workers = fleet.workers()
    slots = np.array([worker.slot for worker in workers], dtype=np.intp)
    view = fleet.candidates(slots, PATHS[:1], FULL_ATTENTION, 1e9, 256.0, now_us)
    kappas = {worker: naive.congestion_per_s(worker, now_us) for worker in naive.workers()}
    mean_per_s, own = fsum(kappas.values()) / max(len(kappas), 1), 0.5 * naive.return_ratio(now_us)
    return _differing(
        {
            worker.worker_id: (held_tokens, kappa)
            for worker, held_tokens, kappa in zip(
                workers, view.held_tokens.tolist(), view.slow.congestion_per_s.tolist(), strict=True
            )
        }
        | {flow: fleet.fairness.service_us(flow, now_us) for flow in SERVED_FLOWS},
        {
            worker: (256.0 * len(naive.blocks(worker)), own * kappas[worker] + (1.0 - own) * mean_per_s)
            for worker in naive.workers()
        }
        | {flow: naive.served_us(flow, now_us) for flow in SERVED_FLOWS},
    )


def _differing(actual: dict[str, object], expected: dict[str, object]) -> Differences:
    return {
        key: (actual.get(key), expected.get(key))
        for key in sorted(actual.keys() | expected.keys())
        if actual.get(key) != expected.get(key)
    }


def _seen(fleet: FleetState, now_us: int) -> dict[str, object]:
    """Everything a decision can see, by worker id, so that slots do not matter."""
    workers = fleet.workers()
    slots = np.array([worker.slot for worker in workers], dtype=np.intp)
    views = [
        fleet.candidates(slots, (path,), profile, 1e9, 256.0, now_us)
        for path in PATHS
        for profile in PROFILES
    ]
    view = views[0]
    columns = [
        column.tolist()
        for column in (
            *(view.slow.a_s, view.slow.b_s, view.slow.c0_tokens),
            *(view.backlog_s, view.prefill_tokens, view.inflight_requests, view.inflight_tokens),
            fleet.loads.prefill_requests[slots],
        )
    ]
    rows: dict[str, object] = {
        worker.worker_id: (
            (worker.url, worker.draining, worker.labels, worker.version),
            tuple(column[row] for column in columns),
            [(view.matched_tokens.item(row), view.safe_tokens.item(row)) for view in views],
            fleet.tree.held_blocks(worker.slot),
            fleet.circuits.tripped.get(worker.slot),
            fleet.tracks(worker.worker_id),
            _id(fleet.tickets.best(worker.slot, (LANE,), now_us)),
        )
        for row, worker in enumerate(workers)
    }
    rows["requests"] = {
        request_id: (
            fleet.at_slot(request.slot).worker_id,
            request.replica,
            request.at_us,
            request.prefilled_us > 0,
        )
        for request_id, request in fleet.loads.requests.items()
        if fleet.loads.own in ("", request.replica)
    }
    if not fleet.loads.own:
        rows["requests"] |= {  # type: ignore[operator]
            increment[0]: (fleet.at_slot(slot).worker_id, book.replica, increment[1], not increment[2])
            for book in fleet.loads._rows.books.values()
            for slot, increment in book.increments()
        }
    rows["waiting"] = {
        ticket.request_id: (
            (ticket.at_us, ticket.replica, ticket.arrived_us, ticket.key_us, ticket.lane, ticket.flow),
            fleet.at_slot(ticket.slot).worker_id if ticket.slot >= 0 else "",
            (ticket.service_us, ticket.uncached_tokens, ticket.context_tokens),
        )
        for ticket in fleet.tickets
    }
    rows["people"] = [*fleet.audit, *fleet.expires]
    rows["registers"] = {kind: {op.key: op for op in fleet.registers.of(kind)} for kind in REGISTERS}
    return rows


def _id(ticket: Ticket | None) -> str | None:
    return ticket.request_id if ticket is not None else None


def _defined(naive: NaiveFold, now_us: int) -> dict[str, object]:
    """The definition of the facts in `_seen`."""
    rows: dict[str, object] = {}
    circuits, tracked = naive.newest(CircuitSet), naive.newest(Tracked)
    for worker_id, worker in naive.workers().items():
        circuit = circuits.get(worker_id)
        rows[worker_id] = (
            (worker.url, worker.draining, worker.labels, (worker.at_us, worker.replica, False)),
            (*naive.prices(worker), *naive.loads(worker_id, now_us)),
            [(256.0 * matched, 256.0 * safe) for matched, safe in naive.matches(worker_id, PATHS, PROFILES)],
            len(naive.blocks(worker_id)),
            circuit if circuit is not None and circuit.state is not Circuit.CLOSED else None,
            (word := tracked.get(worker_id)) is not None and word.exact,
            naive.first(worker_id),
        )
    rows["requests"] = {
        request_id: (request.worker, request.replica, request.at_us, request.prefilled)
        for request_id, request in naive.requests().items()
        if naive.own in ("", request.replica)
    }
    rows["waiting"] = {
        request_id: (
            (op.at_us, op.replica, op.arrived_us, op.key_us, op.lane, op.flow),
            op.worker,
            (op.service_us, op.uncached_tokens, op.context_tokens),
        )
        for request_id, op in naive.waiting().items()
    }
    rows["people"] = [*naive.people(Audited), *naive.people(Expire)]
    rows["registers"] = {kind: naive.newest(kind) for kind in REGISTERS}
    return rows
