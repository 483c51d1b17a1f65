"""The request queue: this replica's requests for which no worker has room, and when each goes on.

Waiting requests of all replicas are tickets in the log, in one order (`policies.state.waiting`). Each replica
moves only its own.

    begin ──Waiting──> waits ──its turn──> decides afresh ──> `dispatched` (its Placed ends the ticket)
      │                  ^                       └── not yet: Waiting again, if line or key have changed
      │                  ├── deadline, or an operator's request ──Finished──> `refused`: `Expired`
      │                  ├── another request has a better claim to the place ──Finished──> `Displaced`
      │                  ├── no worker serves it any more ──Finished──> `Unserved`, or a `Shed`
      │                  └── client leaves ──Finished──> (forgotten)
      └── too many wait already ──> `QueueFull`

**Looking.** A worker whose load fell is looked at soon (`changed`), all of them every `LOOK_S`, since a
backlog also drains with time. While a worker has room:

* The best ticket for it is ours: that request decides afresh, for the cache may have changed, and goes.
* There is none, and the worker is idle: the best ticket of its lanes. It goes if starting there is predicted
  cheaper than waiting; if not, it is offered no idle worker for ``ask_s``.
* It is another replica's. If that leaves the room unused for the grace time, the best of the remaining
  replicas is next, ours or not. The time begins again when a prefill there ends.

A request that declines (its worker is another now, or it waits for a leader) leaves the room to the next one.

**Decode workers.** A request that lacks only room to be decoded is *gated*: it waits for any worker of its
lane, and decides when decode workers are relieved. No smaller one passes it. An empty one takes any request.

**Links.** A request that waits for a link decides again after `WAITING_FOR_LINK_US`, and lets others pass.

**Asking again.** When a prompt is placed, requests that share more of its start than they had cached decide
again; so do, in each look, the few that decided longest ago. A look dispatches at most `MOVED_MAX` requests.
The owner brings clock and timers.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.declared import setting
from policies.dispatch.decision import Decision, Queued
from policies.dispatch.early_rejection import SLO_UNREACHABLE
from policies.dispatch.prompt_starts import PromptStarts
from policies.dispatch.queue_lanes import Lanes
from policies.fleet.admission import Admission
from policies.fleet.fleet import FleetState
from policies.pricing.views import Shed, Slots
from policies.state.ops import Finished, OpLog, OpRefused, Waiting
from policies.state.waiting_lines import Ticket

LOOK_S = 0.01
"""Seconds between looks at all workers: a worker with room still has many times that of target backlog."""

MOVED_MAX = 32
"""Requests that one look dispatches, some milliseconds of work."""

ASKED_MAX = 2
ASKED_S = 0.25
"""Requests asked again in one look, and least seconds until one is again: 200 a second, 2 % of a core."""

FOLLOWERS_MAX = 8
SHARING_MAX = 32
"""Requests that a look asks after placed prompts, and those considered per prompt, the longest shared start
first."""

CHANGE_MIN = 0.05
"""Relative change of predicted work worth publishing again: fits move by less all the time."""

BEYOND_MAX = 4
"""Requests of another side that an idle worker is offered to in one look."""

DECLINED_MAX = 64
"""Requests that may decline in one look, and idle workers in ``ask_s``; room that is left is offered again
later."""

WAITING_FOR_DECODE_MAX = 2
"""Gated requests of a lane that are asked in one look and do not go: the best one, as a rule, has to wait."""

ROUNDED = 1.0
"""Tokens by which a request may be shorter than its ticket, which rounds up."""

UNMOVED_MAX = 16
"""Workers without a taker after which a look ends (the next begins behind them): where decode workers are
lacking, most others have room all the time."""

LEFT_MAX = MOVED_MAX
"""Rooms of equal workers that one look leaves to other replicas: as many as one of those fills in a look."""

WAITING_FOR_LINK_US, WAITING_FOR_LINK_EACH_US = 20_000, 2_000
"""Microseconds until a request that waits for a link is asked again: the greater of the first, and the second
times those that wait so. 500 a second, a tenth of a core."""

GRACE_S, GRACE_LAGS = 0.05, 4.0
"""Seconds for which room is left to another replica's best request: at least the first, since its event loop
may be busy, and this many lags of the log. The worker has most of its target backlog to do meanwhile."""

SPARE = 1000
"""Deadlines of ended waits that are kept, beside as many as still wait."""

RETRY_AFTER_S_MAX = 600.0
"""Longest Retry-After: the load in ten minutes cannot be predicted."""


class WaitEnd(StrEnum):
    """End of a wait: a label of metrics."""

    DISPATCHED = "dispatched"
    EXPIRED = "expired"
    DISPLACED = "displaced"
    LEFT = "left"
    """Its client left, or this replica ended."""
    NO_WORKER = "no_worker"
    REJECTED = "rejected"
    """It was not let in, or would have missed a promise."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""


class QueueFull(msgspec.Struct, frozen=True, gc=False):
    """Too many requests and uncached tokens wait; in ``retry_after_s`` its lane will be empty."""

    requests: int
    tokens: int
    retry_after_s: float


class Displaced(msgspec.Struct, frozen=True, gc=False):
    """A request with a better claim took the place; in ``retry_after_s`` its lane will be empty."""

    retry_after_s: float


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The deadline of a wait passed after ``waited_s`` since the arrival, or an operator ended it."""

    waited_s: float
    by_operator: bool = False


class Unserved(msgspec.Struct, frozen=True):
    """No worker may take a request any more, as it found itself; ``error`` goes back to it."""

    error: Exception


class Unpublished(msgspec.Struct, frozen=True, gc=False):
    """The new ticket of a request cannot be published: our mistake (`policies.OpRefused`)."""


Refusal = QueueFull | Displaced | Expired | Unserved | Unpublished | Shed
"""Reasons for which a wait comes to nothing."""


class Waiter(Protocol):
    """A request that waits."""

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed | Unserved:
        """Decide afresh (`policies.dispatch.request.DecisionInput`)."""

    def dispatched(self, decision: Decision) -> None:
        """Reserve and go: publish the decision before this returns."""

    def refused(self, refusal: Refusal) -> None:
        """Take note that the wait is over and nothing comes of it."""


@dataclass(frozen=True)
class RoomRules:
    """Bounds of the queue; a request decides afresh no sooner than after ``ask_s``, unless it is its turn."""

    disable_queue: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never let a request wait here: each goes to its worker at once, and waits in the engine's queue, in "
        "the engine's order.",
        live=True,
    )
    size: int = setting(
        10_000,
        "Requests that may wait, over all replicas; more are rejected with 429 and a Retry-After of the time "
        "that the waiting ones will take. 0 lets none wait: a request without room at a worker is rejected. "
        "The default only keeps memory bounded; queue.timeout_s ends long waits.",
        flag="queue-size",
        ge=0,
        live=True,
        common=True,
    )
    tokens_max: int = setting(
        50_000_000,
        "Uncached prompt tokens that may wait, over all replicas; the request that reaches the bound is the "
        "last one let in. 0 turns the bound off. The default is seven minutes of prefill of eight workers.",
        flag="queue-tokens-max",
        ge=0,
        live=True,
    )
    drain_s_max: float = setting(
        0.0,
        "Predicted time in which the workers of a model serve its waiting requests, in seconds; beyond it "
        "requests are rejected. It is also the time to recover from an overload: 10 recovers in ten seconds, "
        "and rejects more of a burst. 0, the default, turns the bound off: no request is rejected for a "
        "prediction unless you ask for it.",
        flag="queue-drain-secs-max",
        ge=0,
        live=True,
    )
    timeout_s: float = setting(
        180.0,
        "Longest wait for a worker, in seconds; then the request is answered with 408. In an engine's own "
        "queue nothing expires, and a prompt of 16 s may be overtaken for k times that. The default is the "
        "grace period, so that nothing waits when a drain is over. A client may set a shorter time, for all "
        "of its request, with the header x-request-timeout.",
        flag="queue-timeout-secs",
        gt=0,
        live=True,
        common=True,
    )
    look_s: float = LOOK_S
    ask_s: float = ASKED_S


BestOf = Callable[..., Ticket | None]
"""Next ticket for a room, with the keywords of `policies.Tickets.best`."""


class _Place(msgspec.Struct, gc=False, eq=False):
    waiter: Waiter
    op: Waiting
    safe_blocks: int
    entered_us: int
    asked_us: int
    deadline_us: int


class _Look:
    """Outcome so far of a look at many workers with room.

    Attributes:
        declined: Requests not to offer any room.
        empty: Groups of workers for whose lanes as a whole nothing waits but those.
        vain: Groups whose idle workers have nothing to take.
        version: Another number if one of these has changed.
    """

    def __init__(self, declined: set[str]) -> None:
        self.declined = declined
        self.empty: set[int] = set()
        self.vain: set[int] = set()
        self.version = 0
        self._left: dict[int, int] = {}

    def is_empty(self, group: int) -> None:
        """Note that nothing else waits for any worker of a group."""
        if group not in self.empty:
            self.empty.add(group)
            self.version += 1

    def is_vain(self, group: int) -> None:
        """Note that an idle worker of a group found nothing."""
        if group not in self.vain:
            self.vain.add(group)
            self.version += 1

    def is_left(self, group: int) -> None:
        """Note that a room of a group was left to another replica; the first `LEFT_MAX` are enough."""
        self._left[group] = self._left.get(group, 0) + 1
        if self._left[group] == LEFT_MAX:
            self.empty.add(group)
            self.vain.add(group)
            self.version += 1

    def asked(self) -> None:
        """Note that a request has decided afresh, and may wait for other workers now."""
        full = {group for group, count in self._left.items() if count >= LEFT_MAX}
        self.empty, self.vain = full, set(full)
        self.version += 1


class RequestQueue:
    """The requests that wait in one replica.

    Room is left to another replica for ``grace_s``, the lag of the log with a margin; ``overdue`` counts
    rooms that it left unused for longer. ``ended`` is called at the end of every wait with last ticket, end
    and seconds. ``rules`` are replaced when settings change, for requests that begin to wait.
    """

    def __init__(
        self,
        *,
        log: OpLog,
        fleet: FleetState,
        admission: Admission,
        lanes: Lanes,
        rules: RoomRules,
        call_later: Callable[[float, Callable[[], None]], Timer],
        grace_s: Callable[[], float],
        ended: Callable[[Waiting, WaitEnd, float], None],
    ) -> None:
        self._replica, self._publish, self._now_us = log.replica, log.publish, log.now_us
        self._fleet = fleet
        self._admission = admission
        self._lanes = lanes
        self.rules = rules
        self._call_later = call_later
        self._grace_s = grace_s
        self._ended = ended
        self._places: dict[str, _Place] = {}
        self._round: deque[str] = deque()
        self._starts = PromptStarts()
        self._deadlines: list[tuple[int, str]] = []
        self._left_to: dict[int | str, dict[str, tuple[tuple[str, int], int]]] = {}
        """By slot with room, or gated lane: of each replica that it was left to, its best ticket and the last
        prefill that was over there, and since when."""
        self._waiting_for_decode: set[str] = set()
        """Lanes in which a request here lacks only the room to be decoded."""
        self._waiting_for_link: dict[str, int] = {}
        """Tickets that wait for a link, and until when they are not offered a room."""
        self._resting: dict[str, int] = {}
        """Tickets that declined an idle worker, and until when they are offered none."""
        self._turned = 0
        self._expires_seen = fleet.expires.revision
        self._timer: Timer | None = None
        self._soon: Timer | None = None
        self.overdue = 0

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._places)

    def tickets(self) -> list[Waiting]:
        """Latest tickets of the requests that wait here."""
        return [place.op for place in self._places.values()]

    # Requests.

    def begin(
        self, waiter: Waiter, queued: Queued, deadline_us: int | None = None, *, again: bool = False
    ) -> QueueFull | None:
        """Begin to wait, until ``deadline_us`` of log time if the request has a deadline of its own.

        A request ``again`` was let in before, and a worker failed it: it is not turned away.

        Returns:
            None if it waits now; else too many wait already, and none of them here has a lesser claim.

        Raises:
            OpRefused: Its ticket cannot be published: it does not wait.
        """
        op = queued.waiting
        full = None if again else self._make_room(op)
        if full is not None:
            return full
        latest_us = op.at_us + round(self.rules.timeout_s * 1e6)
        place = _Place(
            waiter, op, queued.safe_blocks, op.at_us, op.at_us, min(latest_us, deadline_us or latest_us)
        )
        self._publish(op)
        self._places[op.request_id] = place
        self._round.append(op.request_id)
        self._starts.add(op.request_id, queued.path)
        heappush(self._deadlines, (place.deadline_us, op.request_id))
        if queued.waits_for_decode:
            self._waiting_for_decode.add(op.lane)
        if queued.waits_for_link:
            self._pace(op.request_id, op.at_us)
        if not self._lanes.knows(op.lane):
            self._lanes.follow(self._fleet.tickets.lane_totals())
        if self._timer is None:
            self._fleet.placed_paths.clear()
            self._timer = self._call_later(self.rules.look_s, self._look_at_all)
        return None

    def leave(self, ticket_id: str) -> None:
        """End the wait of a request that leaves for a reason of its own."""
        place = self._places.get(ticket_id)
        if place is not None:
            self._end(place, WaitEnd.LEFT)

    def republish(self, ticket_id: str, left_us: int, now_us: int) -> None:
        """Publish a ticket again that other replicas dropped at ``left_us``, taking this replica for dead."""
        place = self._places.get(ticket_id)
        if place is not None and place.op.at_us <= left_us:
            self._publish_ticket(place, msgspec.structs.replace(place.op, at_us=now_us))

    # The owner.

    def changed(self) -> None:
        """Look, in the loop's next turn, at the workers whose load fell by operations that were applied."""
        if not self._places:
            self._fleet.relieved.clear()
        elif self._fleet.relieved and self._soon is None:
            self._soon = self._call_later(0.0, self._look_at_relieved)

    def drain_s(self, lane: str) -> float:
        """Predicted seconds that the requests of a lane will take its workers."""
        total = self._fleet.tickets.lane_totals().get(lane)
        return 0.0 if total is None else total.service_us / 1e6 / max(len(self._lanes.serving(lane)), 1)

    def longest_drain_s(self) -> float:
        """Longest `drain_s` of all lanes; 0 if nothing waits."""
        return max(map(self.drain_s, self._fleet.tickets.lane_totals()), default=0.0)

    def is_full(self, lane: str) -> bool:
        """True if one more request of a lane would be rejected, or displace another."""
        rules, tickets = self.rules, self._fleet.tickets
        return (
            tickets.count >= rules.size
            or 0 < rules.tokens_max <= tickets.tokens
            or 0 < rules.drain_s_max <= self.drain_s(lane)
        )

    # Looking.

    def _look_at_relieved(self) -> None:
        self._soon = None
        relieved = self._fleet.relieved
        slots = sorted(relieved)
        relieved.clear()
        now_us = self._now_us()
        self._serve_waiting_for_decode(now_us)
        self._serve(slots, now_us)

    def _look_at_all(self) -> None:
        """Look at all workers, and again after a while; also if a mistake of ours ends this look early."""
        self._timer = None
        try:
            self._look_once(self._now_us())
        finally:
            if self._places:
                self._timer = self._call_later(self.rules.look_s, self._look_at_all)
            else:
                self._left_to.clear()
                self._waiting_for_decode.clear()

    def _look_once(self, now_us: int) -> None:
        self._expire(now_us)
        if self._places:
            self._lanes.follow(self._fleet.tickets.lane_totals())
            self._serve_waiting_for_decode(now_us)
            slots = self._admission.with_room(self._lanes.slots, now_us)
            if self._lanes.pairs:
                slots = np.roll(self._lanes.open(slots, now_us), -self._turned)
            slots = slots.tolist()
            if self._left_to:
                keys = {*slots, *self._waiting_for_decode}
                self._left_to = {key: left for key, left in self._left_to.items() if key in keys}
            self._serve(slots, now_us)
            self._ask_followers(now_us)
            self._ask_some(now_us)

    def _serve(self, slots: list[int], now_us: int) -> None:
        moved, unmoved = 0, 0
        declined = {ticket_id for ticket_id, until_us in self._waiting_for_link.items() if now_us < until_us}
        admission, lanes, look = self._admission, self._lanes, _Look(declined)
        for slot in self._with_takers(slots, look):
            before = moved
            while self._places and admission.has_room(slot, now_us) and lanes.is_open(slot, now_us):
                ticket_id, overdue = self._next(slot, now_us, look)
                if not ticket_id or not self._fits(slot, ticket_id, now_us):
                    break
                if self._ask(ticket_id, slot, now_us):
                    moved += 1
                    self.overdue += overdue
                else:
                    declined.add(ticket_id)
                    self._rest(ticket_id, slot, now_us)
                look.asked()
                if moved >= MOVED_MAX:
                    self._fleet.relieved.update(slots)
                    self.changed()
                    return
            else:
                self._left_to.pop(slot, None)
            unmoved += moved == before
            if lanes.pairs and unmoved >= UNMOVED_MAX:
                self._turned += unmoved
                return

    def _with_takers(self, slots: list[int], look: _Look) -> Iterator[int]:
        """Yield those of some workers, in this order, that a request may be offered to.

        Costs no step for the others: most have room all the time. Where workers need partners, a look ends
        after a few of them anyway.
        """
        if self._lanes.pairs:
            yield from slots
            return
        rest: Slots = np.array(slots, dtype=np.intp)
        groups, lanes_of = self._lanes.groups(rest)
        while len(rest):
            version, after = look.version, len(rest)
            for at in np.flatnonzero(self._may_be_taken(rest, groups, lanes_of, look)).tolist():
                yield rest.item(at)
                if look.version != version:
                    after = at + 1
                    break
            rest, groups = rest[after:], groups[after:]

    def _may_be_taken(
        self, slots: Slots, groups: Slots, lanes_of: Sequence[Sequence[str]], look: _Look
    ) -> NDArray[np.bool_]:
        """True for workers that a request waits for, by name or in a lane; for idle ones, if not in vain."""
        tickets = self._fleet.tickets
        waits = [
            group not in look.empty and any(map(tickets.waits_in, lanes))
            for group, lanes in enumerate(lanes_of)
        ]
        helps = [group not in look.vain for group in range(len(lanes_of))]
        taken: NDArray[np.bool_] = np.array(waits)[groups]
        prefill_us = self._fleet.loads.prefill_us
        if any(helps):
            taken |= np.array(helps)[groups] & (prefill_us[slots] == 0)
        named = np.zeros(len(prefill_us), dtype=np.bool_)
        named[[*tickets.slots(), *(room for room in self._left_to if isinstance(room, int))]] = True
        taken |= named[slots]
        return taken

    def _rest(self, ticket_id: str, slot: int, now_us: int) -> None:
        """Offer a request no idle worker for a while if it prefers to wait for another one."""
        place = self._places.get(ticket_id)
        if place is not None and place.op.worker not in ("", self._fleet.at_slot(slot).worker_id):
            self._resting.pop(ticket_id, None)
            self._resting[ticket_id] = now_us + round(self.rules.ask_s * 1e6)

    def _wake(self, now_us: int) -> None:
        """Let requests rest no longer that rested long enough; they are in the order of their times."""
        resting = self._resting
        while resting and resting[ticket_id := next(iter(resting))] <= now_us:
            del resting[ticket_id]

    def _fits(self, slot: int, ticket_id: str, now_us: int) -> bool:
        ticket = self._fleet.tickets.get(ticket_id) if self._lanes.pairs else None
        return ticket is None or self._lanes.is_open(slot, now_us, ticket.context_tokens - ROUNDED)

    def _serve_waiting_for_decode(self, now_us: int) -> None:
        for lane in sorted(self._waiting_for_decode):
            self._serve_lane(lane, now_us)

    def _serve_lane(self, lane: str, now_us: int) -> None:
        tickets, lanes = self._fleet.tickets, self._lanes
        best_of: BestOf = partial(tickets.best_of_lanes, (lane,))
        moved, declined = 0, set[str]()
        while lanes.can_decode(lane, 1.0, now_us) and not self._admission.closed:
            best = best_of(now_us, skip=declined)
            ticket_id, overdue = self._ours(lane, best, best_of, now_us, declined)
            ticket = tickets.get(ticket_id)
            if ticket is None:
                if best_of(now_us, replica=self._replica) is None:
                    self._waiting_for_decode.discard(lane)
                return
            if not lanes.can_decode(lane, ticket.context_tokens - ROUNDED, now_us):
                return
            self._waiting_for_decode.discard(lane)
            if self._ask(ticket_id, -1, now_us):
                self._waiting_for_decode.add(lane)
                self.overdue += overdue
                moved += 1
                if moved >= MOVED_MAX:
                    self._fleet.relieved.update(lanes.serving(lane)[:1].tolist())
                    self.changed()
                    return
            else:
                declined.add(ticket_id)
                if lane not in self._waiting_for_decode or len(declined) >= WAITING_FOR_DECODE_MAX:
                    return

    def _next(self, slot: int, now_us: int, look: _Look) -> tuple[str, bool]:
        """Request here that may take a worker's room, empty if none; True if others left it unused."""
        declined = look.declined
        if len(declined) > DECLINED_MAX + len(self._waiting_for_link):
            return "", False
        tickets, lanes, group = self._fleet.tickets, self._lanes.of(slot), self._lanes.group(slot)
        best_of: BestOf = partial(tickets.best, slot, lanes)
        best = best_of(now_us, skip=declined)
        if best is None:
            look.is_empty(group)
            if not self._admission.idle(np.array([slot]), now_us):
                return "", False
            self._wake(now_us)
            if len(self._resting) > DECLINED_MAX:
                look.is_vain(group)
                return "", False
            declined = declined | self._resting.keys()
            best_of = partial(tickets.best_of_lanes, lanes)
            best = best_of(now_us, skip=declined)
            beyond = self._lanes.beyond(slot)
            if best is None and beyond and len(declined) < BEYOND_MAX:
                best_of = partial(tickets.best_of_lanes, beyond)
                best = best_of(now_us, skip=declined)
            if best is None:
                look.is_vain(group)
        found = self._ours(slot, best, best_of, now_us, declined)
        if not found[0] and best is not None:
            look.is_left(group)
        return found

    def _ours(
        self, room: int | str, best: Ticket | None, best_of: BestOf, now_us: int, declined: set[str]
    ) -> tuple[str, bool]:
        """The same of a room whose best ticket is known."""
        tickets = self._fleet.tickets
        passed = set[str]()
        while best is not None and best.replica != self._replica:
            if not self._unused(room, best, now_us):
                return "", False
            passed.add(best.replica)
            others = tickets.replicas() - passed
            firsts = (best_of(now_us, replica=replica, skip=declined) for replica in others)
            best = min((ticket for ticket in firsts if ticket is not None), default=None)
        if best is None:
            return "", False
        if best.request_id not in self._places:  # of a former life of this replica
            self._publish(Finished(best.request_id, now_us))
            return self._ours(room, best_of(now_us, skip=declined), best_of, now_us, declined)
        return best.request_id, bool(passed)

    def _unused(self, room: int | str, best: Ticket, now_us: int) -> bool:
        """True if another replica, whose ticket is the best for a room, has left it unused for too long.

        A room beside a prefill is another one when that is over: requests here that declined it may want it
        now, so the other replica could not know before that it was left to its own.
        """
        left_to, loads = self._left_to.setdefault(room, {}), self._fleet.loads
        claim = best.request_id, loads.prefilled_us(room) if isinstance(room, int) else 0
        known = left_to.get(best.replica)
        if known is None or known[0] != claim:
            left_to[best.replica] = (claim, now_us)
            return False
        return now_us - known[1] > self._grace_s() * 1e6

    def _ask_followers(self, now_us: int) -> None:
        """Let requests decide afresh that share more with a placed prompt than they had cached."""
        placed_paths = self._fleet.placed_paths
        asked = 0
        while placed_paths and asked < FOLLOWERS_MAX:
            sharing = list(islice(self._starts.sharing(placed_paths.popleft()), SHARING_MAX))
            for ticket_id, blocks in sharing:
                place = self._places.get(ticket_id)
                if place is not None and blocks > place.safe_blocks:
                    self._ask(ticket_id, -1, now_us)
                    asked += 1

    def _ask_some(self, now_us: int) -> None:
        latest_us = now_us - round(self.rules.ask_s * 1e6)
        asked = 0
        while self._round and asked < ASKED_MAX:
            place = self._places.get(self._round[0])
            if place is not None and place.asked_us > latest_us:
                return
            ticket_id = self._round.popleft()
            if place is not None:
                self._round.append(ticket_id)
                self._ask(ticket_id, -1, now_us)
                asked += 1

    def _ask(self, ticket_id: str, turn: int, now_us: int) -> bool:
        """Let a request decide afresh, and apply its decision; True if it goes."""
        place = self._places[ticket_id]
        place.asked_us = now_us
        declined = self._fleet.tickets.declined
        declined.discard(ticket_id)
        match place.waiter.decide(ticket_id, turn):
            case Decision() as decided:
                self._forget(place, WaitEnd.DISPATCHED)
                place.waiter.dispatched(decided)
                return True
            case Queued(waiting=op) as queued:
                self._waiting_for_link.pop(ticket_id, None)
                if queued.waits_for_link:
                    self._pace(ticket_id, now_us)
                place.safe_blocks = queued.safe_blocks
                if queued.waits_for_decode:
                    self._waiting_for_decode.add(op.lane)
                if self._differs(place.op, op):
                    try:
                        self._publish_ticket(place, op)
                    except OpRefused:
                        self._refuse(place, WaitEnd.NO_WORKER, Unpublished())
                        return False
                lets_pass = turn >= 0 and op.worker == self._fleet.at_slot(turn).worker_id
                if lets_pass and len(declined) < DECLINED_MAX:
                    declined.add(ticket_id)
            case Shed() as shed:
                how = WaitEnd.REJECTED if shed.reason == SLO_UNREACHABLE else WaitEnd.NO_WORKER
                self._refuse(place, how, shed)
            case Unserved() as unserved:
                self._refuse(place, WaitEnd.NO_WORKER, unserved)
        return False

    def _pace(self, ticket_id: str, now_us: int) -> None:
        """Ask a request that waits for a link again soon, the later the more there are."""
        self._waiting_for_link[ticket_id] = now_us + max(
            WAITING_FOR_LINK_US, WAITING_FOR_LINK_EACH_US * len(self._waiting_for_link)
        )

    @staticmethod
    def _differs(last: Waiting, op: Waiting) -> bool:
        if (op.link, op.worker, op.lane) != (last.link, last.worker, last.lane):
            return True
        return abs(op.service_us - last.service_us) > CHANGE_MIN * last.service_us

    def _publish_ticket(self, place: _Place, op: Waiting) -> None:
        self._publish(op)
        place.op = op

    # Bounds.

    def _make_room(self, op: Waiting) -> QueueFull | None:
        """Let in a request, maybe in the place of others (`Tickets.worst`); else return how full it is."""
        tickets = self._fleet.tickets
        while self.is_full(op.lane):
            worst = tickets.worst(self._replica, op.flow, op.service_us)
            place = None if worst is None else self._places.get(worst.request_id)
            retry_after_s = min(max(self.drain_s(op.lane), 1.0), RETRY_AFTER_S_MAX)
            if place is None:
                self._ended(op, WaitEnd.REJECTED, 0.0)
                return QueueFull(tickets.count, tickets.tokens, retry_after_s)
            self._refuse(place, WaitEnd.DISPLACED, Displaced(retry_after_s))
        return None

    def _expire(self, now_us: int) -> None:
        """End waits whose deadline has passed, and those that an operator wants to end."""
        expires = self._fleet.expires
        if expires.revision != self._expires_seen:
            self._expires_seen = expires.revision
            for op in expires:
                self._expire_one(op.request_id, now_us, by_operator=True)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_us:
            self._expire_one(heappop(deadlines)[1], now_us)
        if len(deadlines) > 2 * len(self._places) + SPARE:
            self._deadlines = [entry for entry in deadlines if entry[1] in self._places]
            heapify(self._deadlines)

    def _expire_one(self, ticket_id: str, now_us: int, *, by_operator: bool = False) -> None:
        place = self._places.get(ticket_id)
        if place is not None:
            waited_s = (now_us - place.op.arrived_us) / 1e6
            self._refuse(place, WaitEnd.EXPIRED, Expired(waited_s, by_operator))

    def _refuse(self, place: _Place, how: WaitEnd, refusal: Refusal) -> None:
        self._end(place, how)
        place.waiter.refused(refusal)

    def _end(self, place: _Place, how: WaitEnd) -> None:
        self._forget(place, how)
        self._publish(Finished(place.op.request_id, self._now_us()))

    def _forget(self, place: _Place, how: WaitEnd) -> None:
        del self._places[place.op.request_id]
        self._waiting_for_link.pop(place.op.request_id, None)
        self._resting.pop(place.op.request_id, None)
        self._starts.discard(place.op.request_id)
        self._ended(place.op, how, (self._now_us() - place.entered_us) / 1e6)
