"""Takes one request to a worker, through the queue if need be, and elsewhere if that fails.

    dispatch ── choose ──> send ──fails, budget left──> dispatch, without the workers that failed it
                   └── no room ──> `RequestQueue` ──its turn──> decide afresh

All of it runs in callbacks of the event loop, without an await.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec

from policies import Decision, GiveUp, Queued, QueueRefusal, Redispatch, Shed, Unserved, redispatch
from router.errors import HandoverFailed, NoWorker, RouterError, UpstreamError, WorkerSilent
from router.fleet import LocalWorker
from router.gateway.answer import crashed, error_of, told
from router.gateway.attempt import WorkerAttempt
from router.gateway.blame import Blame, Failure
from router.gateway.choosing import choose, untried
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import NEXT, Phase
from router.gateway.record import RequestRecord
from router.metric_families import REDISPATCHES, REQUESTS_AT_FAULT

logger = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Pause before the only worker left is asked a second time; doubled each time after."""


class Sender(Protocol):
    """Sends to the chosen worker (`router.gateway.exchange.RequestExchange`)."""

    def send(self, decision: Decision, dispatcher: "Dispatcher") -> None:
        """Send to the chosen worker, and reserve."""

    def left(self) -> None:
        """Forget the attempt that failed; another follows."""

    def fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""


class Dispatcher(msgspec.Struct, eq=False):
    """Takes one request to a worker.

    ``tried`` has slots of workers that failed the request; ``ticket_id`` is empty unless it waits.
    """

    gateway: Gateway
    record: RequestRecord
    parsed: ParsedRequest
    sender: Sender
    tried: list[int] = msgspec.field(default_factory=list)
    blame: Blame | None = None
    ticket_id: str = ""
    pause_timer: asyncio.TimerHandle | None = None

    def dispatch(self) -> None:
        """Choose a worker, and send or wait.

        Raises `NoWorker` if no worker may take it now, `ClientError` if none ever could, and
        `RequestRejected` if it had to wait and the queue is full.
        """
        gateway = self.gateway
        outcome = choose(gateway, gateway.placing.decider, self.record, self.parsed, self.tried)
        if isinstance(outcome, Decision):
            self.sender.send(outcome, self)
        elif isinstance(outcome, Queued):
            self._wait(outcome)
        else:
            raise error_of(outcome)

    def renew(self, left_us: int, now_us: int) -> None:
        """Publish the ticket again if the request waits; see `RequestExchange.renew`."""
        if self.ticket_id:
            self.gateway.placing.room.republish(self.ticket_id, left_us, now_us)

    def end(self) -> None:
        """Stop waiting: the request has ended."""
        if self.pause_timer is not None:
            self.pause_timer.cancel()
        if self.ticket_id:
            self.gateway.placing.room.leave(self.ticket_id)
            self.ticket_id = ""
            self.record.waited()

    # From the queue (`policies.RequestQueue`).

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed | Unserved:
        """Choose a worker, and find out whether it is this request's turn there."""
        try:
            decider = self.gateway.placing.decider
            return choose(self.gateway, decider, self.record, self.parsed, self.tried, ticket_id, turn)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return Unserved(told(error))

    def dispatched(self, decision: Decision) -> None:
        """Send: it is this request's turn."""
        self.ticket_id = ""
        self.record.waited()
        try:
            self.sender.send(decision, self)
        except Exception:  # noqa: BLE001 - the top of a request
            self.sender.fail(crashed())

    def refused(self, refusal: QueueRefusal) -> None:
        """Fail: the queue gave the request up."""
        record = self.record
        self.ticket_id = ""
        record.waited()
        record.phase = NEXT[record.phase][Phase.BETWEEN]
        self.sender.fail(error_of(refusal))

    # Inside.

    def _wait(self, queued: Queued) -> None:
        gateway, record = self.gateway, self.record
        deadline_us = record.arrived_us + round(record.timeout_s * 1e6) if record.timeout_s else None
        full = gateway.placing.room.begin(self, queued, deadline_us, again=record.attempts > 0)
        if full is not None:
            raise error_of(full)
        self.ticket_id = queued.waiting.request_id
        record.phase = NEXT[record.phase][Phase.QUEUED]
        record.waits_since_s = gateway.now_s()

    def redispatched(self, attempt: WorkerAttempt, error: UpstreamError, status: int | None) -> bool:
        """Make another attempt if the rule allows; True if one has taken over.

        Another worker is asked at once, on this side of a link if the attempt failed across it. If all
        workers have failed, an error answer of the last one passes through, and a worker that gave no answer
        is asked again after a pause: its trouble may have been brief.
        """
        gateway, record, reservation = self.gateway, self.record, attempt.reservation
        local = reservation.local
        now_us = gateway.log.now_us()
        avoided = reservation.avoided
        others = self._others(avoided, now_us)
        fewer = () if others or record.pair is None else record.pair.avoided_at_least(error)
        if fewer:
            avoided = list(fewer)
            others = self._others(avoided, now_us)
        verdict: Redispatch | GiveUp = GiveUp("no_other_worker")
        broke_off = status is None and error.asked and not isinstance(error, WorkerSilent | HandoverFailed)
        if broke_off and self._blamed().broke_off(local):
            avoided = [
                slot
                for each in gateway.registry.all()
                if each.worker.role == local.worker.role
                for slot in each.slots
            ]
            others = self._others(avoided, now_us)
            verdict = self._verdict(status) if others else GiveUp("workers_broke_off")
        elif others or status is None:
            verdict = self._verdict(status)
        if status is None or (status >= 500 and not isinstance(verdict, GiveUp)):
            self.failed_at(reservation.worker_failed(error), last=isinstance(verdict, GiveUp))
        elif not isinstance(verdict, GiveUp):  # busy, not broken
            gateway.registry.circuits.succeeded(local, now_us, reservation.attempt.placed_us)
        if isinstance(verdict, GiveUp):
            return False  # a status that may not be retried passes through, and counts when it ends
        self.abandon(attempt, local, avoided, error)
        if others:
            self.dispatch_again(error)
        else:
            pause_s = PAUSE_S * 2 ** (record.attempts - 1)
            self.pause_timer = gateway.loop.call_later(pause_s, partial(self.dispatch_again, error))
        return True

    def may_leave(self, avoided: Sequence[int]) -> bool:
        """True if another worker is left, and the rule allows another attempt; that is then paid for."""
        others = self._others(avoided, self.gateway.log.now_us())
        return others and isinstance(self._verdict(None), Redispatch)

    def leave(
        self, attempt: WorkerAttempt, local: LocalWorker, avoided: Sequence[int], error: UpstreamError
    ) -> None:
        """Give an attempt up that could still succeed, and make another one."""
        self.abandon(attempt, local, avoided, error)
        self.dispatch_again(error)

    def _others(self, avoided: Sequence[int], now_us: int) -> bool:
        """Return True if a worker is left that was not tried and is not to be avoided."""
        gateway, parsed = self.gateway, self.parsed
        length = gateway.placing.decider.length_of(parsed)
        eligible = gateway.registry.eligible(parsed.model, now_us, length)
        pairing = gateway.registry.pairing(eligible, parsed.model, now_us, length)
        if pairing is not None and gateway.pairs is not None:
            try:
                eligible, pairing = gateway.pairs.splitting(eligible, pairing, parsed)
            except NoWorker:
                return False
        return untried(eligible, pairing, (*self.tried, *avoided))[2]

    def failed_at(self, failures: Sequence[Failure], *, last: bool) -> None:
        """Find out whether the worker or the request is at fault (`router.gateway.blame`).

        A second failure of one attempt is the partner's part in it. ``last``: no other attempt follows.
        """
        gateway, now_us, blame = self.gateway, self.gateway.log.now_us(), self._blamed()
        first, *others = failures
        if blame.failed(first, now_us, last=last):
            gateway.metrics.sums[REQUESTS_AT_FAULT].add(1)
        if not blame.repeated:
            for other in others:
                gateway.registry.circuits.failed(other.local, now_us, other.sent_us, other.code)

    def answers_well(self) -> None:
        """Blame the workers that failed before this one answered."""
        if self.blame is not None:
            self.blame.answered(self.gateway.log.now_us())

    def _blamed(self) -> Blame:
        if self.blame is None:
            self.blame = Blame(self.gateway.registry, self.record.request_id)
        return self.blame

    def _verdict(self, status: int | None) -> Redispatch | GiveUp:
        """Apply the redispatch rule to a failed attempt, and pay for a retry."""
        gateway, record, now_s = self.gateway, self.record, self.gateway.now_s()
        return redispatch(
            gateway.sending.retry_budget,
            status=status,
            attempts=record.attempts,
            age_s=now_s - record.received_s,
            timeout_s=gateway.sending.exchanges.timeout_s,
            now_s=now_s,
        )

    def abandon(
        self, attempt: WorkerAttempt, local: LocalWorker, avoided: Sequence[int], error: UpstreamError
    ) -> None:
        """Give an attempt up, and avoid some workers from now on."""
        record = self.record
        attempt.abort()
        attempt.reservation.release(abandoned=True)
        record.phase = NEXT[record.phase][Phase.BETWEEN]
        self.sender.left()
        self.tried += avoided
        if record.spans is not None:
            record.spans.left(error.code, self.gateway.now_s())
        self.gateway.metrics.counts[REDISPATCHES].add((error.code,))
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

    def dispatch_again(self, error: UpstreamError) -> None:
        """Make the next attempt; if no worker is left, report the last failure, which tells more."""
        self.pause_timer = None
        try:
            self.dispatch()
        except RouterError:
            self.sender.fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self.sender.fail(crashed())
