"""Tickets in the order of their keys, by the worker or lane they wait for and by flow.

    Line                      tickets that wait for one worker or lane
      class ──> Flows ──> Heap    by flow, the least key first

A ticket that ends stays in its heap until it comes to the top, or until the heap is mostly such tickets and
is rebuilt. So putting and ending cost O(log n), spread over many.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping

import msgspec

from policies.state.fairness import class_of
from policies.state.flow_rows import FlowHeads, FlowRows

SPARE = 16
"""Ended tickets that a heap may hold above twice its live ones."""


class Ticket(msgspec.Struct, frozen=True, order=True, gc=False, kw_only=True):
    """A waiting request (`ops.Waiting`). The lesser of two goes first: by key, then by arrival.

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


class Flows(dict[str, Heap]):
    """Flows that wait, of each a heap; in a line those of one class.

    Attributes:
        heads: The same as columns, once they were asked for.
    """

    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: FlowHeads | None = None

    def put(self, rank: int, ticket: Ticket) -> None:
        """Add a ticket."""
        heap = self.get(ticket.flow)
        if heap is None:
            heap = self[ticket.flow] = Heap()
        heap.put(rank, ticket)
        if self.heads is not None:
            self.heads.put(ticket.flow, heap.entries[0][0])

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> None:
        """Note that a ticket is no longer among those ``waiting``."""
        flow, heads = ticket.flow, self.heads
        heap = self[flow]
        heap.drop(waiting)
        if not heap.live:
            del self[flow]
            if heads is not None:
                heads.drop(flow)
        elif heads is not None:
            # Then no ended ticket is ever the first of a heap.
            heap.first(waiting)
            heads.put(flow, heap.entries[0][0])

    def as_columns(self, table: FlowRows, waiting: Mapping[str, Ticket]) -> FlowHeads:
        """Return ``heads``, made on first use."""
        heads = self.heads
        if heads is None:
            heads = self.heads = FlowHeads(table)
            for flow, heap in self.items():
                heap.first(waiting)
                heads.put(flow, heap.entries[0][0])
        return heads


class Line:
    """Tickets that wait for one worker or lane.

    Attributes:
        classes: By class; nothing in it is empty.
    """

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: defaultdict[str, Flows] = defaultdict(Flows)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self.classes[class_of(ticket.flow)].put(ticket.key_us, ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> bool:
        """Note that a ticket is no longer among those ``waiting``; return True if the line is empty."""
        name = class_of(ticket.flow)
        flows = self.classes[name]
        flows.drop(ticket, waiting)
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

    def slots(self) -> Collection[int]:
        """Workers for which alone a ticket waits."""
        return self._of_slot.keys()

    def waits_in(self, lane: str) -> bool:
        """True if a ticket waits for any worker of this lane."""
        return lane in self._of_lane

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
        flows: All of them, each with a heap of its tickets, the greatest key first.
    """

    __slots__ = ("_by_key", "_of_lane", "flows", "lines")

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        self.lines = Lines()
        self._of_lane: defaultdict[str, Line] = defaultdict(Line)
        self.flows = Flows()
        self._by_key = Heap()
        for ticket in tickets:
            self.put(ticket)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self.lines.put(ticket)
        self._of_lane[ticket.lane].put(ticket)
        self.flows.put(-ticket.key_us, ticket)
        self._by_key.put(ticket.key_us, ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> None:
        """Note that a ticket is no longer among those ``waiting``."""
        self.lines.drop(ticket, waiting)
        if self._of_lane[ticket.lane].drop(ticket, waiting):
            del self._of_lane[ticket.lane]
        self.flows.drop(ticket, waiting)
        self._by_key.drop(waiting)

    def first(self, waiting: Mapping[str, Ticket]) -> Ticket:
        """The ticket with the least key, if any waits."""
        return self._by_key.first(waiting)

    def of_lanes(self, lanes: Iterable[str]) -> list[Line]:
        """Lines of all tickets of some lanes, for any worker."""
        return [line for lane in lanes if (line := self._of_lane.get(lane)) is not None]
