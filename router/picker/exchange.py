"""A request that a proxy carries: decided here like any other, sent and answered there.

The exchange is the gateway's own (`router.gateway.exchange`) with two differences. Its way to a worker is the
proxy, which hears the choice and reports the answer. And there is one attempt: a proxy that has begun an
answer cannot be sent elsewhere, and asks again itself where its route says so.
"""

from collections.abc import Sequence
from typing import Protocol

from policies import Decision
from router.errors import NoWorker, UpstreamError
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.gateway.attempt import Owner, Retries, WorkerAttempt
from router.gateway.blame import Failure
from router.gateway.dispatcher import Dispatcher
from router.gateway.exchange import RequestExchange
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import Phase
from router.gateway.record import RequestRecord
from router.proxy import ClientConnection, ClientRequest, SendRequest


class Carrier(ClientConnection, Protocol):
    """The proxy: it carries the request to a worker, and the answer to the client."""

    def way_to(self, local: LocalWorker) -> SendRequest:
        """Return the function that tells the proxy to send a request to a worker."""


class PickedExchange(RequestExchange):
    """Serves one request that a proxy carries."""

    __slots__ = ("_carrier",)

    def __init__(self, gateway: Gateway, request: ClientRequest, carrier: Carrier) -> None:
        super().__init__(gateway, request, carrier, _no_pair)
        self._carrier = carrier

    @property
    def record(self) -> RequestRecord:
        """Record of the request so far."""
        return self._record

    @property
    def done(self) -> bool:
        """True once it is counted out."""
        return self._record.phase is Phase.DONE

    def way_to(self, local: LocalWorker) -> SendRequest:
        """Leave sending to the proxy."""
        return self._carrier.way_to(local)

    def retries_of(self, dispatcher: Dispatcher) -> Retries:
        """Allow no second attempt."""
        return OneAttempt(dispatcher)

    def answer_began(self) -> None:
        """Take the head of an answer for its first token: the proxy does not send its body."""
        if self._attempt is not None and not self.done:
            self._record.first_byte_s = self._gateway.now_s()
            self._attempt.reservation.prefill_ended()

    def said_all(self) -> bool:
        """Return True if the worker has sent the last event of a stream, and only has to end it."""
        return self._attempt is not None and self._attempt.said_all()


class OneAttempt:
    """Retries of a request that is tried once."""

    __slots__ = ("_dispatcher",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def redispatched(self, attempt: WorkerAttempt, error: UpstreamError, status: int | None) -> bool:
        """Count a failure without an answer; one with a status counts when the answer ends."""
        if status is None:
            self.failed_at(attempt.reservation.worker_failed(error), last=True)
        return False

    def may_leave(self, avoided: Sequence[int]) -> bool:
        """Never leave the worker."""
        return False

    def leave(
        self, attempt: WorkerAttempt, local: LocalWorker, avoided: Sequence[int], error: UpstreamError
    ) -> None:
        """Not called: the attempt may not be left."""
        raise AssertionError("a request that a proxy carries has one attempt")

    def failed_at(self, failures: Sequence[Failure], *, last: bool) -> None:
        """Find out whether the worker or the request is at fault."""
        self._dispatcher.failed_at(failures, last=last)

    def answers_well(self) -> None:
        """Blame the workers that failed before this one answered."""
        self._dispatcher.answers_well()


def _no_pair(
    gateway: Gateway,
    decision: Decision,
    request: ClientRequest,
    record: RequestRecord,
    parsed: ParsedRequest,
    client: ClientConnection,
    owner: Owner,
    retries: Retries,
    /,
) -> WorkerAttempt:
    """Refuse: the protocol names one endpoint, and prefill and decode workers need two."""
    raise NoWorker(
        "Prefill and decode workers cannot be picked: the endpoint-picker protocol names one endpoint for a "
        "request. Serve them with `cacheway serve`.",
        retry_after_s=gateway.placing.retry_after_s,
    )
