"""Workers that are to be removed when they have drained: ``DELETE /workers/{id}?drain=true``.

    in service ──drain, leaving──> drains ──nothing in flight, no ticket for it──> `WorkerGone`
                                     └── undrain ──> in service

The order is in the log with the worker, so it outlives the replica that was asked. One replica at a time
publishes the removal; if it dies, the turn passes on. Two removals mean the same as one.
"""

from collections.abc import Sequence

from policies.fleet.fleet import FleetState
from policies.state.ops import WorkerGone
from policies.state.rendezvous import turn_of

SETTLE_US = 2_000_000
"""Least time for which a worker drains: other replicas' last dispatches are known by then."""


def departures(
    fleet: FleetState, replica: str, replicas: Sequence[str], now_us: int
) -> tuple[WorkerGone, ...]:
    """Removals of drained workers for this replica to publish; only ask while the log is read."""
    return tuple(
        WorkerGone(worker.worker_id, max(now_us, worker.version[0] + 1), replica)
        for worker in fleet.leaving()
        if now_us - worker.drain_us >= SETTLE_US
        and not fleet.loads.inflight_requests[slots := fleet.slots(worker)].any()
        and not any(map(fleet.tickets.waits_for, slots))
        and turn_of(worker.worker_id, replica, replicas) == 0
    )
