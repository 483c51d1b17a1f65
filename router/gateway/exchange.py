"""One client request, from its last byte to the last byte of its answer.

    begin ──parse──> place ──send──> in flight ──first body byte──> answering ──> done
       │              ^ │ ^              │ failed, budget left          │
       └── parsing ───┘ │ └─ redispatch ─┘                              └ failed: stream ends with its error
        (a large body,  └─ waits in the `WaitingRoom`, if it is not its turn, and places afresh
         in steps)

Nothing of an answer goes to the client before the worker's first body byte (or the end of an
empty body), so that until then a failure can be redispatched unseen. Whatever happens, every attempt's
`Reservation` is released, and the client gets exactly one answer. A request is counted out before its
answer ends: with the end, a pipelined request behind it begins. What is told of it then is its
`RequestRecord`'s business.

All of it runs in callbacks of the event loop: there is no await between looking at the fleet
and reserving, so nothing changes between look and choice.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

import msgspec
import numpy as np

from policies import GiveUp, Redispatch, Shed, Slots, redispatch
from router.errors import (
    ClientError,
    Overloaded,
    RequestExpired,
    RouterError,
    ShuttingDown,
    StreamBroken,
    UpstreamError,
    WorkerSilent,
    WorkerUnreachable,
    error_body,
)
from router.gateway.answer import error_event, retry_after
from router.gateway.decision import Claim, Decision, Hold, refusal_of
from router.gateway.endpoints import Endpoint
from router.gateway.forwarding import with_salt
from router.gateway.lane import Steps
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.gateway.queue_lanes import lane_of
from router.gateway.record import RequestRecord
from router.gateway.reservation import Reservation
from router.gateway.salting import OVERLOOKED_BY
from router.gateway.usage import TailBuffer
from router.proxy import ClientConnection, ClientRequest, Header, UpstreamRequest
from router.shared import Charge
from router.tenants import Limiter, Tenant

if TYPE_CHECKING:
    from router.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Before the only worker left is asked a second time; doubled each time after."""


class RequestExchange:
    """Serves one request through the `router.proxy` ports."""

    __slots__ = (
        "_answer_head",
        "_arrived_us",
        "_client",
        "_deadline_timer",
        "_done",
        "_gateway",
        "_parsing",
        "_pause_timer",
        "_record",
        "_request",
        "_reservation",
        "_sending",
        "_ticket_id",
        "_timeout_s",
        "_tried",
        "_upstream",
    )

    def __init__(self, gateway: "Gateway", request: ClientRequest, client: ClientConnection) -> None:
        self._gateway = gateway
        self._request = request
        self._client = client
        self._record = RequestRecord(
            gateway, request.path, request.client, request.received_s, len(request.body)
        )
        self._parsing: Steps | None = None
        self._reservation: Reservation | None = None
        self._tried: list[int] = []
        self._upstream: UpstreamRequest | None = None
        self._answer_head: tuple[int, bytes, int | None] | None = None
        self._sending = False
        self._done = False
        self._pause_timer: asyncio.TimerHandle | None = None
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
            record.request_id = gateway.request_id_of(noted)
            record.tenant = tenant = gateway.admit(noted)
            record.endpoint = endpoint = gateway.endpoint_of(record.path)
            if noted:
                self._set_deadline(noted)
            if record.request_bytes >= LARGE_BODY_BYTES:
                self._parsing = self._parse_large(endpoint, tenant, noted)
                gateway.lane.add(self._parsing)
                return
            self._begin_dispatch(gateway.parse(endpoint, self._request.body, tenant), noted)
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
        """Free the worker at once."""
        if self._done:
            return
        if self._upstream is not None:
            self._upstream.abort()
        reservation = self._reservation
        if reservation is not None:
            reservation.release(abandoned=not (reservation.prefilled or self._sending))
        self._gateway.metrics.client_left()
        self._finish("client_left", 499)

    def interrupt(self) -> None:
        """The process ends before the answer does."""
        error = ShuttingDown()
        self._end_early(broken=error, unanswered=error)

    # From the worker's side (`router.proxy.UpstreamSink`).

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Hold the head back until the first body byte; a retriable status may go elsewhere."""
        if status >= 400 and self._redispatched(_answered(status), status):
            return
        self._answer_head = (status, lines, length)

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on; the first ones end the prefill, unless they are all: then the end says so."""
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
        if self._sending:
            self._client.send_body(data)
            return
        record.first_byte_s = self._gateway.now_s()
        self._send_head(data)
        assert self._answer_head is not None
        if len(data) != self._answer_head[2]:
            # It is sent to nobody any more, and a long answer must not keep a long prompt.
            self._request = msgspec.structs.replace(self._request, body=b"", headers=())
            assert self._reservation is not None
            self._reservation.prefill_ended()

    def upstream_end(self) -> None:
        """The answer is complete: learn from it."""
        gateway, record, reservation = self._gateway, self._record, self._reservation
        assert reservation is not None
        if not self._sending:
            record.first_byte_s = gateway.now_s()
            self._send_head(b"")
        assert self._answer_head is not None
        status = self._answer_head[0]
        local, placed_us = reservation.local, reservation.attempt.placed_us
        now_us = gateway.clock.now_us()
        if status < 500:
            gateway.registry.circuits.succeeded(local, now_us, placed_us)
        else:
            gateway.registry.failed(local, _answered(status), now_us, placed_us)
        if status < 400:
            reservation.release(abandoned=False, prefilled_us=now_us)
        else:
            reservation.release(abandoned=True)  # an error is no sign that anything was computed
        self._finish("completed" if status < 400 else "worker_error", status)
        self._client.finish()
        if status < 400:
            record.answered(status, now_us)  # last: whatever it makes of it, the request is counted out

    def upstream_failed(self, error: Exception) -> None:
        """Redispatch if the client has seen nothing yet, else end its answer with the error."""
        assert isinstance(error, UpstreamError)
        if self._sending:
            assert self._reservation is not None
            self._reservation.worker_failed(error)
            self._reservation.release(abandoned=False)
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

    def renew(self, left_us: int, now_us: int) -> None:
        """This replica was given up although it lives: reserve again what it lost.

        Args:
            left_us: Log time up to which its placements were dropped.
            now_us: Log time, later than that.
        """
        if self._ticket_id:
            self._gateway.room.say_again(self._ticket_id, left_us, now_us)
        if self._reservation is not None:
            self._reservation.renew(left_us, now_us)

    # From the waiting room (`router.gateway.waiting_room.Waiter`).

    def decide(self, ticket_id: str, turn: int) -> Decision | Hold | Shed:
        """Choose a worker, and see whether it is this request's turn there.

        Raises:
            RouterError: If nobody may take it.
        """
        try:
            return self._decide(ticket_id, turn)
        except RouterError:
            raise
        except Exception as error:
            raise crashed() from error

    def dispatched(self, decision: Decision) -> None:
        """It is this request's turn: go."""
        self._ticket_id = ""
        self._record.waited()
        try:
            self._send(decision)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def refused(self, error: RouterError) -> None:
        """It waited for nothing."""
        self._ticket_id = ""
        self._record.waited()
        self._fail(error)

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
            self._begin_dispatch(parsed, noted)
        except RouterError as error:
            self._parsing = None
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._parsing = None
            self._fail(crashed())

    def _dispatch(self) -> None:
        """Choose a worker, and go there or wait.

        Raises:
            NoWorker: If nobody may take it.
            ClientError: If nobody ever could.
            RequestRejected: If it had to wait, and too many wait already.
        """
        match self._decide("", -1):
            case Decision() as decision:
                self._send(decision)
            case Hold() as hold:
                self._wait(hold)
            case Shed() as shed:
                raise refusal_of(shed)
            case never:
                assert_never(never)

    def _decide(self, ticket_id: str, turn: int) -> Decision | Hold | Shed:
        """Choose a worker."""
        gateway, record, parsed = self._gateway, self._record, self._record.parsed
        assert parsed is not None
        registry, now_s = gateway.registry, gateway.now_s()
        now_us = gateway.clock.now_us()
        bucket = gateway.decider.bucket_of(parsed)
        slots = every = registry.eligible(parsed.model, now_us, bucket)
        if self._tried:
            fresh = slots[~np.isin(slots, self._tried)]
            slots = fresh if len(fresh) else slots
        if not len(slots):
            raise gateway.nobody_for(parsed.model, bucket)
        if record.tenant.salt:
            slots = self._keeping_apart(slots, parsed.endpoint)
        slots = registry.ramped(slots, parsed.key, now_us)
        claim = None
        if parsed.paths:  # what has no prompt takes no worker's time worth waiting for
            if not self._arrived_us:
                self._arrived_us = now_us - int((now_s - record.received_s) * 1e6)
            lane = lane_of(parsed.model, bucket)
            claim = Claim(
                self._arrived_us, lane, record.flow, ticket_id, turn, slots is not every, record.attempts > 0
            )
        profile = gateway.profile_of(parsed.model)
        return gateway.decider.decide(parsed, profile, slots, now_us, now_s, claim, bucket)

    def _keeping_apart(self, slots: Slots, endpoint: Endpoint) -> Slots:
        """Of some workers, those whose engines hear the tenant's salt.

        Raises:
            ClientError: If none does: a cache shared in silence is not what the tenant asked for.
        """
        engines = OVERLOOKED_BY.get(endpoint)
        if engines is None:
            return slots
        kept = self._gateway.registry.without(slots, engines)
        if not len(kept):
            raise ClientError(
                f"Your cache is kept apart, which {', '.join(engines)} cannot do at {endpoint}.",
                code="isolation_unsupported",
            )
        return kept

    def _wait(self, hold: Hold) -> None:
        """Wait for a worker that has room.

        Raises:
            RequestRejected: If too many wait already.
        """
        gateway = self._gateway
        deadline_us = self._arrived_us + round(self._timeout_s * 1e6) if self._timeout_s else None
        gateway.room.enter(self, hold, deadline_us, again=self._record.attempts > 0)
        self._ticket_id = hold.waiting.request_id
        self._record.waits_since_s = gateway.now_s()

    def _send(self, decision: Decision) -> None:
        """Reserve, and send to the chosen worker."""
        gateway, request, record = self._gateway, self._request, self._record
        parsed, attempt = record.parsed, decision.attempt
        assert parsed is not None
        local = gateway.registry.at_slot(attempt.chosen.slot)
        record.attempts += 1
        record.attempt = attempt
        record.tail = None
        self._answer_head = None
        self._reservation = Reservation(gateway, parsed, local, attempt, decision.placed)
        self._reservation.make()
        salt = record.tenant.salt
        self._upstream = local.pool.send(
            method=request.method,
            path=request.path,
            query=request.query,
            lines=gateway.forwarding.lines(request, record.request_id),
            body=with_salt(request.body, parsed, salt) if salt else (request.body,),
            sink=self,
            patient=not parsed.stream,
        )

    def _redispatched(self, error: UpstreamError, status: int | None) -> bool:
        """Try again, if the rule allows; True if that has taken over.

        Another worker is asked at once. If all that may serve it have failed, an answer of the last one
        passes through, and a worker that gave no answer is asked again after a pause: its
        trouble may have been the moment's.
        """
        gateway, record, reservation = self._gateway, self._record, self._reservation
        assert reservation is not None
        local, parsed = reservation.local, reservation.parsed
        now_s = gateway.now_s()
        tried = (*self._tried, local.worker.slot)
        now_us = gateway.clock.now_us()
        eligible = gateway.registry.eligible(parsed.model, now_us, gateway.decider.bucket_of(parsed))
        others = not np.isin(eligible, tried).all()
        verdict: Redispatch | GiveUp = GiveUp("no_other_worker")
        if others or status is None:
            verdict = redispatch(
                gateway.redispatch_rules,
                gateway.retry_budget,
                status=status,
                attempts=record.attempts,
                age_s=now_s - record.received_s,
                now_s=now_s,
            )
        if status is None or (status >= 500 and not isinstance(verdict, GiveUp)):
            reservation.worker_failed(error)
        elif not isinstance(verdict, GiveUp):  # busy, not broken
            gateway.registry.circuits.succeeded(local, now_us, reservation.attempt.placed_us)
        if isinstance(verdict, GiveUp):
            return False  # a status that may not be retried passes through, and counts when it ends
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        reservation.release(abandoned=True)
        self._tried.append(local.worker.slot)
        gateway.metrics.redispatched(error.code)
        logger.info(
            "request redispatched",
            extra={
                "event": "request.redispatched",
                "request_id": record.request_id.decode("latin-1"),
                "worker_id": local.worker.worker_id,
                "reason": error.code,
                "detail": error.message,
                "attempts": record.attempts,
            },
        )
        if others:
            self._dispatch_again(error)
        else:
            pause_s = PAUSE_S * 2 ** (record.attempts - 1)
            self._pause_timer = gateway.loop.call_later(pause_s, partial(self._dispatch_again, error))
        return True

    def _dispatch_again(self, error: UpstreamError) -> None:
        """Make the next attempt; if there is nobody to ask, the last failure says more than that."""
        self._pause_timer = None
        try:
            self._dispatch()
        except RouterError:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def _send_head(self, body: bytes) -> None:
        assert self._answer_head is not None
        status, lines, length = self._answer_head
        self._sending = True
        self._client.send_head(status, lines + self._record.lines(), length=length, body=body)

    def _fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""
        if self._done:
            return
        record = self._record
        if self._reservation is not None:
            self._reservation.release(abandoned=True)
        self._sending = True
        body = error_body(error)
        lines = b"content-type: application/json\r\n" + record.lines()
        if error.status in (429, 503):
            lines += b"retry-after: %b\r\n" % retry_after(getattr(error, "retry_after_s", 1.0))
        if isinstance(error, Overloaded):
            self._gateway.refusals.add(error.code, record.flow, error.retry_after_s)
        self._client.send_head(error.status, lines, length=len(body), body=body)
        self._finish(error.code, error.status, error)
        self._client.finish()

    def _break_stream(self, error: RouterError) -> None:
        """End a half-sent answer: an event stream with an error event, anything else by closing."""
        assert self._answer_head is not None
        status, lines, length = self._answer_head
        streams = any(line.startswith(b"content-type: text/event-stream") for line in lines.splitlines())
        self._finish(error.code, status, error)
        if length is None and streams:
            endpoint = self._record.endpoint
            assert endpoint is not None
            self._client.send_body(error_event(endpoint, error))
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
            self._reservation.release(abandoned=False)
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


def crashed() -> RouterError:
    """Log the exception that is handled, a mistake of ours; and what the client is told of it."""
    logger.exception("request failed inside the gateway", extra={"event": "request.crashed"})
    return RouterError("The gateway failed to serve this request; its log says why.")


def _answered(status: int) -> UpstreamError:
    """What a worker's error status is as a failure."""
    return WorkerUnreachable(f"The worker answered {status}.", code=f"upstream_status_{status}")
