"""A dry run of one request: decided by the very lines that decide the real ones, and nothing comes of it.

    the gateway's fleet, registry and rules, and a `PairDecider` that rehearses
        └── `router.gateway.choosing.choose`, once ──> Decision | Hold | Shed, or the error of a client

Nothing is published, reserved, counted, remembered or learned; it is no arrival. What is shared with the real
gateway are caches of what follows from the fleet anyway.

Not asked are the limits of its tenant (a look would be a charge) and how full the waiting room is, which
`router.explaining.explanation` says beside it.
"""

import msgspec

from policies import Decision, LengthClass, Policy, Queued, ScoredRequest, Shed
from router.errors import RouterError
from router.gateway.choosing import choose
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.tenants import Tenant

Outcome = Decision | Queued | Shed | RouterError


class Rehearsed(msgspec.Struct, frozen=True, eq=False):
    """What would be done with a request now.

    Attributes:
        parsed: The request.
        tenant: Whose it is.
        length: Its length class.
        now_us: Log time of the decision.
        outcome: Placed, held back, shed, or refused with an error.
        weighed: How it was weighed; None if nobody could take it.
    """

    parsed: ParsedRequest
    tenant: Tenant
    length: LengthClass
    now_us: int
    outcome: Outcome
    weighed: ScoredRequest | None


class _Notes:
    """Keeps how the request was weighed."""

    def __init__(self) -> None:
        self.kept: ScoredRequest | None = None

    def weighed(self, weighed: ScoredRequest) -> None:
        """Take it in."""
        self.kept = weighed


def rehearse(
    gateway: Gateway, parsed: ParsedRequest, tenant: Tenant, policy: Policy | None = None
) -> Rehearsed:
    """Decide a request as if it had just come, without awaiting.

    Args:
        gateway: Who would decide.
        parsed: The request.
        tenant: Whose it is.
        policy: By which it is to be decided; None: by the one in use.
    """
    notes = _Notes()
    decider = gateway.placing.decider.rehearsing(notes, policy)
    now_us = gateway.log.now_us()
    record = RequestRecord(
        gateway,
        b"",
        "",
        gateway.now_s(),
        0,
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
    if notes.kept is not None:
        now_us = notes.kept.candidates.now_us
    return Rehearsed(parsed, tenant, decider.length_of(parsed), now_us, outcome, notes.kept)
