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
        for _ in range(LOOKS_MAX):
            connection = self._oldest()
            if connection is None:
                return False
            self.discard(connection)
            if self._idle is not None:
                self._idle.discard(connection)
            if connection.vacate():
                return True
        return False

    def _oldest(self) -> Vacatable | None:
        other = next(iter(self._others_s.items()), None)
        idle: tuple[Vacatable, float] | None = None if self._idle is None else self._idle.first()
        if other is not None and (idle is None or other[1] <= idle[1]):
            return other[0]
        if idle is not None:
            return idle[0]
        slow = next(iter(self._slow_s.items()), None)
        if slow is None or self._loop.time() - slow[1] < PATIENCE_S:
            return None
        return slow[0]
