"""The queue of one replica (`policies.WaitingRoom`), whose outcomes become errors that clients are told.

the core      QueueFull  Displaced  Expired  Unserved  Unpublished  Shed
the client    429        429        408      its own   500          429 or 503
"""

from typing import Protocol, assert_never

import policies
from policies import (
    SLO_UNREACHABLE,
    Decision,
    Displaced,
    Expired,
    Hold,
    QueueFull,
    QueueRefusal,
    Shed,
    Unpublished,
    Unserved,
)
from router.errors import NoWorker, Overloaded, RequestDisplaced, RequestExpired, RequestRejected, RouterError
from router.gateway.answer import crashed

UNSERVED = Unserved()


class Waiter(Protocol):
    """A request that waits."""

    def decide(self, ticket_id: str, turn: int) -> Decision | Hold | Shed:
        """Decide afresh (`policies.Claim`).

        Raises:
            RouterError: If no worker may take it any more.
        """

    def dispatched(self, decision: Decision) -> None:
        """Reserve and go: the wait is over. Publishes the decision before it returns."""

    def refused(self, error: RouterError) -> None:
        """The wait is over, and nothing will come of it."""


class WaitingRoom(policies.WaitingRoom):
    """The requests that wait in this replica."""

    def enter(
        self, waiter: Waiter, hold: Hold, deadline_us: int | None = None, *, again: bool = False
    ) -> None:
        """Begin to wait (see `policies.WaitingRoom.begin`).

        Raises:
            RequestRejected: If too many wait already, and none of them here has a lesser claim.
            OpRefused: Its ticket cannot be published: it does not wait.
        """
        full = self.begin(_Translated(waiter), hold, deadline_us, again=again)
        if full is not None:
            raise _full(full)


class _Translated:
    """A waiter, as the core sees it."""

    __slots__ = ("_error", "_waiter")

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._error: RouterError | None = None

    def decide(self, ticket_id: str, turn: int) -> Decision | Hold | Shed | Unserved:
        try:
            return self._waiter.decide(ticket_id, turn)
        except RouterError as error:
            self._error = error
            return UNSERVED

    def dispatched(self, decision: Decision) -> None:
        self._waiter.dispatched(decision)

    def refused(self, refusal: QueueRefusal) -> None:
        self._waiter.refused(self._error_of(refusal))

    def _error_of(self, refusal: QueueRefusal) -> RouterError:
        match refusal:
            case Shed():
                return refusal_of(refusal)
            case Unserved():
                assert self._error is not None
                return self._error
            case Displaced(retry_after_s=retry_after_s):
                return RequestDisplaced(retry_after_s=retry_after_s)
            case Expired(waited_s=waited_s, by_operator=by_operator):
                return RequestExpired(waited_s, by_operator=by_operator)
            case Unpublished():
                return crashed()
            case QueueFull():
                return _full(refusal)
            case never:
                assert_never(never)


def _full(full: QueueFull) -> RequestRejected:
    return RequestRejected(
        f"{full.requests} requests with {full.tokens} uncached tokens are waiting already.",
        retry_after_s=full.retry_after_s,
        code="queue_full",
    )


def refusal_of(shed: Shed) -> Overloaded:
    """Return the error for a request that no worker can take."""
    if shed.reason == SLO_UNREACHABLE:
        return RequestRejected(
            f"The request would miss its service level: {shed.detail}.",
            retry_after_s=shed.retry_after_s,
            code=SLO_UNREACHABLE,
        )
    return NoWorker("No worker can take a request now.", retry_after_s=shed.retry_after_s)
