"""Tickets in the order of their keys, by what they wait for and whose they are.

    Line                      everybody who waits for one thing
      class ──> flow ──> Heap     the least key first

A ticket that ends is not looked for in its heap: it is passed over when it comes to the top, and a heap that
is mostly such tickets is made anew. So putting and ending cost O(log n), spread over many.
"""

import heapq
from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

import msgspec

from policies.state.fairness import class_of

SPARE = 16
"""So many ended tickets a heap may hold besides as many as still wait, twice over."""

_Key = TypeVar("_Key", int, str)


class Ticket(msgspec.Struct, frozen=True, order=True, gc=False, kw_only=True):
    """One waiting request (`ops.Waiting`). Of two the lesser goes first: by key, then by arrival.

    Attributes:
        key_us: Its place in the order.
        arrived_us: Log time at which it arrived.
        request_id: Of the `Placed` that will end it.
        at_us: Log time at which this was said.
        replica: Who holds the request.
        lane: Which workers may take it.
        slot: Of the worker it waits for; -1 if any of its lane will do.
        flow: Who waits: ``CLASS/TENANT``.
        service_us: Predicted prefill, microseconds.
        uncached_tokens: Prompt tokens to prefill.
        context_tokens: Prompt plus expected output.
        link: The link whose room it lacks; empty if none.
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
    """Some tickets, the one with the least rank first; never empty but while it is made.

    Attributes:
        entries: A heap of ranks and tickets, some of which have ended.
        live: How many have not.
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
        """The same without some requests; None if nobody else waits."""
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
    """Those who wait for one thing.

    Attributes:
        classes: By class and flow, a heap by key; nothing in it is empty.
    """

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: dict[str, dict[str, Heap]] = {}

    def put(self, ticket: Ticket) -> None:
        """Let a ticket wait here."""
        name = class_of(ticket.flow)
        flows = self.classes.get(name)
        if flows is None:
            flows = self.classes[name] = {}
        heap = flows.get(ticket.flow)
        if heap is None:
            heap = flows[ticket.flow] = Heap()
        heap.put(ticket.key_us, ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> bool:
        """Note that a ticket is no longer among those ``waiting``; say whether nobody is left here."""
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
    """Who waits for which worker, and who for any worker of a lane."""

    __slots__ = ("_of_lane", "_of_slot")

    def __init__(self) -> None:
        self._of_slot: dict[int, Line] = {}
        self._of_lane: dict[str, Line] = {}

    def put(self, ticket: Ticket) -> None:
        """Let a ticket wait for what it names."""
        if ticket.slot >= 0:
            _line(self._of_slot, ticket.slot).put(ticket)
        else:
            _line(self._of_lane, ticket.lane).put(ticket)

    def drop(self, ticket: Ticket, waiting: Mapping[str, Ticket]) -> None:
        """Note that a ticket is no longer among those ``waiting``."""
        if ticket.slot >= 0:
            if self._of_slot[ticket.slot].drop(ticket, waiting):
                del self._of_slot[ticket.slot]
        elif self._of_lane[ticket.lane].drop(ticket, waiting):
            del self._of_lane[ticket.lane]

    def waits_for(self, slot: int) -> bool:
        """Whether anybody waits for this worker and no other."""
        return slot in self._of_slot

    def at(self, slot: int, lanes: Iterable[str]) -> list[Line]:
        """The lines of those who wait for the worker in this slot, which serves these lanes."""
        found = [line for lane in lanes if (line := self._of_lane.get(lane)) is not None]
        line = self._of_slot.get(slot)
        if line is not None:
            found.append(line)
        return found


class OwnLines:
    """The tickets of one replica, by all that it asks only of its own.

    Attributes:
        lines: By what they wait for.
    """

    __slots__ = ("_by_key", "_last_of_flow", "_of_lane", "lines")

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        self.lines = Lines()
        self._of_lane: dict[str, Line] = {}
        self._last_of_flow: dict[str, Heap] = {}
        self._by_key = Heap()
        for ticket in tickets:
            self.put(ticket)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self.lines.put(ticket)
        _line(self._of_lane, ticket.lane).put(ticket)
        heap = self._last_of_flow.get(ticket.flow)
        if heap is None:
            heap = self._last_of_flow[ticket.flow] = Heap()
        heap.put(-ticket.key_us, ticket)
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
        """The lines of all that some lanes may take, whichever worker they wait for."""
        return [line for lane in lanes if (line := self._of_lane.get(lane)) is not None]

    def flows(self) -> Iterable[str]:
        """The flows of which somebody waits."""
        return self._last_of_flow.keys()

    def last_of(self, flow: str, waiting: Mapping[str, Ticket]) -> Ticket:
        """The one of a flow, of which somebody waits, with the greatest key."""
        return self._last_of_flow[flow].first(waiting)


def _line(lines: dict[_Key, Line], key: _Key) -> Line:
    """The line of this key, made if there is none."""
    line = lines.get(key)
    if line is None:
        line = lines[key] = Line()
    return line
