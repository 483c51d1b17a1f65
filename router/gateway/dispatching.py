"""One request on its way to whoever serves it: chosen, waited for, sent, and sent elsewhere if that failed.

    _dispatch ── decide ──> _send ──fails, budget left──> _dispatch, without those who failed it
                   └── no room ──> `WaitingRoom` ──its turn──> decide afresh

All of it runs in callbacks of the event loop: there is no await between looking at the fleet and reserving,
so nothing changes between look and choice.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

from policies import Claim, Decision, GiveUp, Hold, Redispatch, Shed, lane_of, redispatch
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
from router.gateway.blame import Blame, Failure
from router.gateway.options import keeping_apart, splitting, untried
from router.gateway.pair_reservation import PairReservation
from router.gateway.record import RequestRecord
from router.gateway.reservation import Reservation
from router.gateway.waiting_room import refusal_of
from router.proxy import UpstreamRequest

if TYPE_CHECKING:
    from router.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Before the only worker left is asked a second time; doubled each time after."""


class Dispatching(ABC):
    """The part of a `router.gateway.exchange.RequestExchange` that ends when its answer begins."""

    __slots__ = (
        "_arrived_us",
        "_blame",
        "_gateway",
        "_pause_timer",
        "_record",
        "_reservation",
        "_ticket_id",
        "_timeout_s",
        "_tried",
        "_upstream",
    )

    _arrived_us: int
    _blame: Blame | None
    _gateway: "Gateway"
    _pause_timer: asyncio.TimerHandle | None
    _record: RequestRecord
    _reservation: Reservation | PairReservation | None
    _ticket_id: str
    _timeout_s: float
    _tried: list[int]
    _upstream: UpstreamRequest | None

    @abstractmethod
    def _send(self, decision: Decision) -> None:
        """Reserve, and send to whom was chosen."""

    @abstractmethod
    def _fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""

    # From the gateway.

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
        pairing = None
        if registry.pairs.active:
            pairing = registry.pairing(every, parsed.model, now_us, bucket)
        if not len(slots):
            raise gateway.nobody_for(parsed.model, bucket)
        if pairing is not None:
            slots, pairing = splitting(slots, pairing, gateway.handovers, parsed)
        if self._tried:
            slots, pairing, _ = untried(slots, pairing, self._tried)
        if record.tenant.salt:
            slots = keeping_apart(registry, slots, parsed.endpoint)
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
        return gateway.decider.decide(parsed, profile, slots, now_us, now_s, claim, bucket, pairing)

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

    def _redispatched(self, error: UpstreamError, status: int | None) -> bool:
        """Try again, if the rule allows; True if that has taken over.

        Another worker is asked at once, on this side of a link if it failed across it. If all that may serve
        it have failed, an answer of the last one passes through, and a worker that gave no answer is
        asked again after a pause: its trouble may have been the moment's.
        """
        gateway, record, reservation = self._gateway, self._record, self._reservation
        assert reservation is not None
        local = reservation.local
        now_us = gateway.clock.now_us()
        avoided = [local.worker.slot] if record.pair is None else record.pair.avoided
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
            self._failed_at(reservation.worker_failed(error), last=isinstance(verdict, GiveUp))
        elif not isinstance(verdict, GiveUp):  # busy, not broken
            gateway.registry.circuits.succeeded(local, now_us, reservation.attempt.placed_us)
        if isinstance(verdict, GiveUp):
            return False  # a status that may not be retried passes through, and counts when it ends
        self._leave(local, avoided, error)
        if others:
            self._dispatch_again(error)
        else:
            pause_s = PAUSE_S * 2 ** (record.attempts - 1)
            self._pause_timer = gateway.loop.call_later(pause_s, partial(self._dispatch_again, error))
        return True

    def _transfer_late(self) -> None:
        """The KV of a pair is late on its link, and a prefill on this side now the sooner: go there.

        If nobody could do it there, or the rule does not allow another attempt, it may still arrive.
        """
        pair = self._record.pair
        assert pair is not None
        if pair.arrived or pair.released or not self._others(pair.avoided, self._gateway.clock.now_us()):
            return
        if isinstance(self._verdict(None), Redispatch):
            pair.transfer_late()
            error = HandoverFailed("The KV did not come over the link in time.", code="transfer_late")
            self._leave(pair.prefill, pair.avoided, error)
            self._dispatch_again(error)

    def _others(self, avoided: Sequence[int], now_us: int) -> bool:
        """Whether somebody else may serve it than those who were tried, and these."""
        gateway, parsed = self._gateway, self._record.parsed
        assert parsed is not None
        bucket = gateway.decider.bucket_of(parsed)
        eligible = gateway.registry.eligible(parsed.model, now_us, bucket)
        pairing = gateway.registry.pairing(eligible, parsed.model, now_us, bucket)
        if pairing is not None:
            try:
                eligible, pairing = splitting(eligible, pairing, gateway.handovers, parsed)
            except NoWorker:
                return False
        return untried(eligible, pairing, (*self._tried, *avoided))[2]

    def _failed_at(self, failures: Sequence[Failure], *, last: bool) -> None:
        """Find out whether the worker or the request is at fault (`router.gateway.blame`).

        Args:
            failures: Of one attempt: of two, the second is the other worker's part in the same failure.
            last: Whether no other attempt follows.
        """
        gateway, now_us, blame = self._gateway, self._gateway.clock.now_us(), self._blamed()
        first, *others = failures
        if blame.failed(first, now_us, last=last):
            gateway.metrics.request_at_fault()
        if not blame.repeated:
            for other in others:
                gateway.registry.circuits.failed(other.local, now_us, other.sent_us, other.code)

    def _blamed(self) -> Blame:
        """What is known of the attempts that failed so far."""
        if self._blame is None:
            self._blame = Blame(self._gateway.registry, self._record.request_id)
        return self._blame

    def _verdict(self, status: int | None) -> Redispatch | GiveUp:
        """Whether an attempt that failed may be made elsewhere; one that may is paid for."""
        gateway, record, now_s = self._gateway, self._record, self._gateway.now_s()
        return redispatch(
            gateway.redispatch_rules,
            gateway.retry_budget,
            status=status,
            attempts=record.attempts,
            age_s=now_s - record.received_s,
            now_s=now_s,
        )

    def _leave(self, local: LocalWorker, avoided: Sequence[int], error: UpstreamError) -> None:
        """Let go of an attempt that failed at a worker, for another one elsewhere."""
        record = self._record
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        assert self._reservation is not None
        self._reservation.release(abandoned=True)
        self._tried += avoided
        if record.spans is not None:
            record.spans.left(error.code, self._gateway.now_s())
        self._gateway.metrics.redispatched(error.code)
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
        self._pause_timer = None
        try:
            self._dispatch()
        except RouterError:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a request
            self._fail(crashed())
