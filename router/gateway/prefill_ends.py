"""When the prefills end of which nothing else tells.

The first byte of an answer that is not streamed comes after the decode, so its prefill counts as done when
it was predicted to be. Most short answers are complete before. So an attempt does not set a timer and
cancel it: it gets a place in a heap, and one timer runs for the first moment that is due. What ended
before is skipped when its moment comes.

    expect ──> waiting ──due──> `prefill_ended`
                  └──forget──> (skipped when due)
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

ENDED_AT_ONCE = 200
"""Prefills ended in one turn of the loop, some milliseconds of work."""

SKIPPED_MAX = 1000
"""The heap is cleared of what was forgotten when that is so much, and more than what still waits."""

EARLY_S = 0.002
"""What is due so soon ends with what is due now: the loop's timers know whole milliseconds."""


class Prefilling(Protocol):
    """What is told that a prefill is over (`router.gateway.reservation`)."""

    def prefill_ended(self) -> None:
        """The prefill is over."""


class PrefillEnds:
    """The prefills of one process that end when predicted.

    Args:
        loop: Runs the timer.
        now_s: Monotonic seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float]) -> None:
        self._loop = loop
        self._now_s = now_s
        self._waiting: dict[str, Prefilling] = {}
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    def expect(self, attempt_id: str, reservation: Prefilling, due_s: float) -> None:
        """Tell a reservation at ``due_s``, monotonic seconds, that the prefill of this attempt is over."""
        self._waiting[attempt_id] = reservation
        heappush(self._heap, (due_s, attempt_id))
        if due_s < self._timer_s:
            self._wait(due_s)
        elif len(self._heap) > 2 * len(self._waiting) + SKIPPED_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapify(self._heap)

    def forget(self, attempt_id: str) -> None:
        """The attempt is over."""
        self._waiting.pop(attempt_id, None)

    def _wait(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_later(max(due_s - self._now_s(), 0.0), self._end_due)

    def _end_due(self) -> None:
        """End what is due, drop what is forgotten, and wait for the next."""
        self._timer, self._timer_s = None, inf
        now_s = self._now_s() + EARLY_S
        heap, waiting = self._heap, self._waiting
        due: list[Prefilling] = []
        while heap and len(due) < ENDED_AT_ONCE and (heap[0][0] <= now_s or heap[0][1] not in waiting):
            reservation = waiting.pop(heappop(heap)[1], None)
            if reservation is not None:
                due.append(reservation)
        if heap:
            self._wait(heap[0][0])
        for reservation in due:
            reservation.prefill_ended()
