"""A dry run of one request, by the code that decides real ones, without effects.

    the gateway's fleet, registry and rules, and a `Decider` that rehearses
        └── `router.gateway.choosing.choose`, once ──> Decision | Queued | Shed, or the error of a client

It publishes, reserves, counts, stores and learns nothing, and is no arrival. It shares with the real gateway
only caches derived from the fleet. It ignores the limits of the tenant (a look would be a charge) and how
full the queue is, which `router.explaining.explanation` reports.
"""

import msgspec

from policies import Decision, LengthClass, Policy, Queued, ScoredRequest, Shed
from router.errors import RouterError
from router.gateway.choosing import choose
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.tenant import Tenant

Outcome = Decision | Queued | Shed | RouterError


class Rehearsed(msgspec.Struct, frozen=True, eq=False):
    """The decision on a request if it came now; no prices if no worker could take it."""

    parsed: ParsedRequest
    tenant: Tenant
    length: LengthClass
    now_us: int
    outcome: Outcome
    scored: ScoredRequest | None


class _Notes:
    """Keeps the prices of the request."""

    def __init__(self) -> None:
        self.scored: ScoredRequest | None = None

    def weighed(self, weighed: ScoredRequest) -> None:
        self.scored = weighed


def rehearse(
    gateway: Gateway, parsed: ParsedRequest, tenant: Tenant, policy: Policy | None = None
) -> Rehearsed:
    """Decide a request as if it had just come, without awaiting; by ``policy``, or by the one in use."""
    notes = _Notes()
    decider = gateway.placing.decider.rehearsing(notes, policy)
    now_us = gateway.log.now_us()
    record = RequestRecord(
        b"",
        "",
        gateway.now_s(),
        0,
        gateway=gateway,
        endpoint=parsed.endpoint,
        tenant=tenant,
        parsed=parsed,
        flow=gateway.reader.flow_of(parsed, tenant, ()),
    )
    outcome: Outcome
    try:
        outcome = choose(gateway, decider, record, parsed)
    except RouterError as error:
        outcome = error
    if notes.scored is not None:
        now_us = notes.scored.candidates.now_us
    return Rehearsed(parsed, tenant, decider.length_of(parsed), now_us, outcome, notes.scored)
