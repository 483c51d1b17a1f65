"""Chooses a worker for one request, by the state of the fleet now: real requests and dry runs alike.

    eligible workers ── hand-over can split it? ── not tried yet ── keep a tenant's cache apart ── slow start
                                                                                     └──> `PairDecider.decide`

There is no await between looking at the fleet and reserving, so nothing changes between look and choice.
"""

from collections.abc import Sequence

from policies import Decision, DecisionInput, PairDecider, Queued, QueueEntry, Shed, lane_of
from router.gateway.gateway import Gateway
from router.gateway.options import keeping_apart, splitting, untried
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord


def choose(
    gateway: Gateway,
    decider: PairDecider,
    record: RequestRecord,
    parsed: ParsedRequest,
    tried: Sequence[int] = (),
    ticket_id: str = "",
    turn: int = -1,
) -> Decision | Queued | Shed:
    """Choose a worker, and see whether it is this request's turn there.

    Args:
        gateway: Knows the workers.
        decider: Decides; the gateway's own, or one that rehearses.
        record: What is known of the request; takes note of its arrival.
        parsed: The request.
        tried: Slots of workers that failed it.
        ticket_id: Of a request that waits.
        turn: Slot of the worker whose room is offered to it; -1 for none.

    Raises:
        RouterError: If no worker may take it.
    """
    registry, now_s = gateway.registry, gateway.now_s()
    now_us = gateway.log.now_us()
    length = decider.length_of(parsed)
    slots = every = registry.eligible(parsed.model, now_us, length)
    pairing = None
    if registry.pairs.active:
        pairing = registry.pairing(every, parsed.model, now_us, length)
    if not len(slots):
        raise gateway.placing.nobody_for(parsed.model, length)
    if pairing is not None:
        slots, pairing = splitting(slots, pairing, gateway.handovers, parsed)
    if tried:
        slots, pairing, _ = untried(slots, pairing, tried)
    if record.tenant.salt:
        slots = keeping_apart(registry, slots, parsed.endpoint)
    slots = registry.ramped(slots, parsed.key, now_us)
    entry = None
    if parsed.paths:  # what has no prompt takes no worker's time worth waiting for
        if not record.arrived_us:
            record.arrived_us = now_us - int((now_s - record.received_s) * 1e6)
        lane = lane_of(parsed.model, length)
        entry = QueueEntry(
            record.arrived_us, lane, record.flow, ticket_id, turn, slots is not every, record.attempts > 0
        )
    profile = gateway.placing.profile_of(parsed.model)
    return decider.decide(DecisionInput(parsed, profile, slots, now_us, now_s, entry, length.bucket, pairing))
