"""One client request, from its last byte to the last byte of its answer.

    begin ──parse──> place ──send──> in flight ──first body byte──> answering ──> done
       │              ^ │ ^              │ failed, budget left          │
       └── parsing ───┘ │ └─ redispatch ─┘                              └ failed: stream ends with its error
        (a large body,  └─ waits in the `WaitingRoom`, if it is not its turn, and places afresh
         in steps), or tokenizing (`router.tokenizing`, for models that have a tokenizer)

Nothing of an answer goes to the client before the worker's first body byte (or the end of an
empty body), so that until then a failure can be redispatched unseen. Whatever happens, every attempt's
`Reservation` is released, and the client gets exactly one answer. A request is counted out before its
answer ends: with the end, a pipelined request behind it begins. What is told of it then is its
`RequestRecord`'s business.

How it is placed, waits and is redispatched: `router.gateway.dispatching`. A request that a prefill and a
decode worker share is one upstream request here, too (`router.handover`).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from policies import Decision
from router.errors import (
    Overloaded,
    RequestExpired,
    RouterError,
    ShuttingDown,
    StreamBroken,
    UpstreamError,
    WorkerSilent,
)
from router.fleet import LocalWorker
from router.gateway.answer import answered_error, crashed, error_event, without_worker
from router.gateway.blame import Failure
from router.gateway.dispatching import Dispatching
from router.gateway.edits import edited
from router.gateway.endpoints import Endpoint
from router.gateway.hops import hops_of
from router.gateway.lane import Steps
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.pair_reservation import PairReservation
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.gateway.reservation import Reservation
from router.gateway.stream_events import SPEAKS_EARLY, has_token, is_over
from router.gateway.usage import TailBuffer
from router.gateway.whole_events import BLANK, WholeEvents
from router.handover import Pair
from router.proxy import ClientConnection, ClientRequest, Header, error_answer
from router.shared import Charge
from router.tenants import Limiter, Tenant

if TYPE_CHECKING:
    from router.gateway.gateway import Gateway
    from router.tokenizing.tokenizing import Tokenizing

_PACKED = b"content-encoding: "


class RequestExchange(Dispatching):
    """Serves one request through the `router.proxy` ports."""

    __slots__ = (
        "_answer_head",
        "_client",
        "_deadline_timer",
        "_done",
        "_events",
        "_parsing",
        "_request",
        "_sending",
    )

    def __init__(self, gateway: "Gateway", request: ClientRequest, client: ClientConnection) -> None:
        self._gateway = gateway
        self._request = request
        self._client = client
        self._record = RequestRecord(
            gateway, request.path, request.client, request.received_s, len(request.body)
        )
        self._parsing: Steps | None = None
        self._reservation = None
        self._blame = None
        self._tried = []
        self._upstream = None
        self._answer_head: tuple[int, bytes, int | None] | None = None
        self._events: WholeEvents | None = None
        self._sending = False
        self._done = False
        self._pause_timer = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._arrived_us = 0
        self._ticket_id = ""

    @property
    def received_s(self) -> float:
        """Monotonic seconds when the request was complete."""
        return self._record.received_s

    # From the client's side (`router.proxy.Exchange`).

    def begin(self) -> None:
        """Parse, place and send; or answer with the error at once."""
        gateway, record = self._gateway, self._record
        gateway.exchanges.add(self)
        gateway.retry_budget.deposit()
        try:
            noted = gateway.noted(self._request.headers)
            record.worker_request_id = ours = gateway.next_request_id()
            record.request_id = gateway.clients_id(noted) or ours
            record.hides_workers = gateway.hides_workers(noted)
            if gateway.spans is not None:
                record.spans = gateway.spans.begin(
                    self._request.method, record.path, noted, record.request_id, record.received_s
                )
            record.tenant = tenant = gateway.admit(noted, self._request.refusal)
            record.endpoint = endpoint = gateway.endpoint_of(record.path)
            if noted:
                record.hops = hops_of(noted)
                self._set_deadline(noted)
            if record.request_bytes >= LARGE_BODY_BYTES:
                self._parsing = self._parse_large(endpoint, tenant, noted)
                gateway.lane.add(self._parsing)
                return
            parsed = gateway.parse(endpoint, self._request.body, tenant)
            if gateway.tokenizing is None:
                self._begin_dispatch(parsed, noted)
            else:
                self._begin_tokenizing(gateway.tokenizing, parsed, noted)
        except RouterError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def pause(self) -> None:
        """The client reads too slowly."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    def client_left(self) -> None:
        """Free the worker at once; but who has the last event of its stream only needs no end of it."""
        if self._done:
            return
        if self._upstream is not None:
            if self._said_all():
                self._upstream.resume()
                return
            self._upstream.abort()
        reservation = self._reservation
        if reservation is not None:
            reservation.release(abandoned=not (reservation.prefilled or self._record.first_byte_s))
        self._gateway.metrics.client_left()
        self._finish("client_left", 499)

    def interrupt(self) -> None:
        """The process ends before the answer does."""
        error = ShuttingDown()
        self._end_early(broken=error, unanswered=error)

    # From the worker's side (`router.proxy.UpstreamSink`).

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Hold the head back until the first body byte; a retriable status may go elsewhere."""
        if status >= 400 and self._redispatched(answered_error(status), status):
            return
        self._answer_head = (status, lines, length)
        # What has a length, or is packed, cannot take an error event.
        if length is None and b"content-type: text/event-stream" in lines.lower() and _PACKED not in lines:
            self._events = WholeEvents()

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on; the first ones end the prefill, unless they are all: then the end says so.

        A few streams begin before that (`router.gateway.stream_events`).
        """
        record = self._record
        record.bytes_sent += len(data)
        record.pieces += 1
        tail = record.tail
        if isinstance(tail, TailBuffer):
            tail.append(data)
        elif tail is None:
            record.tail = data
        else:
            record.tail = TailBuffer()
            record.tail.append(tail)
            record.tail.append(data)
        events = self._events
        if events is not None and not (events.between and data.endswith(BLANK)):
            data = events.passed(data)
            if not data:
                return
        if record.first_byte_s:
            self._client.send_body(data)
            return
        if (record.endpoint not in SPEAKS_EARLY and data[:1] != b":") or self._has_token(data):
            record.first_byte_s = self._gateway.now_s()
        if self._sending:
            self._client.send_body(data)
        else:
            self._send_head(data)
        assert self._answer_head is not None
        if record.first_byte_s and len(data) != self._answer_head[2]:
            # It is sent to nobody any more, and a long answer must not keep a long prompt.
            self._request = msgspec.structs.replace(self._request, body=b"", headers=())
            self._client.release_body()
            assert self._reservation is not None
            self._reservation.prefill_ended()

    def upstream_end(self) -> None:
        """The answer is complete: learn from it."""
        gateway, record, reservation = self._gateway, self._record, self._reservation
        assert reservation is not None
        if not record.first_byte_s:
            record.first_byte_s = gateway.now_s()
        held = b"" if self._events is None else self._events.held
        if not self._sending:
            self._send_head(held)
        elif held:
            self._client.send_body(held)
        assert self._answer_head is not None
        status = self._answer_head[0]
        local, placed_us = reservation.local, reservation.attempt.placed_us
        now_us = gateway.clock.now_us()
        if status < 500:
            gateway.registry.circuits.succeeded(local, now_us, placed_us)
        else:
            error = answered_error(status)
            self._failed_at([Failure(local, placed_us, error.code, error.asked)], last=True)
        if status < 400:
            reservation.release(abandoned=False, prefilled_us=now_us)
        else:
            if record.pair is not None:
                record.pair.refused(status)
            reservation.release(abandoned=True)  # an error is no sign that anything was computed
        self._finish("completed" if status < 400 else "worker_error", status)
        self._client.finish()
        if status < 400:
            record.answered(status, now_us)  # last: whatever it makes of it, the request is counted out

    def prefill_ended(self) -> None:
        """The prefill worker of a pair has done its part (`router.handover.PairSink`)."""
        record = self._record
        assert record.pair is not None
        record.pair.prefill_over()
        if record.spans is not None:
            record.spans.leg_over(self._gateway.now_s())

    def shipped(self) -> None:
        """The KV is at the decode worker of a pair."""
        record = self._record
        assert record.pair is not None
        record.pair.shipped()
        if record.spans is not None:
            record.spans.leg_over(self._gateway.now_s())

    def upstream_failed(self, error: Exception) -> None:
        """Redispatch if the client has seen nothing yet, else end its answer with the error."""
        assert isinstance(error, UpstreamError)
        if self._sending:
            assert self._reservation is not None
            self._failed_at(self._reservation.worker_failed(error), last=True)
            self._reservation.release(abandoned=not self._record.first_byte_s)
            self._break_stream(error)
        elif not self._redispatched(error, None):
            self._fail(error)

    # From the gateway.

    def out_of_time(self) -> None:
        """The request took longer than the gateway allows."""
        timeout_s = self._gateway.request_timeout_s
        message = f"The request took longer than {timeout_s:g} s."
        self._end_early(
            broken=StreamBroken(message, code="request_timeout"),
            unanswered=RequestExpired(timeout_s)
            if self._ticket_id
            else WorkerSilent(message, code="request_timeout"),
        )

    # Inside.

    def _set_deadline(self, noted: Sequence[Header]) -> None:
        """Take note of the client's own deadline, if it has one.

        Raises:
            ClientError: If it is no time.
        """
        gateway = self._gateway
        self._timeout_s = timeout_s = gateway.timeout_s_of(noted)
        if timeout_s:
            left_s = timeout_s - (gateway.now_s() - self._record.received_s)
            self._deadline_timer = gateway.loop.call_later(left_s, self._deadline_passed)

    def _begin_tokenizing(
        self, tokenizing: "Tokenizing", parsed: ParsedRequest, noted: Sequence[Header]
    ) -> None:
        """Find out the ids of its prompts, then dispatch; see `_begin_dispatch`."""
        self._record.parsed = parsed
        found = tokenizing.begin(parsed, self._request.body, partial(self._tokenized, noted))
        if found is not None:
            self._begin_dispatch(found, noted)

    def _tokenized(self, noted: Sequence[Header], parsed: ParsedRequest) -> None:
        """The ids of its prompts had to be waited for, some milliseconds long; here they are, or are not."""
        if self._done:
            return
        try:
            self._begin_dispatch(parsed, noted)
        except RouterError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def _begin_dispatch(self, parsed: ParsedRequest, noted: Sequence[Header]) -> None:
        """The request is understood: dispatch it for the first time.

        Raises:
            RouterError: As `_dispatch` does, or if a header has no meaning.
        """
        gateway, record, tenant = self._gateway, self._record, self._record.tenant
        record.parsed = parsed
        record.flow = gateway.flow_of(parsed, tenant, noted)
        limiter = gateway.limiter
        if limiter is None or tenant.limits.unlimited:
            self._dispatch()
            return
        tokens = gateway.expected_tokens(parsed)
        record.charge = charge = limiter.admit(tenant, tokens, self._charged)
        if charge.granted or charge.refusal is not None:
            self._admitted(limiter, charge)

    def _charged(self, charge: Charge) -> None:
        """The limits of the tenant had to be asked for, some milliseconds long; here is the answer."""
        if self._done:
            return
        try:
            assert self._gateway.limiter is not None
            self._admitted(self._gateway.limiter, charge)
        except RouterError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def _admitted(self, limiter: Limiter, charge: Charge) -> None:
        """Dispatch, if the limits of the tenant allow it.

        Raises:
            RequestRejected: They do not.
        """
        if charge.refusal is not None:
            raise limiter.rejection(charge)
        self._dispatch()

    def _parse_large(self, endpoint: Endpoint, tenant: Tenant, noted: Sequence[Header]) -> Steps:
        """Go on as `begin` does, but in steps; `_finish` closes this if the request ends meanwhile."""
        try:
            parsed = yield from self._gateway.parse_in_steps(endpoint, self._request.body, tenant)
            self._parsing = None
            if self._gateway.tokenizing is None:
                self._begin_dispatch(parsed, noted)
            else:
                self._begin_tokenizing(self._gateway.tokenizing, parsed, noted)
        except RouterError as error:
            self._parsing = None
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._parsing = None
            self._fail(crashed())

    def _send(self, decision: Decision) -> None:
        gateway, request, record = self._gateway, self._request, self._record
        parsed, attempt = record.parsed, decision.attempt
        assert parsed is not None
        local = gateway.registry.at_slot(attempt.chosen.slot)
        record.attempts += 1
        record.attempt = attempt
        record.pair = None
        record.tail = None
        self._answer_head = self._events = None
        if decision.decode is not None:
            self._send_pair(decision, local, decision.decode)
            return
        body: Sequence[bytes | memoryview] = (request.body,)
        if parsed.edits:
            body = edited(request.body, parsed.edits)
        if local.worker.role == "decode":
            gateway.metrics.pairs.whole_at_decode(local.worker.worker_id)
            body = gateway.handovers[local.protocol].alone(body)
        self._reservation = Reservation(gateway, parsed, local, attempt, decision.placed)
        self._reservation.make()
        context = b""
        if record.spans is not None:
            workers = {"cacheway.worker": attempt.worker_id}
            context = record.spans.sent(attempt, workers, gateway.now_s())
        self._upstream = local.pool.send(
            method=request.method,
            path=request.path,
            query=request.query,
            lines=gateway.forwarding.lines(request, record.worker_request_id, context, record.hops),
            body=body,
            sink=self,
            patient=not parsed.stream,
            resend=record.attempts == 1,
        )

    def _send_pair(self, decision: Decision, prefill: LocalWorker, half: Decision) -> None:
        """Reserve on both workers, and send to them as they hand over."""
        gateway, request, record, parsed = self._gateway, self._request, self._record, self._record.parsed
        assert parsed is not None
        decode = gateway.registry.at_slot(half.attempt.chosen.slot)
        self._reservation = record.pair = PairReservation(
            gateway,
            parsed,
            prefill,
            decode,
            decision.attempt,
            half.attempt,
            decision.placed,
            half.placed,
            decision.shipping,
            decision.offload,
            None if decision.shipping is None else self._transfer_late,
        )
        record.pair.make()
        context = b""
        if record.spans is not None:
            workers = {
                "cacheway.prefill_worker": decision.attempt.worker_id,
                "cacheway.worker": half.attempt.worker_id,
            }
            context = record.spans.sent(decision.attempt, workers, gateway.now_s())
        pair = Pair(
            parsed,
            request.method,
            request.path,
            request.query,
            gateway.forwarding.lines(request, record.worker_request_id, context, record.hops),
            edited(request.body, parsed.edits),
            record.request_id,
            prefill,
            decode,
            record.attempts == 1,
        )
        self._upstream = record.pair.request = gateway.handovers[prefill.protocol].send(pair, self)

    def _has_token(self, data: bytes) -> bool:
        """Whether bytes of an answer that may begin early belong to a token; they do if it is no stream."""
        parsed = self._record.parsed
        assert parsed is not None
        return not parsed.stream or has_token(self._record.endpoint, data)

    def _said_all(self) -> bool:
        """Whether the worker has sent the last event of a stream, and only has to end it."""
        record = self._record
        if self._answer_head is None or self._answer_head[0] >= 400 or not record.tail:
            return False
        assert record.parsed is not None
        end = record.tail.bytes() if isinstance(record.tail, TailBuffer) else record.tail
        return record.parsed.stream and is_over(record.endpoint, end)

    def _send_head(self, body: bytes) -> None:
        assert self._answer_head is not None
        status, lines, length = self._answer_head
        self._sending = True
        if self._blame is not None and status < 400:
            self._blame.answered(self._gateway.clock.now_us())
        self._client.send_head(status, lines + self._record.lines(), length=length, body=body)

    def _fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""
        if self._done:
            return
        record = self._record
        if self._reservation is not None:
            self._reservation.release(abandoned=True)
        self._sending = True
        lines, body = error_answer(without_worker(error) if record.hides_workers else error)
        if isinstance(error, Overloaded):
            self._gateway.refusals.add(error.code, record.flow, error.retry_after_s)
        self._client.send_head(error.status, lines + record.lines(), length=len(body), body=body)
        self._finish(error.code, error.status, error)
        self._client.finish()

    def _break_stream(self, error: RouterError) -> None:
        """End a half-sent answer: an event stream with an error event, anything else by closing."""
        assert self._answer_head is not None
        self._finish(error.code, self._answer_head[0], error)
        if self._events is not None and not self._events.torn:
            endpoint = self._record.endpoint
            assert endpoint is not None
            shown = without_worker(error) if self._record.hides_workers else error
            self._client.send_body(error_event(endpoint, shown))
            self._client.finish()
        else:
            self._client.abort()

    def _deadline_passed(self) -> None:
        """The client's own deadline passed."""
        message = f"The answer did not end within the {self._timeout_s:g} s that its request allowed."
        self._end_early(
            broken=StreamBroken(message, code="request_timeout"), unanswered=RequestExpired(self._timeout_s)
        )

    def _end_early(self, *, broken: RouterError, unanswered: RouterError) -> None:
        """End without the worker: a stream with one error, a request without an answer with the other."""
        if self._done:
            return
        if self._upstream is not None:
            self._upstream.abort()
        if self._sending:
            assert self._reservation is not None
            self._reservation.release(abandoned=not self._record.first_byte_s)
            self._break_stream(broken)
        else:
            self._fail(unanswered)

    def _finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Nothing more happens to it: let go of everything, and tell."""
        self._done = True
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        if self._parsing is not None:
            self._parsing.close()
            self._parsing = None
        self._upstream = None
        self._gateway.exchanges.discard(self)
        if self._ticket_id:
            self._gateway.room.leave(self._ticket_id)
            self._ticket_id = ""
            self._record.waited()
        self._record.ended(outcome, status, error)
