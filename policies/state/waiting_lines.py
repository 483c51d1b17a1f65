"""Tickets in the order of their keys, by the worker or lane they wait for and by flow.

    Line                      tickets that wait for one worker or lane
      class ──> flow ──> Heap     the least key first

A ticket that ends stays in its heap until it comes to the top, or until the heap is mostly such tickets and
is made anew. So putting and ending cost O(log n), spread over many.
"""

import heapq
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

import msgspec

from policies.state.fairness import class_of

SPARE = 16
"""Ended tickets that a heap may hold above twice its live ones."""


class Ticket(msgspec.Struct, frozen=True, order=True, gc=False, kw_only=True):
    """A waiting request (`ops.Waiting`). Of two the lesser goes first: by key, then by arrival.

    ``slot`` is that of the worker it waits for; -1 if any of its lane will do.
    """

    key_us: int
    arrived_us: int
    request_id: str
    at_us: int
    replica: str
    lane: str
    slot: int
    flow: str
    service_us: int
    uncached_tokens: int
    context_tokens: int
    link: str = ""


class Heap:
    """Tickets, the least rank first; not empty while in use.

    Attributes:
        entries: A heap of ranks and tickets, some of which have ended.
        live: Number of tickets that have not ended.
    """

    __slots__ = ("entries", "live")

    def __init__(self) -> None:
        self.entries: list[tuple[int, Ticket]] = []
        self.live = 0

    def put(self, rank: int, ticket: Ticket) -> None:
        """Add a ticket."""
        heapq.heappush(self.entries, (rank, ticket))
        self.live += 1

    def drop(self, waiting: Mapping[str, Ticket]) -> None:
        """Note that one of its tickets is no longer among those ``waiting``."""
        self.live -= 1
        if len(self.entries) > 2 * self.live + SPARE:
            self.entries = [entry for entry in self.entries if waiting.get(entry[1].request_id) is entry[1]]
            heapq.heapify(self.entries)

    def first(self, waiting: Mapping[str, Ticket]) -> Ticket:
        """The ticket with the least rank that still waits."""
        entries = self.entries
        while waiting.get((ticket := entries[0][1]).request_id) is not ticket:
            heapq.heappop(entries)
        return ticket

    def first_but(self, skip: Container[str], waiting: Mapping[str, Ticket]) -> Ticket | None:
        """The same without some requests; None if no other waits."""
        first = self.first(waiting)
        if first.request_id not in skip:
            return first
        skipped, found = [], None
        while self.entries:
            entry = self.entries[0]
            if waiting.get(entry[1].request_id) is entry[1]:
                if entry[1].request_id not in skip:
                    found = entry[1]
                    break
                skipped.append(entry)
            heapq.heappop(self.entries)
        for entry in skipped:
            heapq.heappush(self.entries, entry)
        return found


class Line:
    """Tickets that wait for one worker or lane.

    Attributes:
        classes: By class and flow, a heap by key; nothing in it is empty.
    """

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: defaultdict[str, defaultdict[str, Heap]] = defaultdict(lambda: defaultdict(Heap))

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self.classes[class_of(ticket.flow)][ticket.flow].put(ticket.key_us, ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> bool:
        """Note that a ticket is no longer among those ``waiting``; return True if the line is empty."""
        name = class_of(ticket.flow)
        flows = self.classes[name]
        heap = flows[ticket.flow]
        heap.drop(waiting)
        if not heap.live:
            del flows[ticket.flow]
            if not flows:
                del self.classes[name]
        return not self.classes


class Lines:
    """Lines by worker, and by lane for any of its workers."""

    __slots__ = ("_of_lane", "_of_slot")

    def __init__(self) -> None:
        self._of_slot: defaultdict[int, Line] = defaultdict(Line)
        self._of_lane: defaultdict[str, Line] = defaultdict(Line)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        if ticket.slot >= 0:
            self._of_slot[ticket.slot].put(ticket)
        else:
            self._of_lane[ticket.lane].put(ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> None:
        """Note that a ticket is no longer among those ``waiting``."""
        if ticket.slot >= 0:
            if self._of_slot[ticket.slot].drop(ticket, waiting):
                del self._of_slot[ticket.slot]
        elif self._of_lane[ticket.lane].drop(ticket, waiting):
            del self._of_lane[ticket.lane]

    def waits_for(self, slot: int) -> bool:
        """True if a ticket waits for this worker and no other."""
        return slot in self._of_slot

    def at(self, slot: int, lanes: Iterable[str]) -> list[Line]:
        """Lines of the worker in this slot and of the lanes that it serves."""
        found = [line for lane in lanes if (line := self._of_lane.get(lane)) is not None]
        line = self._of_slot.get(slot)
        if line is not None:
            found.append(line)
        return found


class OwnLines:
    """The tickets of one replica, by all orders that it needs of its own only.

    Attributes:
        lines: By the worker or lane they wait for.
    """

    __slots__ = ("_by_key", "_last_of_flow", "_of_lane", "lines")

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        self.lines = Lines()
        self._of_lane: defaultdict[str, Line] = defaultdict(Line)
        self._last_of_flow: defaultdict[str, Heap] = defaultdict(Heap)
        self._by_key = Heap()
        for ticket in tickets:
            self.put(ticket)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self.lines.put(ticket)
        self._of_lane[ticket.lane].put(ticket)
        self._last_of_flow[ticket.flow].put(-ticket.key_us, ticket)
        self._by_key.put(ticket.key_us, ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> None:
        """Note that a ticket is no longer among those ``waiting``."""
        self.lines.drop(ticket, waiting)
        if self._of_lane[ticket.lane].drop(ticket, waiting):
            del self._of_lane[ticket.lane]
        heap = self._last_of_flow[ticket.flow]
        heap.drop(waiting)
        if not heap.live:
            del self._last_of_flow[ticket.flow]
        self._by_key.drop(waiting)

    def first(self, waiting: Mapping[str, Ticket]) -> Ticket:
        """The ticket with the least key, if any waits."""
        return self._by_key.first(waiting)

    def of_lanes(self, lanes: Iterable[str]) -> list[Line]:
        """Lines of all tickets of some lanes, whichever worker they wait for."""
        return [line for lane in lanes if (line := self._of_lane.get(lane)) is not None]

    def flows(self) -> Iterable[str]:
        """Flows with a ticket."""
        return self._last_of_flow.keys()

    def last_of(self, flow: str, waiting: Mapping[str, Ticket]) -> Ticket:
        """The ticket with the greatest key of a flow that has one."""
        return self._last_of_flow[flow].first(waiting)
