"""Connections that are closed when a new one needs their place.

    awaiting the first byte or the rest of a head,
    or leaving: refused, or answered and closed   ──┐
    idle between two requests (`Deadlines`)       ──┴─ the one that is so for longest ──> closed
    awaiting the rest of a body,
    or answered, and the answer is not read       ──── if there is none of these, after `PATIENCE_S`

A bound on connections alone lets whoever fills it with idle ones keep all others out. So a listener that is
full closes an old connection on which no answer is owed, and takes the new one. A client that has just
connected is the youngest, and its request is on its way: it is the last to be closed.

A request whose head is complete is under way. But a client can hold it up for as long as it likes, by half a
body or by an answer that it does not read; some seconds of that are enough where others need the place.
"""

import asyncio
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

from router.proxy.deadlines import Deadlines

PATIENCE_S = 5.0
"""How long a client may hold its own request up while others need its place, in seconds."""

LOOKS_MAX = 8
"""Connections looked at for each that is closed."""


class Vacatable(Protocol):
    """A connection, as seen from here."""

    def vacate(self) -> bool:
        """Close at once and stop counting, unless something is under way after all; whether it did."""


class Spare:
    """The connections of one listener that could be closed. For use from the event loop's thread.

    Each is in one of the groups at most, in the order in which they came there.
    """

    __slots__ = ("_idle", "_loop", "_others_s", "_slow_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: Deadlines[Any] | None = None) -> None:
        """Begin with none.

        Args:
            loop: Whose clock is used.
            idle: The connections between two requests, which all wait for their time to be closed.
        """
        self._loop = loop
        self._idle = idle
        self._others_s: dict[Vacatable, float] = {}
        self._slow_s: dict[Vacatable, float] = {}

    def __len__(self) -> int:
        return len(self._others_s) + len(self._slow_s) + len(self._idle or ())

    def add(self, connection: Vacatable) -> None:
        """No answer is owed on it: a head has not come, or it is about to close."""
        self._slow_s.pop(connection, None)
        if connection not in self._others_s:
            self._others_s[connection] = self._loop.time()

    def add_slow(self, connection: Vacatable) -> None:
        """A request is under way on it, which waits for its client."""
        self._others_s.pop(connection, None)
        if connection not in self._slow_s:
            self._slow_s[connection] = self._loop.time()

    def discard(self, connection: Vacatable) -> None:
        """A request is under way on it, or it is gone; `Deadlines` are told by themselves."""
        self._others_s.pop(connection, None)
        self._slow_s.pop(connection, None)

    def make_room(self) -> bool:
        """Close a connection; False if all that are open have requests under way."""
        for connection in self._oldest():
            closed = connection.vacate()
            self.discard(connection)
            if closed:
                return True
        return False

    def _oldest(self) -> list[Vacatable]:
        """Those to be asked, in order; one between two requests that stays has its next one already."""
        others = list(islice(self._others_s.items(), LOOKS_MAX))
        idle: list[tuple[Vacatable, float]] = [] if self._idle is None else self._idle.first(LOOKS_MAX)
        found = [connection for connection, _ in sorted(others + idle, key=itemgetter(1))]
        if len(found) < LOOKS_MAX:
            since_s = self._loop.time() - PATIENCE_S
            slow = islice(self._slow_s.items(), LOOKS_MAX)
            found += [connection for connection, slow_s in slow if slow_s <= since_s]
        return found[:LOOKS_MAX]
