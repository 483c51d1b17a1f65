"""Deadlines of frequently changing items, on one timer.

    add --> waiting, in order --its time has come--> on_due(item)
               `----pop----> forgotten

A connection becomes idle and busy with every answer: a timer of the loop for each costs more than all its
other bookkeeping. The one timer runs until the item that was first when it was set.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

DUE_AT_ONCE_MAX = 100
"""Items ended in one turn of the loop: thousands may have been added at the same moment."""


class Deadlines(dict[Item, float]):
    """Items that wait equally long, and the deadline of each by the loop's clock. Pop an item to forget it.

    If the delay becomes shorter, add waiting items again, or they end late.
    """

    __slots__ = ("_delay_s", "_fires_s", "_loop", "_on_due", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[Item], None]) -> None:
        """Begin with no items; `on_due` ends an item that has just been removed."""
        super().__init__()
        self._loop = loop
        self._on_due = on_due
        self._delay_s = 0.0  # of the newest item
        self._timer: asyncio.Handle | None = None
        self._fires_s = 0.0  # not all of uvloop's handles have a time

    def add(self, item: Item, delay_s: float) -> None:
        """Let an item wait from now on, even if it waits already."""
        self._delay_s = delay_s
        due_s = self._loop.time() + delay_s
        if item in self:
            del self[item]  # it becomes the last
        self[item] = due_s
        if self._timer is None:
            self._set_timer(due_s)
        elif due_s < self._fires_s:
            self._timer.cancel()
            self._set_timer(due_s)

    def first(self, count: int) -> list[tuple[Item, float]]:
        """Return the items that have waited longest, each with its start by the loop's clock."""
        return [(item, due_s - self._delay_s) for item, due_s in islice(self.items(), count)]

    def _set_timer(self, due_s: float) -> None:
        self._fires_s = due_s
        self._timer = self._loop.call_at(due_s, self._fire)

    def _fire(self) -> None:
        now_s = self._loop.time()
        due: list[Item] = []
        next_s: float | None = None
        for item, due_s in self.items():
            if due_s > now_s or len(due) == DUE_AT_ONCE_MAX:
                next_s = due_s
                break
            due.append(item)
        self._timer = None
        if next_s is not None:
            self._set_timer(next_s)
        for item in due:
            if self.pop(item, None) is not None:
                self._on_due(item)
