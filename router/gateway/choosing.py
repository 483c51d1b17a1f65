"""Chooses a worker for one request by the present state of the fleet, for real requests and dry runs.

    eligible workers ── may two share it? ── not tried yet ── keep a tenant's cache apart ── slow start
                                                                               └──> `Decider.decide`

A worker that needs a partner is an option as long as one of its partners is. There is no await between
reading the fleet and reserving, so nothing changes in between.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from policies import (
    ANY_LENGTH,
    Decider,
    Decision,
    DecisionInput,
    Pairing,
    Partners,
    Queued,
    Shed,
    Slots,
)
from router.errors import ClientError
from router.fleet import Registry
from router.gateway.endpoints import Endpoint
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.gateway.salting import OVERLOOKED_BY


def choose(
    gateway: Gateway,
    decider: Decider,
    record: RequestRecord,
    parsed: ParsedRequest,
    tried: Sequence[int] = (),
    ticket_id: str = "",
    turn: int = -1,
) -> Decision | Queued | Shed:
    """Choose a worker, and find out whether it is this request's turn there.

    The record takes note of the request's arrival. ``tried`` are slots of workers that failed it,
    ``ticket_id`` is its own while it waits, and ``turn`` the slot of the worker that offers it room, or -1.
    Raises `RouterError` if no worker may take it.
    """
    registry, placing, model = gateway.registry, gateway.placing, parsed.model
    now_s, now_us = gateway.now_s(), gateway.log.now_us()
    length = ANY_LENGTH
    if registry.may_limit or gateway.fleet.buckets.lengths is not None:
        length = decider.length_of(parsed)
    slots = every = registry.eligible(model, now_us, length)
    if not slots.size:
        why = None if parsed.choice is None else parsed.choice.missing()
        raise why or placing.nobody_for(model, length)
    pairing = None
    if registry.may_pair:
        pairing = registry.pairing(every, model, now_us, length)
        if pairing is not None and gateway.pairs is not None:
            slots, pairing = gateway.pairs.splitting(slots, pairing, parsed)
    if record.only is not None:
        slots = slots[np.isin(slots, record.only)]
        if not len(slots):
            raise placing.nobody_for(model, length)
    if tried:
        slots, pairing, _ = untried(slots, pairing, tried)
    if parsed.choice is not None:
        slots = parsed.choice.among(slots)
    if record.tenant.salt:
        slots = _keeping_apart(registry, slots, parsed.endpoint)
    returned_us = gateway.fleet.last_return_us
    if returned_us and now_us - returned_us < registry.rules.slow_start_s * 1e6:
        slots = registry.ramped(slots, parsed.key, now_us)
    arrived_us = -1
    if parsed.paths:  # a request without a prompt takes no worker's time worth waiting for
        arrived_us = record.arrived_us
        if not arrived_us:
            arrived_us = record.arrived_us = now_us - int((now_s - record.received_s) * 1e6)
    home = gateway.sessions.home_of(parsed) if parsed.session and gateway.sessions is not None else -1
    profile = placing.default_profile
    if placing.profiles:
        profile = placing.profiles.get(model or "", profile)
    return decider.decide(
        DecisionInput(
            parsed,
            profile,
            slots,
            now_us,
            now_s,
            length,
            pairing,
            home,
            arrived_us,
            record.flow,
            ticket_id,
            turn,
            slots is not every,
            record.attempts > 0,
        )
    )


def untried(
    slots: Slots, pairing: Pairing | None, tried: Sequence[int]
) -> tuple[Slots, Pairing | None, bool]:
    """Leave out the workers that failed a request; give all back, and False, if no other is left."""
    fresh = slots[~np.isin(slots, tried)]
    if pairing is None:
        return (fresh, None, True) if len(fresh) else (slots, None, False)
    ending = [each.slots[~np.isin(each.slots, tried)] for each in pairing.partners]
    spent = [number for number, left in enumerate(ending) if not len(left)]
    fresh = fresh[~np.isin(pairing.groups_of(fresh), spent)]
    if not len(fresh):
        return slots, pairing, False
    partners = tuple(
        Partners(each.protocol, left) if len(left) else each
        for each, left in zip(pairing.partners, ending, strict=True)
    )
    return fresh, msgspec.structs.replace(pairing, partners=partners), True


def _keeping_apart(registry: Registry, slots: Slots, endpoint: Endpoint) -> Slots:
    """Leave out engines that overlook a tenant's salt and would share its cache; `ClientError` if all do."""
    engines = OVERLOOKED_BY.get(endpoint)
    if engines is None:
        return slots
    left = registry.without(slots, engines)
    if not len(left):
        raise ClientError(
            f"Your cache is kept apart, which {', '.join(engines)} cannot do at {endpoint}.",
            code="isolation_unsupported",
        )
    return left
