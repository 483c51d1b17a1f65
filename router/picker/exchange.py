"""A request that a proxy carries: decided here like any other, sent and answered there.

The exchange is the gateway's own (`router.gateway.exchange`) with two differences. Its way to a worker is the
proxy, which hears the choice and reports the answer. And there is one attempt: a proxy that has begun an
answer cannot be sent elsewhere, and asks again itself where its route says so, or goes down the list of
endpoints that it was given. Then the attempt moves to the worker that answered.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from policies import Decision, DecisionInput, OpRefused
from router.errors import NoWorker, RouterError, UpstreamError, WorkerUnreachable
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.gateway.attempt import Owner, Retries, WorkerAttempt
from router.gateway.blame import Failure
from router.gateway.dispatcher import Dispatcher
from router.gateway.exchange import RequestExchange
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import Phase
from router.gateway.record import RequestRecord
from router.gateway.reservation import Reservation
from router.handover import Pair, PairedRequest, PairSink
from router.picker.fallbacks import fallbacks
from router.picker.sidecar import SharePair, SidecarRequest, send_to_sidecar
from router.proxy import ClientConnection, ClientRequest, SendRequest
from router.tail_buffer import TailBuffer

SERVED_ELSEWHERE = "served_elsewhere"
"""Outcome of a request that an endpoint answered which is no worker here."""


class Carrier(ClientConnection, Protocol):
    """The proxy: it carries the request to a worker, and the answer to the client."""

    def way_to(self, local: LocalWorker, others: Sequence[LocalWorker] = ()) -> SendRequest:
        """Return the function that tells the proxy to send a request to a worker, or else to the others."""


class Reach(NamedTuple):
    """How far a proxy is told: how many further endpoints, and how two workers share; None: not at all."""

    fallbacks: int = 0
    share: SharePair | None = None


ALONE = Reach()
"""One endpoint is named, and no two workers share a request."""


class PickedExchange(RequestExchange):
    """Serves one request that a proxy carries."""

    is_extended = True

    def __init__(
        self, gateway: Gateway, request: ClientRequest, carrier: Carrier, reach: Reach = ALONE
    ) -> None:
        super().__init__(gateway, request, carrier, self._shared)
        self._carrier, self._reach = carrier, reach

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
        parsed, count = self._record.parsed, self._reach.fallbacks
        if not count or parsed is None:
            return self._carrier.way_to(local)
        return self._carrier.way_to(local, fallbacks(self._gateway, self._record, parsed, local, count))

    def parties_of(self, dispatcher: Dispatcher) -> tuple[ClientConnection, Retries]:
        """Return the client of an attempt, and rules that allow no second one."""
        return self._client, OneAttempt(dispatcher)

    def answer_began(self) -> None:
        """Take the head of an answer for its first token: the proxy does not send its body."""
        if self._attempt is not None and not self.done:
            self._record.first_byte_s = self._gateway.now_s()
            self._attempt.reservation.prefill_ended()

    def doubted(self) -> None:
        """Have the worker probed soon: the proxy may not have reached it, which a status does not tell."""
        if self._attempt is not None:
            self._gateway.registry.suspect(self._attempt.reservation.local)

    def served_by(self, local: LocalWorker | None) -> bool:
        """Move the request to the worker that answers it; False if nothing of it can be learned.

        The proxy passed the chosen worker over, so that one is released and has failed. None stands for an
        endpoint that is no worker here: the request is then counted out. How long the new worker took is not
        known, since the proxy does not say when it asked.
        """
        attempt, dispatcher, record = self._attempt, self._dispatcher, self._record
        if attempt is None or dispatcher is None or self.done:
            return False
        before = attempt.reservation
        error = WorkerUnreachable("another endpoint answered in its place")
        dispatcher.failed_at(before.worker_failed(error), last=False)
        before.release(abandoned=True)
        moved = None if local is None or record.pair is not None else self._reserved(local, attempt.parsed)
        if moved is None:
            self.finish(SERVED_ELSEWHERE, 0)
            return False
        if record.spans is not None:
            record.spans.left(error.code, self._gateway.now_s())
            workers = {"cacheway.worker": moved.attempt.worker_id}
            record.spans.sent(moved.attempt, workers, self._gateway.now_s())
        record.attempts += 1
        record.attempt = moved.attempt = msgspec.structs.replace(moved.attempt, started_s=0.0)
        attempt.reservation = moved
        sessions, parsed = self._gateway.sessions, attempt.parsed
        if parsed.session and sessions is not None:
            sessions.placed(parsed, moved.attempt.worker_id)
        return True

    def _reserved(self, local: LocalWorker, parsed: ParsedRequest) -> Reservation | None:
        """Reserve at a worker that has begun to answer already; None if that cannot be."""
        gateway, now_us = self._gateway, self._gateway.log.now_us()
        profile = gateway.placing.profile_of(parsed.model)
        length = gateway.placing.decider.length_of(parsed)
        slots = np.array(local.slots, dtype=np.intp)
        asked = DecisionInput(parsed, profile, slots, now_us, gateway.now_s(), length)
        try:
            decision = gateway.placing.decider.decide(asked)
            if not isinstance(decision, Decision) or decision.decode is not None:
                return None
            moved = Reservation(gateway, parsed, local, decision.attempt, decision.placed)
            moved.make(gateway.now_s())
        except (RouterError, OpRefused):
            return None
        return moved

    def finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count the request out; of two workers, the answer's counts are the prefill worker's, too."""
        pair, tail = self._record.pair, self._record.tail
        if pair is not None:
            self._gateway.sending.prefill_ends.waiting.pop(pair.attempt.request_id, None)
            attempt = self._attempt
            if attempt is not None and isinstance(attempt.upstream, SidecarRequest) and tail:
                attempt.upstream.usage = tail.bytes() if isinstance(tail, TailBuffer) else tail
        super().finish(outcome, status, error)

    def _shared(
        self,
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
        """Leave a request of two workers to the decode worker's sidecar, or refuse it."""
        share = self._reach.share
        if share is None:
            raise NoWorker(
                "Prefill and decode workers can be picked only if decode workers have llm-d's sidecar "
                "(picker.decode_sidecars). Serve others with `cacheway serve`.",
                retry_after_s=gateway.placing.retry_after_s,
            )

        def send(pair: Pair, sink: PairSink) -> PairedRequest:
            body = pair.body
            if gateway.pairs is not None:
                body = gateway.pairs.alone(pair.prefill.protocol, body)
            return send_to_sidecar(self._carrier.way_to(pair.decode), body, pair, sink)

        attempt = share(gateway, decision, request, record, parsed, client, owner, retries, send=send)
        if not parsed.stream:
            chosen = decision.attempt.chosen
            due_s = decision.attempt.started_s + chosen.estimated_ttft_s
            gateway.sending.prefill_ends.expect(decision.attempt.request_id, attempt.reservation, due_s)
        return attempt

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
