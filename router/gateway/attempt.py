"""An attempt of a request at its worker: its reservation and its answer.

    sent ──head──> held back ──first body byte──> passed on ──> end
             └ 4xx, 5xx ──redispatched?──┐              └──fails──> the stream ends with its error
      └──fails──────────redispatched?────┴──no──> the client gets it

Nothing of an answer goes to the client before the worker's first body byte (or the end of an empty body), so
until then a failure can be redispatched unseen. An attempt that is left for another one is aborted.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from router.chunks import PassedChunks
from router.errors import RouterError, UpstreamError
from router.fleet import LocalWorker
from router.gateway.answer import answered_error
from router.gateway.blame import Failure
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import ANSWERING, TO_ANSWERING
from router.gateway.record import RequestRecord, outcome_of
from router.gateway.reservation import Reserved
from router.gateway.stream_events import SPEAKS_EARLY, has_token, is_over
from router.gateway.whole_events import BLANK, WholeEvents
from router.proxy import Answer, ClientConnection, PooledRequest, UpstreamRequest, WholeSink
from router.tail_buffer import TailBuffer

_PACKED = b"content-encoding: "


class AnswerHead(msgspec.Struct, frozen=True):
    """The head of a worker's answer; status 0 before it came, length None if unknown."""

    status: int
    lines: bytes
    length: int | None


NO_HEAD = AnswerHead(0, b"", None)


class Owner(Protocol):
    """The request of an attempt (`router.gateway.exchange.RequestExchange`)."""

    def prompt_is_sent(self) -> None:
        """Release the body: no other worker will get it."""

    def finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count the request out."""

    def fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""

    def break_off(self, attempt: "WorkerAttempt", error: RouterError) -> None:
        """End a half-sent answer."""


class Retries(Protocol):
    """Decides on further attempts (`router.gateway.dispatcher.Dispatcher`)."""

    def redispatched(self, attempt: "WorkerAttempt", error: UpstreamError, status: int | None) -> bool:
        """Make another attempt if the rule allows; True if one has taken over."""

    def may_leave(self, avoided: Sequence[int]) -> bool:
        """True if another worker is left, and the rule allows another attempt; that is then paid for."""

    def leave(
        self, attempt: "WorkerAttempt", local: LocalWorker, avoided: Sequence[int], error: UpstreamError
    ) -> None:
        """Give an attempt up that could still succeed, and make another one."""

    def failed_at(self, failures: Sequence[Failure], *, last: bool) -> None:
        """Find out whether the worker or the request is at fault."""

    def answers_well(self) -> None:
        """Blame the workers that failed before this one answered."""


class WorkerAttempt(msgspec.Struct, WholeSink, eq=False):
    """Passes a worker's answer on (`router.proxy.UpstreamSink`).

    ``upstream`` is None until the request is sent; ``events`` holds back incomplete events of an event
    stream.
    """

    gateway: Gateway
    record: RequestRecord
    parsed: ParsedRequest
    client: ClientConnection
    owner: Owner
    retries: Retries
    reservation: Reserved
    upstream: UpstreamRequest | None = None
    head: AnswerHead = NO_HEAD
    events: WholeEvents | None = None
    passed: PassedChunks | None = None

    def abort(self) -> None:
        """Release the workers; nothing more is heard of them."""
        self._end_passing()
        if self.upstream is not None:
            self.upstream.abort()

    def said_all(self) -> bool:
        """Return True if the worker has sent the last event of a stream, and only has to end it."""
        if self.passed is not None:
            self.passed.settle()
        tail, status = self.record.tail, self.head.status
        if not status or status >= 400 or not tail:
            return False
        end = tail.bytes() if isinstance(tail, TailBuffer) else tail
        return self.parsed.stream and is_over(self.parsed.endpoint, end)

    # From the worker's side (`router.proxy.UpstreamSink`).

    def upstream_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Pass an answer on, end it, then learn from it: as the calls below, one after the other."""
        record, size = self.record, len(body)
        record.bytes_sent += size
        record.pieces += 1
        record.tail = body
        record.first_byte_s = self.gateway.now_s()
        self._send_head(status, lines, size, body)
        self._complete(status, self.gateway.log.now_us())

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Hold the head back until the first body byte; a retriable status may go elsewhere."""
        if status >= 400 and self.retries.redispatched(self, answered_error(status), status):
            return
        self.head = AnswerHead(status, lines, length)
        # An answer with a length, or packed, cannot take an error event.
        if length is None and b"content-type: text/event-stream" in lines.lower() and _PACKED not in lines:
            self.events = WholeEvents()

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on; the first ones end the prefill, unless they are the whole body: then its end does.

        A few streams begin before their first token (`router.gateway.stream_events`).
        """
        if self.passed is not None:
            self.passed.settle()
        record, size = self.record, len(data)
        record.bytes_sent += size
        record.pieces += 1
        if record.tail is None:
            record.tail = data
        else:
            self._tail().append(data)
        events = self.events
        if events is not None and not (events.between and data.endswith(BLANK)):
            data = events.passed(data)
            if not data:
                return
        if record.first_byte_s:
            self.client.send_body(data)
            return
        parsed = self.parsed
        if (
            not parsed.stream  # bytes of a whole answer belong to a token
            or (parsed.endpoint not in SPEAKS_EARLY and data[:1] != b":")
            or has_token(parsed.endpoint, data)
        ):
            record.first_byte_s = self.gateway.now_s()
        if record.phase is ANSWERING:
            self.client.send_body(data)
        else:
            head = self.head
            self._send_head(head.status, head.lines, head.length, data)
        if size != self.head.length and record.first_byte_s:
            # No other worker will get it, and a long answer must not keep a long prompt.
            self.owner.prompt_is_sent()
            self.reservation.prefill_ended()
            self._pass_chunks()

    def _tail(self) -> TailBuffer:
        tail = self.record.tail
        if not isinstance(tail, TailBuffer):
            first, tail = tail, TailBuffer()
            tail.append(first or b"")
            self.record.tail = tail
        return tail

    def _pass_chunks(self) -> None:
        """Let whole chunks pass as they come from now on, unless a plug-in looks at them on their way."""
        upstream, client = self.upstream, self.client
        if self.events is None or not isinstance(upstream, PooledRequest) or upstream.sink is not self:
            return
        if isinstance(client, Answer) and client.chunked:
            self.passed = upstream.passed = PassedChunks(client.chunk_writer(), self._count_passed)

    def _end_passing(self) -> None:
        passed, self.passed = self.passed, None  # which refers to this
        if passed is not None:
            passed.settle()

    def _count_passed(self, payloads: list[bytes]) -> None:
        record, size = self.record, sum(map(len, payloads))
        record.bytes_sent += size
        record.pieces += len(payloads)
        self._tail().extend(payloads, size)

    def upstream_end(self) -> None:
        """End the answer, then learn from it."""
        self._end_passing()
        record, events, head = self.record, self.events, self.head
        if not record.first_byte_s:
            record.first_byte_s = self.gateway.now_s()
        if record.phase is not ANSWERING:
            self._send_head(head.status, head.lines, head.length, b"" if events is None else events.held)
        elif events is not None and events.held:
            self.client.send_body(events.held)
        now_us = self.gateway.log.now_us()
        if head.status < 400:
            self._complete(head.status, now_us)
        else:
            self._end_refused(head.status, now_us)

    def _complete(self, status: int, now_us: int) -> None:
        """End an answer that is no error."""
        gateway, reservation = self.gateway, self.reservation
        attempt, breaker = reservation.attempt, reservation.local.breaker
        if breaker is not None and (breaker.failures or gateway.fleet.circuits.tripped):
            gateway.registry.circuits.succeeded(reservation.local, now_us, attempt.placed_us)
        reservation.release(abandoned=False, prefilled_us=now_us)
        self.owner.finish("completed", status)
        self.client.finish()
        # Last, so that the request is counted out even if this raises an error.
        self.record.answered(status, now_us, self.parsed, attempt)

    def _end_refused(self, status: int, now_us: int) -> None:
        """End an error answer, which does not show that anything was computed."""
        record, reservation = self.record, self.reservation
        local, placed_us = reservation.local, reservation.attempt.placed_us
        if status < 500:
            self.gateway.registry.circuits.succeeded(local, now_us, placed_us)
        else:
            error = answered_error(status)
            self.retries.failed_at([Failure(local, placed_us, error.code, error.asked)], last=True)
        if record.pair is not None:
            record.pair.refused(status)
        reservation.release(abandoned=True)
        self.owner.finish(outcome_of(status), status)
        self.client.finish()

    def upstream_failed(self, error: UpstreamError) -> None:
        """Redispatch if the client has seen nothing yet, else end its answer with the error."""
        self._end_passing()
        if self.record.phase is ANSWERING:
            self.retries.failed_at(self.reservation.worker_failed(error), last=True)
            self.reservation.release(abandoned=not self.record.first_byte_s)
            self.owner.break_off(self, error)
        elif not self.retries.redispatched(self, error, None):
            self.owner.fail(error)

    def _send_head(self, status: int, lines: bytes, length: int | None, body: bytes) -> None:
        record = self.record
        record.phase = TO_ANSWERING[record.phase]
        if record.attempts > 1 and status < 400:
            self.retries.answers_well()
        self.client.send_head(status, lines + record.lines(), length=length, body=body)
