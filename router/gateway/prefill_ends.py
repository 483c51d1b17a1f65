"""Predicted ends of prefills that nothing else reports.

The first byte of an answer that is not streamed comes after the decode, so its prefill counts as done at its
predicted end. Most short answers are complete before. So an attempt gets a place in a heap instead of a
timer, and one timer runs for the first due moment.

    expect ──> waiting ──due──> `prefill_ended`
                  └──pop─────> (skipped when due)
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

ENDED_AT_ONCE = 200
"""Prefills ended in one turn of the loop, some milliseconds of work."""

SKIPPED_MAX = 1000
"""The heap is cleared of more forgotten entries than this and than waiting ones."""

EARLY_S = 0.002
"""Prefills due within this time end now: the loop's timers know whole milliseconds."""


class Prefilling(Protocol):
    """A reservation (`router.gateway.reservation`)."""

    def prefill_ended(self) -> None:
        """End the prefill."""


class PrefillEnds:
    """The prefills of one process that end when predicted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float]) -> None:
        self._loop = loop
        self._now_s = now_s
        self.waiting: dict[str, Prefilling] = {}
        """By attempt; pop one that is over."""
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    def expect(self, attempt_id: str, reservation: Prefilling, due_s: float) -> None:
        """End the prefill of an attempt at ``due_s``, monotonic seconds."""
        self.waiting[attempt_id] = reservation
        heappush(self._heap, (due_s, attempt_id))
        if due_s < self._timer_s:
            self._wait(due_s)
        elif len(self._heap) > 2 * len(self.waiting) + SKIPPED_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self.waiting]
            heapify(self._heap)

    def _wait(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_later(max(due_s - self._now_s(), 0.0), self._end_due)

    def _end_due(self) -> None:
        self._timer, self._timer_s = None, inf
        now_s = self._now_s() + EARLY_S
        heap, waiting = self._heap, self.waiting
        due: list[Prefilling] = []
        while heap and len(due) < ENDED_AT_ONCE and (heap[0][0] <= now_s or heap[0][1] not in waiting):
            reservation = waiting.pop(heappop(heap)[1], None)
            if reservation is not None:
                due.append(reservation)
        if heap:
            self._wait(heap[0][0])
        for reservation in due:
            reservation.prefill_ended()
