"""The waiting requests of all replicas, in one order: the next one when a worker has room.

    (nothing) ── Waiting ──> waiting ── Placed, Finished with its id ──> ended
                               │  └── Waiting, later ──> waiting, with another key or for another worker
                               └── Left ──> given up ── Waiting, later ──> waiting

The order is by key, ``arrival + k · s`` with the cheapest predicted prefill ``s`` (theory E3.3: linear aging,
a static key): few uncached tokens go first, and a request that arrived more than ``k · s`` later overtakes
none. k = 0 is first come first served, a great k shortest first. Between flows `policies.state.fairness`
decides.

A ticket waits for one worker, whose cache is worth the wait, or for any of its lane. A worker with room takes
the best of both kinds.

It is part of the fold (`policies.fleet.fleet`): the newest `Waiting` of a request counts, an end counts for
ever. `policies.state.loads` remembers ended requests and departed replicas.

A placement although a ticket with a lesser key waited for that worker, and might have gone, is an
*inversion*. Replicas learn of each other's tickets a moment later, so there are some. Each replica counts
those of its own tickets. A ticket that was offered the room and declined (`policies.dispatch.followers`) is
not overtaken.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.state.fairness import Fairness, class_of
from policies.state.flow_rows import FEW, NO_KEY, Keys, Rows, merged
from policies.state.ops import Waiting
from policies.state.waiting_lines import Flows, Heap, Line, Lines, OwnLines, Ticket
from policies.state.work_ahead import WorkAhead


class Inversions(msgspec.Struct, gc=False):
    """Placements although a request with a lesser key waited for that worker; greatest difference of keys."""

    count: int = 0
    us_max: int = 0


class Tickets:
    """All tickets, and the next to go.

    Attributes:
        count: Waiting requests of all replicas.
        tokens: Their uncached tokens.
        service_us: Their predicted prefill, microseconds.
        watched: Replica whose overtaken tickets are counted; all replicas' if None.
        inversions: Since the start.
        declined: Requests that were offered the room they wait for, and declined; no part of the fold.

    Args:
        few: Flows up to which they are compared one by one (`policies.state.flow_rows`).
    """

    def __init__(self, fairness: Fairness, watched: str | None = None, few: int = FEW) -> None:
        self.fairness = fairness
        self.watched = watched
        self._few = few
        self.count = 0
        self.tokens = 0
        self.service_us = 0
        self.inversions = Inversions()
        self.declined: set[str] = set()
        self._waiting: dict[str, Ticket] = {}
        self._of_replica: defaultdict[str, dict[str, Ticket]] = defaultdict(dict)
        self._lines = Lines()
        self._own: dict[str, OwnLines] = {}
        """Made for a replica on first use."""
        self._lanes: defaultdict[str, WorkAhead] = defaultdict(WorkAhead)
        self._at_workers = WorkAhead()
        """Tickets for one worker, by its slot."""
        self._anywhere: defaultdict[str, WorkAhead] = defaultdict(WorkAhead)
        """By lane: tickets for any of its workers."""
        self._of_link: defaultdict[str, Heap] = defaultdict(Heap)

    # The fold. That an end was not seen before, and that the replica has not left since, the caller knows.

    def put(self, op: Waiting, slot: int) -> None:
        """Let a request wait, or wait otherwise than before, for the worker in a slot (-1: for any)."""
        ticket = Ticket(
            key_us=op.key_us,
            arrived_us=op.arrived_us,
            request_id=op.request_id,
            at_us=op.at_us,
            replica=op.replica,
            lane=op.lane,
            slot=slot,
            flow=op.flow,
            service_us=op.service_us,
            uncached_tokens=op.uncached_tokens,
            context_tokens=op.context_tokens,
            link=op.link,
        )
        current = self._waiting.get(op.request_id)
        if current is not None:
            # Two of one moment: any of them, but the same at all replicas.
            if (op.at_us, ticket) <= (current.at_us, current):
                return
            self._drop(current)
        self._waiting[op.request_id] = ticket
        if op.replica == self.watched:
            self._own_lines(op.replica)  # while it is short
        self._of_replica[op.replica][op.request_id] = ticket
        self._lines.put(ticket)
        own = self._own.get(op.replica)
        if own is not None:
            own.put(ticket)
        self._lanes[ticket.lane].put(ticket)
        if ticket.slot >= 0:
            self._at_workers.put(ticket, ticket.slot)
        else:
            self._anywhere[ticket.lane].put(ticket)
        if ticket.link:
            self._of_link[ticket.link].put(ticket.key_us, ticket)
        self.count += 1
        self.tokens += ticket.uncached_tokens
        self.service_us += ticket.service_us
        self.fairness.rows.waits(ticket.flow, ticket.service_us)

    def placed(self, request_id: str, slot: int, at_us: int) -> Ticket | None:
        """End the wait of a request that was placed at a slot; return its ticket, if it waited.

        Looks for the best ticket, to count inversions, only if one of the watched replica has a lesser key.
        """
        ticket = self._waiting.get(request_id)
        if ticket is None:
            return None
        if self.watched is None or self._least_key_us(self.watched) < ticket.key_us:
            best = self.best(slot, (ticket.lane,), at_us, skip=self.declined)
            if (
                best is not None
                and best.key_us < ticket.key_us
                and best.at_us < at_us
                and self.watched in (None, best.replica)
            ):
                self.inversions.count += 1
                self.inversions.us_max = max(self.inversions.us_max, ticket.key_us - best.key_us)
        self._drop(ticket)
        return ticket

    def ended(self, request_id: str) -> Ticket | None:
        """End the wait of a request that was answered or ended; return its ticket, if it waited."""
        ticket = self._waiting.get(request_id)
        if ticket is not None:
            self._drop(ticket)
        return ticket

    def left(self, replica: str, at_us: int) -> list[Ticket]:
        """Give up the tickets that a replica reported at or before a log time, and return them."""
        gone = [ticket for ticket in self.of_replica(replica) if ticket.at_us <= at_us]
        for ticket in gone:
            self._drop(ticket)
        return gone

    def collect(self, now_us: int, lifetime_us_max: int) -> int:
        """Give up tickets that have waited for too long; return how many. Each one is a bug somewhere."""
        expired = [each for each in self._waiting.values() if now_us - each.at_us > lifetime_us_max]
        for ticket in expired:
            self._drop(ticket)
        return len(expired)

    def retain(self, listed: Container[str], own: str) -> None:
        """Give up other replicas' tickets that a snapshot does not list (`Loads.retain`)."""
        for ticket in list(self._waiting.values()):
            if ticket.replica != own and ticket.request_id not in listed:
                self._drop(ticket)

    def dump_steps(self) -> Iterator[Waiting | None]:
        """Yield tickets as operations, with slots in place of worker ids (the fleet names them).

        Others may change meanwhile: None stands for one that ended.
        """
        for request_id in list(self._waiting):
            ticket = self._waiting.get(request_id)
            yield (
                None
                if ticket is None
                else Waiting(
                    request_id,
                    ticket.at_us,
                    ticket.replica,
                    ticket.arrived_us,
                    ticket.key_us,
                    ticket.lane,
                    str(ticket.slot) if ticket.slot >= 0 else "",
                    ticket.flow,
                    ticket.service_us,
                    ticket.uncached_tokens,
                    ticket.context_tokens,
                    ticket.link,
                )
            )

    # Questions.

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._waiting.values())

    def get(self, request_id: str) -> Ticket | None:
        """The ticket of a request, if it waits."""
        return self._waiting.get(request_id)

    def replicas(self) -> set[str]:
        """Replicas at which a request waits."""
        return set(self._of_replica)

    def of_replica(self, replica: str) -> list[Ticket]:
        """Tickets of one replica."""
        return list(self._of_replica.get(replica, {}).values())

    def waits_for(self, slot: int) -> bool:
        """True if a ticket waits for this worker and no other."""
        return self._lines.waits_for(slot)

    def slots(self) -> Collection[int]:
        """Workers for which alone a ticket waits."""
        return self._lines.slots()

    def waits_in(self, lane: str) -> bool:
        """True if a ticket waits for any worker of this lane."""
        return self._lines.waits_in(lane)

    def best(
        self,
        slot: int,
        lanes: Sequence[str],
        now_us: int,
        *,
        replica: str | None = None,
        skip: Collection[str] = (),
    ) -> Ticket | None:
        """Return the next ticket for a worker with room, of those for it or its lanes; None for none.

        It has the least key of the flows that may go, among those of one replica if given, without ``skip``.
        """
        lines = self._lines if replica is None else self._own_lines(replica).lines
        return self._best(lines.at(slot, lanes), now_us, skip)

    def best_of_lanes(
        self,
        lanes: Sequence[str],
        now_us: int,
        *,
        replica: str | None = None,
        skip: Collection[str] = (),
    ) -> Ticket | None:
        """The same among all tickets of these lanes, for any worker."""
        replicas = self._of_replica if replica is None else (replica,)
        lines = [line for each in replicas for line in self._own_lines(each).of_lanes(lanes)]
        return self._best(lines, now_us, skip)

    def ahead_of(
        self, slot: int, lanes: Sequence[str], key_us: int, now_us: int, *, flow: str | None = None
    ) -> bool:
        """True if a ticket for a worker with room, or its lanes, goes before a request with this key.

        The request competes with the flows that wait if its ``flow`` is given; else only keys are compared.
        """
        if not self.count:
            return False
        lines = self._lines.at(slot, lanes)
        if not lines:
            return False
        if self._are_many(lines):
            return self._ahead_of_many(lines, key_us, now_us, flow)
        classes = _by_class(lines)
        if flow is None:
            allowed = self.fairness.may_go(classes, now_us)
        else:
            name = class_of(flow)
            flows = (*classes.get(name, ()), flow)
            allowed = self.fairness.may_go({**classes, name: tuple(dict.fromkeys(flows))}, now_us)
            if flow not in allowed.get(name, ()):
                return True
        return any(ticket.key_us < key_us for ticket in self._firsts(lines, allowed))

    def first_for_link(self, link: str) -> Ticket | None:
        """The ticket with the least key that waits for room on a link; None if there is none."""
        heap = self._of_link.get(link)
        return heap.first(self._waiting) if heap is not None else None

    def ahead_service_us(self, lane: str, key_us: int) -> int:
        """Predicted prefill that waits in a lane before a key, microseconds (`policies.state.work_ahead`)."""
        work = self._lanes.get(lane)
        return work.before_us(key_us) if work is not None else 0

    def around(self, slot: int, lane: str, workers: int, key_us: int) -> tuple[float, float]:
        """Return the predicted prefill before a key on a worker, microseconds, and the requests behind.

        Tickets for any of the ``workers`` of the lane count in part.
        """
        ahead_us, behind = self._at_workers.around(key_us, slot)
        anywhere = self._anywhere.get(lane)
        if anywhere is None:
            return ahead_us, behind
        lane_us, lane_behind = anywhere.around(key_us)
        return ahead_us + lane_us / workers, behind + lane_behind / workers

    def around_all(
        self, slots: NDArray[np.intp], lane: str, workers: int, keys_us: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Return the same for many workers, with a key for each."""
        ahead_us, behind = self._at_workers.around_all(slots, keys_us)
        anywhere = self._anywhere.get(lane)
        if anywhere is None:
            return ahead_us, behind
        lane_us, lane_behind = anywhere.around_all(np.zeros(len(slots), dtype=np.intp), keys_us)
        return ahead_us + lane_us / workers, behind + lane_behind / workers

    def lane_totals(self) -> Mapping[str, WorkAhead]:
        """Waiting work by lane."""
        return self._lanes

    def worst(self, replica: str, flow: str, service_us: int) -> Ticket | None:
        """Return the ticket of a replica that a request displaces when the queue is full; None for none.

        A lower class first. In its own class, a flow that has more work waiting, at all replicas and by its
        weight, than its own would have with it: places in a full queue are the shared resource then, and if
        the latest request always got one, the busiest client would be served most (the longest queue is cut,
        as in McKenney, Stochastic Fairness Queueing, INFOCOM 1990). That flow loses its greatest key.
        """
        own, weight_of, rows = self._own_lines(replica), self.fairness.weight_of, self.fairness.rows
        work_us = rows.work_us
        name, limit_us = class_of(flow), (work_us.get(flow, 0) + service_us) / weight_of(flow)
        if len(own.flows) > self._few:
            found = rows.most_waiting(own.flows.as_columns(rows, self._waiting).rows, name, limit_us)
            return None if found is None else own.flows[found].first(self._waiting)
        rank = weight_of(name)
        candidates = []
        for other in own.flows:
            waiting_us = work_us.get(other, 0) / weight_of(other)
            higher = weight_of(class_of(other)) - rank
            if higher < 0 or (class_of(other) == name and waiting_us > limit_us):
                candidates.append((-higher, waiting_us, other))
        return own.flows[max(candidates)[2]].first(self._waiting) if candidates else None

    # Inside.

    def _least_key_us(self, replica: str) -> float:
        """Least key that waits at a replica; infinite if none does."""
        if replica not in self._of_replica:
            return math.inf
        return self._own_lines(replica).first(self._waiting).key_us

    def _own_lines(self, replica: str) -> OwnLines:
        own = self._own.get(replica)
        if own is None:
            own = self._own[replica] = OwnLines(self._of_replica.get(replica, {}).values())
        return own

    def _best(self, lines: list[Line], now_us: int, skip: Collection[str]) -> Ticket | None:
        if not lines or (len(skip) >= self.count and self._waiting.keys() <= set(skip)):
            return None
        if self._are_many(lines):
            return self._best_of_many(lines, now_us, skip)
        if skip:
            return self._best_but(lines, now_us, skip)
        allowed = self.fairness.may_go(_by_class(lines), now_us)
        return min(self._firsts(lines, allowed), default=None)

    def _best_but(self, lines: list[Line], now_us: int, skip: Collection[str]) -> Ticket | None:
        """Return the best but some requests: a flow with no other waiting ones does not compete."""
        firsts: dict[str, dict[str, Ticket]] = {}
        for line in lines:
            for name, heaps in line.classes.items():
                for flow, heap in heaps.items():
                    ticket = heap.first_but(skip, self._waiting)
                    if ticket is not None:
                        flows = firsts.setdefault(name, {})
                        flows[flow] = min(ticket, flows.get(flow, ticket))
        allowed = self.fairness.may_go(firsts, now_us)
        return min((firsts[name][flow] for name, flows in allowed.items() for flow in flows), default=None)

    def _firsts(self, lines: list[Line], allowed: Mapping[str, Collection[str]]) -> Iterator[Ticket]:
        waiting = self._waiting
        for name, flows in allowed.items():
            for line in lines:
                heaps: Mapping[str, Heap] = line.classes.get(name, {})
                for flow in flows:
                    heap = heaps.get(flow)
                    if heap is not None:
                        yield heap.first(waiting)

    # The same of many flows.

    def _are_many(self, lines: list[Line]) -> bool:
        """True if many flows wait, counted in each line."""
        return sum(len(flows) for line in lines for flows in line.classes.values()) > self._few

    def _best_of_many(self, lines: list[Line], now_us: int, skip: Collection[str]) -> Ticket | None:
        classes = _parts(lines)
        skipped = [ticket for each in skip if (ticket := self._waiting.get(each)) is not None]
        heads = {name: self._heads(parts, name, skip, skipped) for name, parts in classes.items()}
        heads = {name: (rows, keys) for name, (rows, keys) in heads.items() if len(rows)}
        best = None
        for name in self.fairness.classes_to_go(heads, now_us):
            rows, keys = heads[name]
            allowed, _ = self.fairness.to_go(rows)
            rows, keys = rows[allowed], keys[allowed]
            for row in rows[keys == keys.min()].tolist():
                flow = self.fairness.rows.name_of(row)
                heaps = [heap for part in classes[name] if (heap := part.get(flow)) is not None]
                firsts = [heap.first_but(skip, self._waiting) for heap in heaps]
                best = min((each for each in (best, *firsts) if each is not None), default=None)
        return best

    def _ahead_of_many(self, lines: list[Line], key_us: int, now_us: int, flow: str | None) -> bool:
        classes = _parts(lines)
        name = None if flow is None else class_of(flow)
        names = classes.keys() if name is None else classes.keys() | {name}
        allowed_names = self.fairness.classes_to_go(names, now_us)
        if name is not None and name not in allowed_names:
            return True
        ahead = False
        for each in allowed_names:
            if each not in classes:
                continue
            rows, keys = self._heads(classes[each], each)
            allowed, newcomer = self.fairness.to_go(rows, (flow or "") if each == name else "")
            if each == name and not newcomer:
                return True
            ahead = ahead or bool((keys[allowed] < key_us).any())
        return ahead

    def _heads(
        self, parts: list[Flows], name: str, skip: Collection[str] = (), skipped: Collection[Ticket] = ()
    ) -> tuple[Rows, Keys]:
        """Rows of the flows of a class that wait, and of each the least key of a request not to ``skip``."""
        flows = {ticket.flow for ticket in skipped if class_of(ticket.flow) == name}
        columns: list[tuple[Rows, Keys]] = []
        for part in parts:
            heads = part.as_columns(self.fairness.rows, self._waiting)
            keys = heads.keys
            present = flows & heads.at.keys()
            if present:
                keys = keys.copy()
            for flow in present:
                ticket = part[flow].first_but(skip, self._waiting)
                keys[heads.at[flow]] = NO_KEY if ticket is None else ticket.key_us
            columns.append((heads.rows, keys))
        return merged(columns, self.fairness.rows.capacity())

    def _drop(self, ticket: Ticket) -> None:
        del self._waiting[ticket.request_id]
        self.declined.discard(ticket.request_id)
        of_replica = self._of_replica[ticket.replica]
        del of_replica[ticket.request_id]
        if not of_replica:
            del self._of_replica[ticket.replica]
        self._lines.drop(ticket, self._waiting)
        own = self._own.get(ticket.replica)
        if own is not None:
            own.drop(ticket, self._waiting)
        if ticket.link:
            heap = self._of_link[ticket.link]
            heap.drop(self._waiting)
            if not heap.live:
                del self._of_link[ticket.link]
        if ticket.slot >= 0:
            self._at_workers.drop(ticket)
        else:
            anywhere = self._anywhere[ticket.lane]
            anywhere.drop(ticket)
            if not anywhere.count:
                del self._anywhere[ticket.lane]
        lane = self._lanes[ticket.lane]
        lane.drop(ticket)
        if not lane.count:
            del self._lanes[ticket.lane]
        self.count -= 1
        self.tokens -= ticket.uncached_tokens
        self.service_us -= ticket.service_us
        self.fairness.rows.waits(ticket.flow, -ticket.service_us)


def _parts(lines: list[Line]) -> dict[str, list[Flows]]:
    """By class, its flows in each line."""
    classes: dict[str, list[Flows]] = {}
    for line in lines:
        for name, flows in line.classes.items():
            classes.setdefault(name, []).append(flows)
    return classes


def _by_class(lines: list[Line]) -> Mapping[str, Collection[str]]:
    if len(lines) == 1:
        return lines[0].classes
    classes: dict[str, dict[str, Heap]] = {}
    for line in lines:
        for name, flows in line.classes.items():
            merged = classes.get(name)
            classes[name] = flows if merged is None else {**merged, **flows}
    return classes
