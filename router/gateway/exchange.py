"""One client request, from its last byte to the last byte of its answer.

    begin ──parse──> place ──send──> in flight ──first body byte──> answering ──> done
       │              ^ │ ^              │ failed, budget left          │
       └── parsing ───┘ │ └─ redispatch ─┘                              └ failed: stream ends with its error
        (a large body,  └─ waits in the `WaitingRoom`, if it is not its turn, and places afresh
         in steps)

Nothing of an answer goes to the client before the worker's first body byte (or the end of an
empty body), so that until then a failure can be redispatched unseen. Whatever happens, the
reservation in the log is released exactly once per attempt (`_release`), and the client gets
exactly one answer. A request is counted out before its answer ends: with the end, a pipelined request
behind it begins.

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

from policies import ANY_BUCKET, Finished, FirstToken, GiveUp, Placed, Redispatch, Shed, Slots, redispatch
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
from router.fleet import LocalWorker
from router.gateway.answer import error_event, retry_after
from router.gateway.decision import Claim, Decision, Hold, refusal_of
from router.gateway.endpoints import Endpoint
from router.gateway.feedback import Attempt
from router.gateway.lane import Steps
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.gateway.queue_lanes import lane_of
from router.gateway.salting import OVERLOOKED_BY, salted, takes_salt
from router.gateway.tracer import Tracer
from router.gateway.usage import TailBuffer, Usage, find_usage
from router.proxy import ClientConnection, ClientRequest, Header, UpstreamRequest, lines_of
from router.shared import Charge
from router.tenants import ANONYMOUS, Limiter, Tenant

if TYPE_CHECKING:
    from router.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Before the only worker left is asked a second time; doubled each time after."""

FORWARDED_HEADERS = frozenset(
    (
        b"authorization",
        b"content-type",
        b"accept",
        b"x-correlation-id",
        b"traceparent",
        b"tracestate",
    )
)
"""What of a client's headers a worker sees, beside the request's id in our words; cookies and unknown
headers never do (`wire.md` 4)."""

FORWARDED_WITHOUT_KEY = FORWARDED_HEADERS - {b"authorization"}

_CLIENTS_DOING = ("client_left", RequestExpired.code)
"""Ends of a request that are no fault of its worker."""


class RequestExchange:
    """Serves one request through the `router.proxy` ports."""

    __slots__ = (
        "_answer_head",
        "_arrived_us",
        "_attempt",
        "_attempts",
        "_bytes_sent",
        "_charge",
        "_client",
        "_deadline_timer",
        "_done",
        "_endpoint",
        "_first_byte_s",
        "_flow",
        "_gateway",
        "_local",
        "_parsed",
        "_parsing",
        "_pause_timer",
        "_pieces",
        "_placed",
        "_prefilled",
        "_released",
        "_request",
        "_request_bytes",
        "_request_id",
        "_sending",
        "_tail",
        "_tenant",
        "_ticket_id",
        "_timeout_s",
        "_tried",
        "_upstream",
        "_wait_s",
        "_waits_since_s",
    )

    def __init__(self, gateway: "Gateway", request: ClientRequest, client: ClientConnection) -> None:
        self._gateway = gateway
        self._request = request
        self._request_bytes = len(request.body)
        self._client = client
        self._request_id = b""
        self._tenant = ANONYMOUS
        self._charge: Charge | None = None
        self._endpoint: Endpoint | None = None
        self._parsed: ParsedRequest | None = None
        self._parsing: Steps | None = None
        self._attempt: Attempt | None = None
        self._placed: Placed | None = None
        self._attempts = 0
        self._tried: list[int] = []
        self._local: LocalWorker | None = None
        self._upstream: UpstreamRequest | None = None
        self._answer_head: tuple[int, bytes, int | None] | None = None
        self._sending = False
        self._prefilled = False
        self._released = True
        self._done = False
        self._tail: TailBuffer | bytes | None = None
        self._bytes_sent = 0
        self._pieces = 0
        self._first_byte_s = 0.0
        self._pause_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._arrived_us = 0
        self._flow = ""
        self._ticket_id = ""
        self._waits_since_s = self._wait_s = 0.0

    @property
    def received_s(self) -> float:
        """Monotonic seconds when the request was complete."""
        return self._request.received_s

    # From the client's side (`router.proxy.Exchange`).

    def begin(self) -> None:
        """Parse, place and send; or answer with the error at once."""
        gateway = self._gateway
        gateway.exchanges.add(self)
        gateway.retry_budget.deposit()
        try:
            noted = gateway.noted(self._request.headers)
            self._request_id = gateway.request_id_of(noted)
            self._tenant = tenant = gateway.admit(noted)
            self._endpoint = gateway.endpoint_of(self._request.path)
            if noted:
                self._set_deadline(noted)
            if self._request_bytes >= LARGE_BODY_BYTES:
                self._parsing = self._parse_large(self._endpoint, tenant, noted)
                gateway.lane.add(self._parsing)
                return
            self._begin_dispatch(gateway.parse(self._endpoint, self._request.body, tenant), noted)
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
        self._release(abandoned=not (self._prefilled or self._sending))
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
        self._bytes_sent += len(data)
        self._pieces += 1
        tail = self._tail
        if isinstance(tail, TailBuffer):
            tail.append(data)
        elif tail is None:
            self._tail = data
        else:
            self._tail = TailBuffer()
            self._tail.append(tail)
            self._tail.append(data)
        if self._sending:
            self._client.send_body(data)
            return
        self._first_byte_s = self._gateway.now_s()
        self._send_head(data)
        assert self._answer_head is not None
        if len(data) != self._answer_head[2]:
            # It is sent to nobody any more, and a long answer must not keep a long prompt.
            self._request = msgspec.structs.replace(self._request, body=b"", headers=())
            self.prefill_ended()

    def upstream_end(self) -> None:
        """The answer is complete: learn from it."""
        if not self._sending:
            self._first_byte_s = self._gateway.now_s()
            self._send_head(b"")
        assert self._answer_head is not None
        status = self._answer_head[0]
        gateway, local, attempt = self._gateway, self._local, self._attempt
        assert local is not None
        assert attempt is not None
        now_us = gateway.clock.now_us()
        if status < 500:
            gateway.registry.circuits.succeeded(local, now_us, attempt.placed_us)
        else:
            gateway.registry.failed(local, _answered(status), now_us, attempt.placed_us)
        if status < 400:
            self._release(abandoned=False, prefilled_us=now_us)
        else:
            self._release(abandoned=True)  # an error is no sign that anything was computed
        self._finish("completed" if status < 400 else "worker_error", status)
        self._client.finish()
        if status < 400:
            usage = self._learn(now_us)  # last: whatever it makes of the answer, the request is counted out
            if gateway.tracer is not None:
                self._trace(gateway.tracer, "completed", status, usage)

    def upstream_failed(self, error: Exception) -> None:
        """Redispatch if the client has seen nothing yet, else end its answer with the error."""
        assert isinstance(error, UpstreamError)
        if self._sending:
            self._worker_failed(error)
            self._release(abandoned=False)
            self._break_stream(error)
        elif not self._redispatched(error, None):
            self._fail(error)

    # From the gateway.

    def prefill_ended(self) -> None:
        """The prefill is over: the answer began, or was predicted to."""
        if not self._prefilled and not self._released:
            self._prefilled = True
            assert self._attempt is not None
            self._gateway.publish(FirstToken(self._attempt.request_id, self._gateway.clock.now_us()))
            if self._gateway.fleet.relieved:
                self._gateway.room.changed()

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
        if self._released or self._placed is None or self._placed.at_us > left_us:
            return
        self._placed = msgspec.structs.replace(self._placed, at_us=now_us, paths=())
        self._gateway.publish(self._placed)
        if self._prefilled:
            self._gateway.publish(FirstToken(self._placed.request_id, now_us))

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
        self._wait_s += self._gateway.now_s() - self._waits_since_s
        try:
            self._send(decision)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())

    def refused(self, error: RouterError) -> None:
        """It waited for nothing."""
        self._ticket_id = ""
        self._wait_s += self._gateway.now_s() - self._waits_since_s
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
            left_s = timeout_s - (gateway.now_s() - self._request.received_s)
            self._deadline_timer = gateway.loop.call_later(left_s, self._deadline_passed)

    def _begin_dispatch(self, parsed: ParsedRequest, noted: Sequence[Header]) -> None:
        """The request is understood: dispatch it for the first time.

        Raises:
            RouterError: As `_dispatch` does, or if a header has no meaning.
        """
        self._parsed = parsed
        self._flow = self._gateway.flow_of(parsed, self._tenant, noted)
        limiter, tenant = self._gateway.limiter, self._tenant
        if limiter is None or tenant.limits.unlimited:
            self._dispatch()
            return
        tokens = self._gateway.expected_tokens(parsed)
        self._charge = charge = limiter.admit(tenant, tokens, self._charged)
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

    def _settle(self, outcome: str, usage: Usage | None = None) -> None:
        """Count what the request really used of its tenant's tokens, as far as that is known.

        What a worker failed to answer used none; whoever leaves, or sets a deadline that is too short, has
        used the prompt, and as many tokens as pieces came.
        """
        limiter, charge, attempt = self._gateway.limiter, self._charge, self._attempt
        assert limiter is not None
        assert charge is not None
        if attempt is None:
            limiter.withdraw(charge)
            return
        tokens = 0
        if usage is not None:
            output_tokens = usage.completion_tokens
            tokens = usage.prompt_tokens + (self._pieces if output_tokens is None else output_tokens)
        elif outcome == "completed":
            tokens = charge.tokens
        elif outcome != "worker_error" and (self._first_byte_s or outcome in _CLIENTS_DOING):
            tokens = round(attempt.chosen.safe_tokens + attempt.chosen.uncached_tokens) + self._pieces
        limiter.settle(charge, tokens)

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
        gateway, parsed = self._gateway, self._parsed
        assert parsed is not None
        registry, now_s = gateway.registry, gateway.now_s()
        now_us = gateway.clock.now_us()
        lengths_matter = gateway.fleet.buckets.lengths is not None
        bucket = gateway.decider.bucket_of(parsed) if lengths_matter else ANY_BUCKET
        slots = every = registry.eligible(parsed.model, now_us, bucket)
        if self._tried:
            fresh = slots[~np.isin(slots, self._tried)]
            slots = fresh if len(fresh) else slots
        if not len(slots):
            raise gateway.nobody_for(parsed.model, bucket)
        if self._tenant.salt:
            slots = self._keeping_apart(slots)
        slots = registry.ramped(slots, parsed.key, now_us)
        claim = None
        if parsed.paths:  # what has no prompt takes no worker's time worth waiting for
            if not self._arrived_us:
                self._arrived_us = now_us - int((now_s - self._request.received_s) * 1e6)
            lane = lane_of(parsed.model, bucket)
            claim = Claim(
                self._arrived_us, lane, self._flow, ticket_id, turn, slots is not every, self._attempts > 0
            )
        return gateway.decider.decide(parsed, gateway.profile_of(parsed.model), slots, now_us, now_s, claim)

    def _keeping_apart(self, slots: Slots) -> Slots:
        """Of some workers, those whose engines hear the tenant's salt.

        Raises:
            ClientError: If none does: a cache shared in silence is not what the tenant asked for.
        """
        assert self._parsed is not None
        endpoint = self._parsed.endpoint
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
        gateway.room.enter(self, hold, deadline_us, again=self._attempts > 0)
        self._ticket_id = hold.waiting.request_id
        self._waits_since_s = gateway.now_s()

    def _send(self, decision: Decision) -> None:
        """Reserve, and send to the chosen worker."""
        gateway, parsed, attempt = self._gateway, self._parsed, decision.attempt
        assert parsed is not None
        chosen = attempt.chosen
        self._local = local = gateway.registry.at_slot(chosen.slot)
        self._attempts += 1
        self._attempt, self._placed = attempt, decision.placed
        gateway.registry.circuits.dispatched(local, attempt.placed_us)
        gateway.publish(decision.placed)
        gateway.at_workers(1)
        self._released = False
        self._prefilled = False
        self._answer_head = None
        self._tail = None
        decision_s = gateway.now_s() - attempt.started_s
        gateway.metrics.decided(gateway.decider.policy.name, chosen.reason, decision_s)
        if not parsed.stream:
            # The first byte of such an answer comes after the decode: the prefill is over when predicted.
            ends_s = attempt.started_s + chosen.estimated_ttft_s
            gateway.prefill_ends.expect(attempt.request_id, self, ends_s)
        self._upstream = local.pool.send(
            method=self._request.method,
            path=self._request.path,
            query=self._request.query,
            lines=self._worker_lines(),
            body=self._salted_body(parsed) if self._tenant.salt else (self._request.body,),
            sink=self,
            patient=not parsed.stream,
        )

    def _redispatched(self, error: UpstreamError, status: int | None) -> bool:
        """Try again, if the rule allows; True if that has taken over.

        Another worker is asked at once. If all that may serve it have failed, an answer of the last one
        passes through, and a worker that gave no answer is asked again after a pause: its
        trouble may have been the moment's.
        """
        gateway, local, parsed = self._gateway, self._local, self._parsed
        assert local is not None
        assert parsed is not None
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
                attempts=self._attempts,
                age_s=now_s - self._request.received_s,
                now_s=now_s,
            )
        if status is None or (status >= 500 and not isinstance(verdict, GiveUp)):
            self._worker_failed(error)
        elif not isinstance(verdict, GiveUp):
            assert self._attempt is not None
            gateway.registry.circuits.succeeded(local, now_us, self._attempt.placed_us)  # busy, not broken
        if isinstance(verdict, GiveUp):
            return False  # a status that may not be retried passes through, and counts when it ends
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        self._release(abandoned=True)
        self._tried.append(local.worker.slot)
        gateway.metrics.redispatched(error.code)
        logger.info(
            "request redispatched",
            extra={
                "event": "request.redispatched",
                "request_id": self._request_id.decode("latin-1"),
                "worker_id": local.worker.worker_id,
                "reason": error.code,
                "detail": error.message,
                "attempts": self._attempts,
            },
        )
        if others:
            self._dispatch_again(error)
        else:
            pause_s = PAUSE_S * 2 ** (self._attempts - 1)
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

    def _worker_failed(self, error: UpstreamError) -> None:
        local, attempt = self._local, self._attempt
        assert local is not None
        assert attempt is not None
        self._gateway.registry.failed(local, error, self._gateway.clock.now_us(), attempt.placed_us)
        self._gateway.metrics.upstream_failed(local.worker.worker_id, error.code)

    def _release(self, *, abandoned: bool, prefilled_us: int = 0) -> None:
        """Release this attempt's reservation, once.

        Args:
            abandoned: Whether it is to be doubted that the worker computed anything.
            prefilled_us: Log time of the first token, if that is known and may not have been said.
        """
        if self._released:
            return
        self._released = True
        assert self._attempt is not None
        assert self._parsed is not None
        assert self._local is not None
        gateway, request_id = self._gateway, self._attempt.request_id
        gateway.at_workers(-1)
        if not self._parsed.stream:
            gateway.prefill_ends.forget(request_id)
        now_us = gateway.clock.now_us()
        gateway.publish(Finished(request_id, now_us, 0 if self._prefilled else prefilled_us))
        if gateway.fleet.relieved:
            gateway.room.changed()
        gateway.registry.circuits.released(self._local, now_us, self._attempt.placed_us)
        if abandoned:
            gateway.feedback.abandoned(self._parsed, self._attempt)

    def _learn(self, now_us: int) -> Usage | None:
        gateway, parsed, attempt = self._gateway, self._parsed, self._attempt
        assert parsed is not None
        assert attempt is not None
        assert self._endpoint is not None
        usage = find_usage(self._endpoint, self._tail or b"")
        if self._charge is not None:
            self._settle("completed", usage)
        if usage is not None:
            usage = gateway.feedback.understood(attempt.worker_id, usage)
        ttft_s = self._first_byte_s - attempt.started_s
        gateway.metrics.answered(
            parsed.stream,
            self._first_byte_s - self._request.received_s,
            ttft_s - attempt.chosen.estimated_ttft_s,
            gateway.now_s() - self._first_byte_s,
            self._pieces,
            attempt.chosen.safe_tokens,
            usage,
            self._tenant.name if self._tenant.configured else "",
        )
        if usage is not None:
            decode_s = gateway.now_s() - self._first_byte_s
            gateway.feedback.answered(
                parsed, attempt, usage, ttft_s if parsed.stream else None, now_us, decode_s
            )
        return usage

    def _send_head(self, body: bytes) -> None:
        assert self._answer_head is not None
        status, lines, length = self._answer_head
        self._sending = True
        self._client.send_head(status, lines + self._own_lines(), length=length, body=body)

    def _own_lines(self) -> bytes:
        """What every answer of ours says, in place of the worker's headers of these names."""
        attempt = self._attempt
        lines = b"x-request-id: %b\r\nx-cacheway-worker: %b\r\nx-cacheway-cached-tokens: %d\r\n" % (
            self._request_id,
            attempt.worker_id.encode() if attempt else b"none",
            attempt.chosen.safe_tokens if attempt else 0,
        )
        if self._charge is None:
            return lines
        assert self._gateway.limiter is not None
        return lines + self._gateway.limiter.lines(self._charge)

    def _worker_lines(self) -> bytes:
        gateway, request = self._gateway, self._request
        allowed = FORWARDED_HEADERS if gateway.forwards_authorization else FORWARDED_WITHOUT_KEY
        lines = lines_of(request.headers, allowed, request.hop_names)
        if gateway.worker_authorization is not None:
            lines += b"authorization: %b\r\n" % gateway.worker_authorization
        return b"%bx-request-id: %b\r\n" % (lines, self._request_id)

    def _salted_body(self, parsed: ParsedRequest) -> Sequence[bytes | memoryview]:
        """The body with the salt that keeps the tenant's cache apart."""
        if not takes_salt(parsed.endpoint):
            return (self._request.body,)
        return salted(parsed.endpoint, self._request.body, self._tenant.salt, parsed.salt_span)

    def _fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""
        if self._done:
            return
        self._release(abandoned=True)
        self._sending = True
        body = error_body(error)
        lines = b"content-type: application/json\r\n" + self._own_lines()
        if error.status in (429, 503):
            lines += b"retry-after: %b\r\n" % retry_after(getattr(error, "retry_after_s", 1.0))
        if isinstance(error, Overloaded):
            self._gateway.refusals.add(error.code, self._flow, error.retry_after_s)
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
            assert self._endpoint is not None
            self._client.send_body(error_event(self._endpoint, error))
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
            self._release(abandoned=False)
            self._break_stream(broken)
        else:
            self._fail(unanswered)

    def _finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count and log, once."""
        self._done = True
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        if self._parsing is not None:
            self._parsing.close()
            self._parsing = None
        self._upstream = None
        gateway, parsed, attempt = self._gateway, self._parsed, self._attempt
        gateway.exchanges.discard(self)
        if self._ticket_id:
            gateway.room.leave(self._ticket_id)
            self._ticket_id = ""
            self._wait_s += gateway.now_s() - self._waits_since_s
        duration_s = gateway.now_s() - self._request.received_s
        gateway.metrics.finished(
            self._endpoint,
            outcome,
            duration_s,
            self._request_bytes,
            self._bytes_sent,
            self._tenant.name if self._tenant.configured else "",
        )
        if outcome != "completed":  # else when the engine's counts are known
            if self._charge is not None:
                self._settle(outcome)
            if gateway.tracer is not None:
                self._trace(gateway.tracer, outcome, status)
        if not gateway.request_logs:
            return
        fields = {
            "event": "request.finished",
            "request_id": self._request_id.decode("latin-1"),
            "endpoint": self._endpoint or self._request.path.decode("latin-1")[:200],
            "client": self._request.client,
            "status": status,
            "outcome": outcome,
            "duration_s": _microseconds(duration_s),
            "request_bytes": self._request_bytes,
            "answer_bytes": self._bytes_sent,
            "attempts": self._attempts,
        }
        if self._tenant.name:
            fields["tenant"] = self._tenant.name
        if parsed is not None:
            fields["model"] = parsed.model
            fields["stream"] = parsed.stream
        if attempt is not None:
            fields["worker_id"] = attempt.worker_id
            fields["reason"] = attempt.chosen.reason
            fields["cached_tokens"] = attempt.chosen.safe_tokens
            fields["uncached_tokens"] = attempt.chosen.uncached_tokens
            fields["estimated_ttft_s"] = _microseconds(attempt.chosen.estimated_ttft_s)
            if self._first_byte_s:
                fields["ttft_s"] = _microseconds(self._first_byte_s - self._request.received_s)
        if self._waits_since_s:
            fields["flow"] = self._flow
            fields["wait_s"] = _microseconds(self._wait_s)
        if error is not None:
            fields["detail"] = error.message
        gateway.request_log(fields)

    def _trace(self, tracer: Tracer, outcome: str, status: int, usage: Usage | None = None) -> None:
        """Note the request for replay, if it had a prompt."""
        parsed = self._parsed
        if parsed is None or not parsed.paths:
            return
        received_s = self._request.received_s
        tracer.ended(
            parsed,
            self._attempt,
            usage,
            outcome=outcome,
            status=status,
            duration_s=self._gateway.now_s() - received_s,
            ttft_s=self._first_byte_s - received_s if self._first_byte_s else None,
            pieces=self._pieces,
            attempts=self._attempts,
        )


def crashed() -> RouterError:
    """Log the exception that is handled, a mistake of ours; and what the client is told of it."""
    logger.exception("request failed inside the gateway", extra={"event": "request.crashed"})
    return RouterError("The gateway failed to serve this request; its log says why.")


def _answered(status: int) -> UpstreamError:
    """What a worker's error status is as a failure."""
    return WorkerUnreachable(f"The worker answered {status}.", code=f"upstream_status_{status}")


def _microseconds(seconds: float) -> float:
    """Cut to whole microseconds, for the log; a third of what rounding costs."""
    return int(seconds * 1e6) / 1e6
