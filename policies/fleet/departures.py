"""Workers that are to be removed when they have drained: ``DELETE /workers/{id}?drain=true``.

    in service ──drain, leaving──> drains ──nothing in flight, nobody waits for it──> `WorkerGone`
                                     └── undrain ──> in service

The wish is in the log, with the worker itself, so it outlives the replica that was asked. Whoever's turn it
is says the last word; when that one dies, it is another's turn. If two of them say it, it means the same.
"""

from collections.abc import Sequence

from policies.fleet.fleet import FleetState
from policies.state.ops import WorkerGone
from policies.state.rendezvous import turn_of

SETTLE_US = 2_000_000
"""How long a worker drains at least: what other replicas had just sent there is heard of by then."""


def departures(
    fleet: FleetState, replica: str, replicas: Sequence[str], now_us: int
) -> tuple[WorkerGone, ...]:
    """Who has drained and is to go, as far as it is this replica's turn to say so.

    Args:
        fleet: What is known; only ask while the log is heard.
        replica: This one.
        replicas: Those that are alive.
        now_us: Log time.
    """
    return tuple(
        WorkerGone(worker.worker_id, max(now_us, worker.version[0] + 1), replica)
        for worker in fleet.leaving()
        if now_us - worker.drain_us >= SETTLE_US
        and not fleet.loads.inflight_requests[worker.slot]
        and not fleet.tickets.waits_for(worker.slot)
        and turn_of(worker.worker_id, replica, replicas) == 0
    )
