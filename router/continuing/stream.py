"""One stream that is kept: between the attempts of its request and its client.

    attempt ──> `_KeptClient` ──text.passed──> the client
    attempt breaks off ──> `KeptStream.goes_on` ──> the next attempt, which says nothing of its head

Calls between an attempt and its client, its retries and its worker's bytes pass here; an ordinary
stream has none of it. A continuation that fails ends the stream with the error of the worker that broke off.
"""

import logging
from typing import Protocol

import msgspec

from router.continuing.asked import Asked, continued_body
from router.continuing.rules import StreamRules
from router.continuing.text import EngineFailed, KeptText, is_plain_stream
from router.errors import RouterError, StreamBroken, UpstreamError
from router.gateway.answer import error_event, without_worker
from router.gateway.attempt import Retries, WorkerAttempt
from router.gateway.blame import Failure
from router.gateway.dispatcher import Dispatcher
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import Phase
from router.gateway.record import RequestRecord
from router.metric_families import CONTINUATIONS
from router.proxy import ClientConnection, UpstreamSink

logger = logging.getLogger(__name__)

HEAD_LINE = b"x-cacheway-continue: true\r\n"
"""Says that another worker may continue this stream."""

COMMENT = b": continued\n\n"
"""The comment, which clients skip, where one did."""


class Owner(Protocol):
    """The exchange of a kept stream (`router.continuing.exchange.KeptExchange`)."""

    def go_on(self, body: bytes, error: UpstreamError) -> None:
        """Read a body that continues the answer, and dispatch it; ``error`` is told if no worker takes it."""

    def attempt_broke(self, error: UpstreamError) -> None:
        """Treat the attempt that is answering as failed."""

    def close_well(self) -> None:
        """End an answer that is complete although its worker broke off."""

    def prompt_is_sent(self) -> None:
        """Release the body."""

    def fail(self, error: RouterError) -> None:
        """End the stream with an error."""


class KeptStream:
    """One stream.

    Attributes:
        begun: The client has a part of the answer.
        broke: The failure of the worker whose stream is being continued; None before.
        parsed: The request as its first attempt sends it.
        client: The client, as attempts see it.
    """

    def __init__(
        self,
        owner: Owner,
        record: RequestRecord,
        parsed: ParsedRequest,
        asked: Asked,
        body: bytes,
        client: ClientConnection,
        rules: StreamRules,
    ) -> None:
        self.owner, self.record, self.rules = owner, record, rules
        self.to_client = client
        self.text = KeptText(asked)
        self._asked, self._original = asked, parsed
        self._body = body
        self.parsed = msgspec.structs.replace(parsed, edits=tuple(sorted((*parsed.edits, *asked.edits))))
        self.begun = False
        self.broke: UpstreamError | None = None
        self.client: ClientConnection = _KeptClient(self)

    @property
    def keeps(self) -> bool:
        """True while the stream could be continued."""
        return self.text.keeps

    def retries(self, dispatcher: Dispatcher) -> Retries:
        """Return the rule for further attempts."""
        return _KeptRetries(self, dispatcher) if self.begun else dispatcher

    def sink(self, attempt: WorkerAttempt) -> UpstreamSink:
        """Return the receiver of a worker's answer."""
        return _KeptSink(self, attempt)

    def drop(self) -> None:
        """Keep nothing any longer."""
        self.text.forget()
        self._body = b""
        self.owner.prompt_is_sent()

    def goes_on(self, attempt: WorkerAttempt, dispatcher: Dispatcher, error: UpstreamError) -> bool:
        """Continue a stream that broke off, if that is possible; True if it is under way, or was complete."""
        text, record = self.text, self.record
        if not self.begun:
            return False
        if not text.keeps:
            return self._stays_broken("not_plain")
        if text.is_complete:
            attempt.abort()
            self.to_client.send_body(text.end())
            self.owner.close_well()
            self.count("ended")
            return True
        said, tokens = text.anchored
        if text.is_marked:
            return self._stays_broken("not_plain")
        if record.continued >= self.rules.times_max:
            return self._stays_broken("limit")
        body = None if text.finished else continued_body(self._asked, self._body, said, tokens)
        if body is None:
            return self._stays_broken("no_tokens_left")
        reservation = attempt.reservation
        if not dispatcher.may_leave(reservation.avoided):
            return self._stays_broken("no_other_attempt")
        dispatcher.abandon(attempt, reservation.local, reservation.avoided, error)
        text.begin_again()
        record.began_s, record.first_byte_s = record.answered_s, 0.0
        record.continued += 1
        self.broke = error
        self.owner.go_on(body, error)
        return True

    def reread(self, parsed: ParsedRequest) -> ParsedRequest:
        """Return the request that continues the answer, as it is sent."""
        if not self._original.tokenized_bytes:
            return parsed
        # Engines report its prompt as token ids: those find the prefix.
        return msgspec.structs.replace(
            self._original, edits=parsed.edits, output_tokens_max=parsed.output_tokens_max
        )

    def refused(self, attempt: WorkerAttempt, status: int | None) -> None:
        """End the stream: a worker does not continue it."""
        attempt.abort()
        refuses = status == 400 and self._asked.chat
        self.count("refused" if refuses else "failed")
        if refuses:
            self.rules.refused(self._original.model or "")
        self.owner.fail(self.broke or StreamBroken("No worker continued the stream."))

    def count(self, result: str) -> None:
        """Count how it ended that a worker broke off."""
        self.record.gateway.metrics.counts[CONTINUATIONS].add((result,))

    def _stays_broken(self, why: str) -> bool:
        self.count(why)
        return False


class _KeptClient:
    """The client of a kept stream, as its attempts see it (`router.proxy.ClientConnection`)."""

    __slots__ = ("_dropped", "_kept", "_mute")

    def __init__(self, kept: KeptStream) -> None:
        self._kept = kept
        self._dropped = self._mute = False

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        """Begin the answer, or go on with it."""
        kept = self._kept
        plain = is_plain_stream(status, lines, length)
        if kept.begun:
            self._mute = not plain
            if plain:
                self._continued()
                self.send_body(body)
            return
        if not plain:
            self._dropped = True
            kept.text.keeps = False
            kept.to_client.send_head(status, lines, length=length, body=body)
            return
        kept.begun = True
        data, failed = self._passed(body)
        kept.to_client.send_head(status, lines + HEAD_LINE, length=None, body=data)
        self._after(failed)

    def send_body(self, data: bytes) -> None:
        """Pass events on."""
        if self._mute:
            return
        if not self._kept.begun:
            self._kept.to_client.send_body(data)
            return
        data, failed = self._passed(data)
        if data:
            self._kept.to_client.send_body(data)
        self._after(failed)

    def finish(self) -> None:
        """End the answer."""
        kept = self._kept
        if self._mute:
            record = kept.record
            error = kept.broke or StreamBroken("No worker continued the stream.")
            shown = without_worker(error) if record.hides_workers else error
            kept.to_client.send_body(error_event(record.path, shown, record.request_id))
        kept.to_client.finish()

    def abort(self) -> None:
        """Close the connection now."""
        self._kept.to_client.abort()

    def release_body(self) -> None:
        """Count the request's body no longer."""
        self._kept.to_client.release_body()

    def _passed(self, data: bytes) -> tuple[bytes, EngineFailed | None]:
        try:
            return self._kept.text.passed(data), None
        except EngineFailed as failed:
            return failed.before, failed

    def _after(self, failed: EngineFailed | None) -> None:
        kept = self._kept
        if failed is not None:
            kept.owner.attempt_broke(
                StreamBroken(f"The worker reports in its stream that it failed: {failed}")
            )
        elif not (kept.text.keeps or self._dropped):
            self._dropped = True
            kept.drop()

    def _continued(self) -> None:
        kept = self._kept
        record = kept.record
        kept.count("continued")
        kept.to_client.send_body(COMMENT)
        logger.info(
            "stream continued by another worker",
            extra={
                "event": "stream.continued",
                "request_id": record.request_id.decode("latin-1"),
                "worker_id": record.attempt.worker_id if record.attempt is not None else "",
                "tokens": kept.text.tokens,
                "continued": record.continued,
            },
        )


class _KeptSink:
    """The receiver of a worker's answer: a stream that ends without its last event broke off."""

    __slots__ = ("_attempt", "_kept", "upstream_data", "upstream_failed", "upstream_head")

    def __init__(self, kept: KeptStream, attempt: WorkerAttempt) -> None:
        self._kept, self._attempt = kept, attempt
        self.upstream_head, self.upstream_data = attempt.upstream_head, attempt.upstream_data
        self.upstream_failed = attempt.upstream_failed

    def upstream_end(self) -> None:
        """End the answer if it is complete."""
        kept, attempt = self._kept, self._attempt
        text, events = kept.text, attempt.events
        whole = text.done or text.finished or not text.keeps or (events is not None and events.held)
        if kept.begun and kept.record.phase is Phase.ANSWERING and not whole:
            attempt.upstream_failed(StreamBroken("The worker ended its stream without its last event."))
        else:
            attempt.upstream_end()


class _KeptRetries:
    """The rule for further attempts at continuing a stream (`router.gateway.attempt.Retries`)."""

    __slots__ = ("_dispatcher", "_kept", "answers_well", "failed_at", "leave", "may_leave")

    def __init__(self, kept: KeptStream, dispatcher: Dispatcher) -> None:
        self._kept, self._dispatcher = kept, dispatcher
        self.may_leave, self.leave = dispatcher.may_leave, dispatcher.leave
        self.failed_at, self.answers_well = dispatcher.failed_at, dispatcher.answers_well

    def redispatched(self, attempt: WorkerAttempt, error: UpstreamError, status: int | None) -> bool:
        """Make another attempt if the rule allows; else end the stream, for its client has its head."""
        if self._dispatcher.redispatched(attempt, error, status):
            return True
        gateway, reservation = self._kept.record.gateway, attempt.reservation
        local, placed_us = reservation.local, reservation.attempt.placed_us
        if status is not None and status >= 500:
            self._dispatcher.failed_at([Failure(local, placed_us, error.code, error.asked)], last=True)
        elif status is not None:
            gateway.registry.circuits.succeeded(local, gateway.log.now_us(), placed_us)
        self._kept.refused(attempt, status)
        return True
