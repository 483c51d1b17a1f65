"""Long work on the event loop's thread, in turns with everything else.

    add ──► queue ──its turn──► a millisecond of steps ──► the loop looks at its sockets ──► ... ──► done

One piece of work after the other: each holds memory while it is under way, and in turns all would end late.
The loop is held for `TURN_S` and one step at most.
"""

from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter

TURN_S = 0.001
"""Seconds of steps before the rest of the event loop has its turn."""

Steps = Generator[None, None, None]
"""Work in steps: each `next` does a little of it."""


class StepRunner:
    """Does work in steps, in order of arrival, by the event loop's ``call_soon``."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._queue: deque[Steps] = deque()

    def add(self, steps: Steps) -> None:
        """Queue steps, which must not raise; nothing runs before this returns. Closed steps are skipped."""
        self._queue.append(steps)
        if len(self._queue) == 1:
            self._call_soon(self._turn)

    def _turn(self) -> None:
        steps = self._queue[0]
        end_s = perf_counter() + TURN_S
        for _ in steps:
            if perf_counter() >= end_s:
                break
        else:
            self._queue.popleft()
        if self._queue:
            self._call_soon(self._turn)
