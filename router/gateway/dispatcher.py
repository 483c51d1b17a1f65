"""One request on its way to whoever serves it: chosen, waited for, sent, and sent elsewhere if that failed.

    dispatch ── choose ──> send ──fails, budget left──> dispatch, without those who failed it
                   └── no room ──> `RequestQueue` ──its turn──> decide afresh

All of it runs in callbacks of the event loop, without an await.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol, assert_never

import msgspec

from policies import Decision, GiveUp, Queued, QueueRefusal, Redispatch, Shed, Unserved, redispatch
from router.errors import (
    HandoverFailed,
    NoWorker,
    RouterError,
    TransferFailed,
    UpstreamError,
    WorkerSilent,
)
from router.fleet import LocalWorker
from router.gateway.answer import crashed
from router.gateway.attempt import PairAttempt, WorkerAttempt
from router.gateway.blame import Blame, Failure
from router.gateway.choosing import choose
from router.gateway.gateway import Gateway
from router.gateway.options import splitting, untried
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import NEXT, Step
from router.gateway.queue_errors import error_of
from router.gateway.record import RequestRecord
from router.metric_families import REDISPATCHES, REQUESTS_AT_FAULT

logger = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Before the only worker left is asked a second time; doubled each time after."""


class Sender(Protocol):
    """Who sends what is decided (`router.gateway.exchange.RequestExchange`)."""

    def send(self, decision: Decision, parsed: ParsedRequest) -> None:
        """Reserve, and send to whom was chosen."""

    def left(self) -> None:
        """The attempt has failed and is let go of; another follows."""

    def fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""


class Dispatcher(msgspec.Struct, eq=False):
    """Takes a request that is understood to a worker, and to another one if that failed.

    Attributes:
        gateway: What all requests share.
        record: What is known of the request.
        parsed: The request.
        sender: Sends it.
        timeout_s: How long its client waits for the answer; 0 if it did not say.
        tried: Slots of workers that failed it.
        blame: What is known of the attempts that failed; None before the first.
        ticket_id: Its ticket while it waits; empty else.
        pause_timer: Ends the pause before the next attempt.
    """

    gateway: Gateway
    record: RequestRecord
    parsed: ParsedRequest
    sender: Sender
    timeout_s: float
    tried: list[int] = msgspec.field(default_factory=list)
    blame: Blame | None = None
    ticket_id: str = ""
    pause_timer: asyncio.TimerHandle | None = None

    def dispatch(self) -> None:
        """Choose a worker, and go there or wait.

        Raises:
            NoWorker: If nobody may take it.
            ClientError: If nobody ever could.
            RequestRejected: If it had to wait, and too many wait already.
        """
        gateway = self.gateway
        match choose(gateway, gateway.placing.decider, self.record, self.parsed, self.tried):
            case Decision() as decision:
                self.sender.send(decision, self.parsed)
            case Queued() as queued:
                self._wait(queued)
            case Shed() as shed:
                raise error_of(shed)
            case never:
                assert_never(never)

    def renew(self, left_us: int, now_us: int) -> None:
        """This replica was given up although it lives: say again that the request waits, if it does.

        Args:
            left_us: Log time up to which its tickets were dropped.
            now_us: Log time, later than that.
        """
        if self.ticket_id:
            self.gateway.placing.room.republish(self.ticket_id, left_us, now_us)

    def end(self) -> None:
        """The request has ended: wait for nothing more."""
        if self.pause_timer is not None:
            self.pause_timer.cancel()
        if self.ticket_id:
            self.gateway.placing.room.leave(self.ticket_id)
            self.ticket_id = ""
            self.record.waited()

    # From the waiting room (`policies.RequestQueue`).

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed | Unserved:
        """Choose a worker, and see whether it is this request's turn there."""
        try:
            decider = self.gateway.placing.decider
            return choose(self.gateway, decider, self.record, self.parsed, self.tried, ticket_id, turn)
        except RouterError as error:
            return Unserved(error)
        except Exception:  # noqa: BLE001 - the top of a request
            return Unserved(crashed())

    def dispatched(self, decision: Decision) -> None:
        """It is this request's turn: go."""
        self.ticket_id = ""
        self.record.waited()
        try:
            self.sender.send(decision, self.parsed)
        except Exception:  # noqa: BLE001 - the top of a request
            self.sender.fail(crashed())

    def refused(self, refusal: QueueRefusal) -> None:
        """It waited for nothing."""
        record = self.record
        self.ticket_id = ""
        record.waited()
        record.phase = NEXT[record.phase][Step.FAIL]
        self.sender.fail(error_of(refusal))

    # Inside.

    def _wait(self, queued: Queued) -> None:
        """Wait for a worker that has room.

        Raises:
            RequestRejected: If too many wait already.
        """
        gateway, record = self.gateway, self.record
        deadline_us = record.arrived_us + round(self.timeout_s * 1e6) if self.timeout_s else None
        full = gateway.placing.room.begin(self, queued, deadline_us, again=record.attempts > 0)
        if full is not None:
            raise error_of(full)
        self.ticket_id = queued.waiting.request_id
        record.phase = NEXT[record.phase][Step.QUEUE]
        record.waits_since_s = gateway.now_s()

    def redispatched(self, attempt: WorkerAttempt, error: UpstreamError, status: int | None) -> bool:
        """Try again, if the rule allows; True if that has taken over.

        Another worker is asked at once, on this side of a link if it failed across it. If all that may serve
        it have failed, an answer of the last one passes through, and a worker that gave no answer is
        asked again after a pause: its trouble may have been the moment's.
        """
        gateway, record, reservation = self.gateway, self.record, attempt.reservation
        local = reservation.local
        now_us = gateway.log.now_us()
        avoided = reservation.avoided
        others = self._others(avoided, now_us)
        if not others and record.pair is not None and isinstance(error, TransferFailed):
            avoided = [record.pair.prefill.worker.slot]  # it may be the other side, too
            others = self._others(avoided, now_us)
        verdict: Redispatch | GiveUp = GiveUp("no_other_worker")
        broke_off = status is None and error.asked and not isinstance(error, WorkerSilent | HandoverFailed)
        if broke_off and self._blamed().broke_off(local):
            avoided = [
                each.worker.slot for each in gateway.registry.all() if each.worker.role == local.worker.role
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
        self._leave(attempt, local, avoided, error)
        if others:
            self._dispatch_again(error)
        else:
            pause_s = PAUSE_S * 2 ** (record.attempts - 1)
            self.pause_timer = gateway.loop.call_later(pause_s, partial(self._dispatch_again, error))
        return True

    def transfer_late(self, attempt: PairAttempt) -> None:
        """The KV of a pair is late on its link, and a prefill on this side now the sooner: go there.

        If nobody could do it there, or the rule does not allow another attempt, it may still arrive.
        """
        pair = attempt.pair
        if pair.arrived or pair.released or not self._others(pair.avoided, self.gateway.log.now_us()):
            return
        if isinstance(self._verdict(None), Redispatch):
            pair.transfer_late()
            error = HandoverFailed("The KV did not come over the link in time.", code="transfer_late")
            self._leave(attempt, pair.prefill, pair.avoided, error)
            self._dispatch_again(error)

    def _others(self, avoided: Sequence[int], now_us: int) -> bool:
        """Whether somebody else may serve it than those who were tried, and these."""
        gateway, parsed = self.gateway, self.parsed
        length = gateway.placing.decider.length_of(parsed)
        eligible = gateway.registry.eligible(parsed.model, now_us, length)
        pairing = gateway.registry.pairing(eligible, parsed.model, now_us, length)
        if pairing is not None:
            try:
                eligible, pairing = splitting(eligible, pairing, gateway.handovers, parsed)
            except NoWorker:
                return False
        return untried(eligible, pairing, (*self.tried, *avoided))[2]

    def failed_at(self, failures: Sequence[Failure], *, last: bool) -> None:
        """Find out whether the worker or the request is at fault (`router.gateway.blame`).

        Args:
            failures: Of one attempt: of two, the second is the other worker's part in the same failure.
            last: Whether no other attempt follows.
        """
        gateway, now_us, blame = self.gateway, self.gateway.log.now_us(), self._blamed()
        first, *others = failures
        if blame.failed(first, now_us, last=last):
            gateway.metrics.sums[REQUESTS_AT_FAULT].add(1)
        if not blame.repeated:
            for other in others:
                gateway.registry.circuits.failed(other.local, now_us, other.sent_us, other.code)

    def _blamed(self) -> Blame:
        """What is known of the attempts that failed so far."""
        if self.blame is None:
            self.blame = Blame(self.gateway.registry, self.record.request_id)
        return self.blame

    def _verdict(self, status: int | None) -> Redispatch | GiveUp:
        """Whether an attempt that failed may be made elsewhere; one that may is paid for."""
        gateway, record, now_s = self.gateway, self.record, self.gateway.now_s()
        return redispatch(
            gateway.sending.retry_budget,
            status=status,
            attempts=record.attempts,
            age_s=now_s - record.received_s,
            timeout_s=gateway.sending.exchanges.timeout_s,
            now_s=now_s,
        )

    def _leave(
        self, attempt: WorkerAttempt, local: LocalWorker, avoided: Sequence[int], error: UpstreamError
    ) -> None:
        """Let go of an attempt that failed at a worker, for another one elsewhere."""
        record = self.record
        attempt.abort()
        attempt.reservation.release(abandoned=True)
        record.phase = NEXT[record.phase][Step.FAIL]
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

    def _dispatch_again(self, error: UpstreamError) -> None:
        """Make the next attempt; if there is nobody to ask, the last failure says more than that."""
        self.pause_timer = None
        try:
            self.dispatch()
        except RouterError:
            self.sender.fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self.sender.fail(crashed())
