"""Deadlines of things that come and go all the time, on one timer for all of them.

    add --> waiting, in order --its time has come--> on_due(item)
               `--discard--> forgotten

A connection becomes idle with every answer and busy with every request. A timer of the loop for each
time costs more than all else that is noted of a connection; here it is an entry in a dictionary, and the
one timer runs towards whatever was first when it was set. When it fires, it ends what is due and is set
for the first that is left.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")

DUE_AT_ONCE_MAX = 100
"""Items ended in one turn of the loop: thousands of connections may have been opened at the same moment."""


class Deadlines(Generic[Item]):
    """Items that wait, each for its time; all should wait equally long.

    Behind an item that waits for longer, one is ended late: together with it. So if the delay becomes
    shorter, add those that wait already anew.
    """

    __slots__ = ("_delay_s", "_due_s", "_look_s", "_loop", "_on_due", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[Item], None]) -> None:
        """Wait for nothing yet.

        Args:
            loop: Whose clock and timer are used.
            on_due: Ends an item, which is forgotten before.
        """
        self._loop = loop
        self._on_due = on_due
        self._due_s: dict[Item, float] = {}
        self._delay_s = 0.0  # of the one that was added last
        self._timer: asyncio.Handle | None = None
        self._look_s = 0.0  # when it fires; uvloop's handles do not all say

    def __contains__(self, item: Item) -> bool:
        return item in self._due_s

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, item: Item, delay_s: float) -> None:
        """Let an item wait from now on, also if it waits already."""
        self._delay_s = delay_s
        due_s = self._loop.time() + delay_s
        self._due_s.pop(item, None)
        self._due_s[item] = due_s
        if self._timer is None:
            self._look_at(due_s)
        elif due_s < self._look_s:
            self._timer.cancel()
            self._look_at(due_s)

    def first(self, count: int) -> list[tuple[Item, float]]:
        """Those that have waited for longest, each with since when, by the loop's clock."""
        return [(item, due_s - self._delay_s) for item, due_s in islice(self._due_s.items(), count)]

    def discard(self, item: Item) -> None:
        """Forget an item, if it waits."""
        self._due_s.pop(item, None)

    def _look_at(self, due_s: float) -> None:
        self._look_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        due: list[Item] = []
        next_s: float | None = None
        for item, due_s in self._due_s.items():
            if due_s > now_s or len(due) == DUE_AT_ONCE_MAX:
                next_s = due_s
                break
            due.append(item)
        self._timer = None
        if next_s is not None:
            self._look_at(next_s)
        for item in due:
            if self._due_s.pop(item, None) is not None:
                self._on_due(item)
