"""A dry run of one request: decided by the very lines that decide the real ones, and nothing comes of it.

    Gateway ──copy──> stage: the same fleet, registry and rules, but a `Decider` that rehearses
                        └── `Dispatching._decide`, once ──> Decision | Hold | Shed, or the error of a client

Nothing is published, reserved, counted, remembered or learned; it is no arrival. What is shared with the real
gateway are caches of what follows from the fleet anyway.

Not asked are the limits of its tenant (a look would be a charge) and how full the waiting room is, which
`router.gateway.explaining` says beside it.
"""

from copy import copy
from typing import TYPE_CHECKING

import msgspec

from policies import Decision, Hold, Policy, Shed, Weighed
from router.errors import RouterError
from router.gateway.dispatching import Dispatching
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.tenants import Tenant

if TYPE_CHECKING:
    from router.gateway.gateway import Gateway

Outcome = Decision | Hold | Shed | RouterError


class Rehearsed(msgspec.Struct, frozen=True, eq=False):
    """What would be done with a request now.

    Attributes:
        parsed: The request.
        tenant: Whose it is.
        bucket: Its length bucket.
        now_us: Log time of the decision.
        outcome: Placed, held back, shed, or refused with an error.
        weighed: How it was weighed; None if nobody could take it.
    """

    parsed: ParsedRequest
    tenant: Tenant
    bucket: int
    now_us: int
    outcome: Outcome
    weighed: Weighed | None


class _Notes:
    """Keeps how the request was weighed."""

    def __init__(self) -> None:
        self.kept: Weighed | None = None

    def weighed(self, weighed: Weighed) -> None:
        """Take it in."""
        self.kept = weighed


class _Rehearsal(Dispatching):
    """A request that is decided and never sent."""

    __slots__ = ()

    def __init__(self, stage: "Gateway", record: RequestRecord) -> None:
        self._gateway, self._record = stage, record
        self._arrived_us = 0
        self._tried = []

    def outcome(self) -> Outcome:
        """What would be done with it."""
        try:
            return self._decide("", -1)
        except RouterError as error:
            return error

    def _send(self, decision: Decision) -> None:
        raise AssertionError("a rehearsal is never sent")

    def _fail(self, error: RouterError) -> None:
        raise AssertionError("a rehearsal has no client")


def rehearse(
    gateway: "Gateway", parsed: ParsedRequest, tenant: Tenant, policy: Policy | None = None
) -> Rehearsed:
    """Decide a request as if it had just come, without awaiting.

    Args:
        gateway: Who would decide.
        parsed: The request.
        tenant: Whose it is.
        policy: By which it is to be decided; None: by the one in use.
    """
    notes = _Notes()
    stage = copy(gateway)
    stage.decider = gateway.decider.rehearsing(notes, policy)
    now_us = gateway.clock.now_us()
    record = RequestRecord(
        stage,
        b"",
        "",
        gateway.now_s(),
        0,
        endpoint=parsed.endpoint,
        tenant=tenant,
        parsed=parsed,
        flow=gateway.flow_of(parsed, tenant, ()),
    )
    outcome = _Rehearsal(stage, record).outcome()
    if notes.kept is not None:
        now_us = notes.kept.candidates.now_us
    return Rehearsed(parsed, tenant, stage.decider.bucket_of(parsed), now_us, outcome, notes.kept)
