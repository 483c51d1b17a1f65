"""Gives up legs of workers that have stalled, long before a timeout sized for any prompt.

    prefill   sent ──────────────> its answer       due: queue + prefill + transfer
    decode    prefill leg over ──> first byte       due: wait for room, until a request ends there + transfer
                                                         (+ prefill, where missing KV is computed again)
              the same, whole ───> first byte       due: that + all tokens that the answer may have

The limit is ``factor`` times the prediction, and ``floor_s``. A late leg has not failed yet, since the
prompts before it may be longer than predicted. So the *worker* is judged by its progress at all replicas: it
has stalled without progress for as long.

* A prefill worker: its oldest prefill must be late, too, counted from the end of any other
  (`policies.state.loads.Head`).
* A decode worker: no KV has arrived there, and no answer of this replica begun or ended.
* Where both legs go at once the prefill leg also waits for the decode worker, which has stalled if the
  prefill worker makes progress but leaves out its oldest prefill.

Only sound predictions count: this replica must have fitted the cost model of the prefill worker's class, with
prompts not much shorter; and they assume an empty cache, since a worker may have lost its own. Other legs,
and requests at one worker, keep the timeouts of their connections: there a prefill may wait for minutes until
others have decoded, and an answer that is not streamed hides the end of its prefill. One look twice a second
covers all legs older than the floor.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

import msgspec

from policies import HAND_OVERS, Attempt, Feedback, FleetState, Placed, Shipping, Worker
from router.errors import WorkerSilent
from router.fleet import LocalWorker
from router.gateway.parsing import ParsedRequest
from router.handover import Leg, PairedRequest
from router.settings import ReliabilitySettings

LOOK_S = 0.5
"""Between two looks."""


class WatchedPair(Protocol):
    """A pair, as `router.pairs.pair_reservation.PairReservation` has it."""

    parsed: ParsedRequest
    prefill: LocalWorker
    decode: LocalWorker
    attempt: Attempt
    decode_attempt: Attempt
    placed: Placed
    shipping: Shipping | None
    request: PairedRequest | None

    @property
    def prefilled(self) -> bool:
        """True after the prefill leg."""

    @property
    def released(self) -> bool:
        """True if nothing is reserved."""


class _Watched(msgspec.Struct, eq=False):
    """A leg that is waited for; ``oldest_s``: first seen as the oldest prefill of its worker, or 0."""

    pair: WatchedPair
    since_s: float
    limit_s: float
    oldest_s: float = 0.0


class StallDetector:
    """The legs of this replica that are waited for. New ``rules`` apply to legs sent from then on."""

    def __init__(
        self,
        fleet: FleetState,
        feedback: Feedback,
        rules: ReliabilitySettings,
        *,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._feedback = feedback
        self.rules = rules
        self._loop = loop
        self._now_s = now_s
        self._now_us = now_us
        self._watched: dict[str, _Watched] = {}  # by decode attempt, the longest wait first
        self._answered_us: dict[int, int] = {}  # by slot of a decode worker
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of legs that are waited for."""
        return len(self._watched)

    # From reservations.

    def prefilling(self, pair: WatchedPair) -> None:
        """Wait for the prefill leg of a request that was sent."""
        chosen = pair.attempt.chosen
        self._wait(pair, chosen.queue_s + self._prefill_s(pair) + _transfer_s(pair))

    def decoding(self, pair: WatchedPair) -> None:
        """Wait for the decode leg of a request: its prefill leg is over."""
        parsed, chosen = pair.parsed, pair.decode_attempt.chosen
        loads, fit = self._fleet.loads, self._feedback.learn_decodes(pair.decode.worker.worker_class)
        prefill_s = self._prefill_s(pair)
        predicted_s = chosen.queue_s + _transfer_s(pair)
        running = loads.inflight_requests.item(chosen.slot) - loads.prefill_requests.item(chosen.slot)
        if running:  # its engine may have no room before one of them ends
            predicted_s += fit.decode_s / running
        if HAND_OVERS[pair.prefill.protocol].prefills or prefill_s == inf:
            predicted_s += prefill_s
        if not parsed.stream:
            bounded = parsed.output_tokens_max is not None and fit.known
            predicted_s += (parsed.output_tokens_max or 0) * chosen.tpot_s if bounded else inf
        self._wait(pair, predicted_s)

    def answered(self, pair: WatchedPair) -> None:
        """Stop waiting: the answer began, or is complete."""
        self._answered_us[pair.decode_attempt.chosen.slot] = self._now_us()
        self.forget(pair)

    def forget(self, pair: WatchedPair) -> None:
        """Stop waiting: the request is over."""
        self._watched.pop(pair.decode_attempt.request_id, None)

    # Inside.

    def _wait(self, pair: WatchedPair, predicted_s: float) -> None:
        self.forget(pair)
        if not self.rules.stall_factor or predicted_s == inf:
            return
        limit_s = self._limit_s(predicted_s)
        self._watched[pair.decode_attempt.request_id] = _Watched(pair, self._now_s(), limit_s)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s, now_us = self._now_s(), self._now_us()
        late: list[_Watched] = []
        for watched in self._watched.values():
            waits_s = now_s - watched.since_s
            if waits_s < self.rules.stall_floor_s:
                break
            if waits_s >= watched.limit_s:
                late.append(watched)
        for watched in late:
            if not watched.pair.released:  # by the give-up of an earlier leg
                self._judge(watched, now_s, now_us)
        if self._watched and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _judge(self, watched: _Watched, now_s: float, now_us: int) -> None:
        pair, limit_s = watched.pair, watched.limit_s
        decode_stalled = now_us - self._decode_progress_us(pair.decode_attempt.chosen.slot) >= limit_s * 1e6
        if pair.prefilled:
            if decode_stalled:
                self._give_up(pair, Leg.DECODE, limit_s)
            return
        head = self._fleet.loads.head(pair.attempt.chosen.slot, now_us)
        if head is None:
            return
        head_s = self._scratch_s(pair.prefill.worker, head.context_tokens)
        if head.elapsed_s >= self._limit_s(head_s + _transfer_s(pair)):
            self._give_up(pair, Leg.PREFILL, limit_s)
        elif head.request_id == pair.attempt.request_id and HAND_OVERS[pair.prefill.protocol].concurrent:
            watched.oldest_s = watched.oldest_s or now_s
            if decode_stalled and now_s - watched.oldest_s >= limit_s:
                self._give_up(pair, Leg.DECODE, limit_s)

    def _give_up(self, pair: WatchedPair, leg: Leg, limit_s: float) -> None:
        local = pair.prefill if leg is Leg.PREFILL else pair.decode
        message = f"The {leg} worker {local.worker.worker_id} made no progress for {limit_s:.3g} s."
        if pair.request is not None:
            pair.request.fail_leg(leg, WorkerSilent(message, code=f"{leg}_stalled"))

    def _decode_progress_us(self, slot: int) -> int:
        return max(self._fleet.loads.prefilled_us(slot), self._answered_us.get(slot, 0))

    def _limit_s(self, predicted_s: float) -> float:
        return self.rules.stall_factor * predicted_s + self.rules.stall_floor_s

    def _prefill_s(self, pair: WatchedPair) -> float:
        return self._scratch_s(pair.prefill.worker, pair.placed.context_tokens)

    def _scratch_s(self, worker: Worker, tokens: int) -> float:
        """Return the time of a prefill without cached tokens; +inf if that is not known well enough."""
        if not self._feedback.knows_prefills(worker.worker_class, tokens):
            return inf
        return self._fleet.model_at(worker.slot).service_s(tokens, 0.0)


def _transfer_s(pair: WatchedPair) -> float:
    crossing_s = 0.0
    if pair.shipping is not None:
        crossing_s = (pair.shipping.end_us - pair.shipping.at_us) / 1e6
    return max(pair.attempt.chosen.transfer_s, pair.decode_attempt.chosen.transfer_s, crossing_s)
