"""Connections that are closed when a new one needs their place.

    awaiting the first byte or the rest of a head,
    or leaving: refused, or answered and closed   ──┐
    idle between two requests (`Deadlines`)       ──┴─ the oldest in this state ──> closed
    awaiting the rest of a body,
    or answered, and the answer is not read       ──── if there is none of these, after `PATIENCE_S`

A bound on connections alone lets a client fill it with idle ones and keep all others out. A client that has
just connected is the youngest and the last to be closed.
"""

import asyncio
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

from router.proxy.deadlines import Deadlines

PATIENCE_S = 5.0
"""Seconds that a client may hold its own request up while others need its place."""

LOOKS_MAX = 8
"""Connections examined for each one that is closed."""


class Vacatable(Protocol):
    """A connection that may be closed for another."""

    def vacate(self) -> bool:
        """Close at once and stop counting, unless a request is under way; return True if closed."""


class Spare:
    """Connections of one listener that could be closed, each in at most one group, in order of arrival."""

    __slots__ = ("_idle", "_loop", "_others_s", "_slow_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: Deadlines[Any] | None = None) -> None:
        """Begin empty; `idle` holds the connections between two requests."""
        self._loop = loop
        self._idle = idle
        self._others_s: dict[Vacatable, float] = {}
        self._slow_s: dict[Vacatable, float] = {}

    def __len__(self) -> int:
        return len(self._others_s) + len(self._slow_s) + len(self._idle or ())

    def add(self, connection: Vacatable) -> None:
        """Add a connection without an owed answer: its head is incomplete, or it is about to close."""
        self._slow_s.pop(connection, None)
        if connection not in self._others_s:
            self._others_s[connection] = self._loop.time()

    def add_slow(self, connection: Vacatable) -> None:
        """Add a connection whose request waits for its client."""
        self._others_s.pop(connection, None)
        if connection not in self._slow_s:
            self._slow_s[connection] = self._loop.time()

    def discard(self, connection: Vacatable) -> None:
        """Remove a connection that is gone or has a request under way; `Deadlines` removes its own."""
        self._others_s.pop(connection, None)
        self._slow_s.pop(connection, None)

    def make_room(self) -> bool:
        """Close a connection; return False if all open ones have requests under way."""
        for connection in self._oldest():
            closed = connection.vacate()
            self.discard(connection)
            if closed:
                return True
        return False

    def _oldest(self) -> list[Vacatable]:
        others = list(islice(self._others_s.items(), LOOKS_MAX))
        idle: list[tuple[Vacatable, float]] = [] if self._idle is None else self._idle.first(LOOKS_MAX)
        found = [connection for connection, _ in sorted(others + idle, key=itemgetter(1))]
        if len(found) < LOOKS_MAX:
            since_s = self._loop.time() - PATIENCE_S
            slow = islice(self._slow_s.items(), LOOKS_MAX)
            found += [connection for connection, slow_s in slow if slow_s <= since_s]
        return found[:LOOKS_MAX]
