"""Predicted ends of prefills that nothing else reports.

The first byte of an answer that is not streamed comes after the decode, so its prefill counts as done at its
predicted end. Most short answers are complete before. So an attempt gets a place in a heap instead of a
timer, and one timer runs for the first due moment. The heap holds ids only: a reservation that is over must
not stay in memory until it would have been due.

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
"""The heap is cleared of attempts that are over beyond this, and beyond twice what was left last time."""

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
        self._heap_max = SKIPPED_MAX
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    def expect(self, attempt_id: str, reservation: Prefilling, due_s: float) -> None:
        """End the prefill of an attempt at ``due_s``, monotonic seconds."""
        heap = self._heap
        self.waiting[attempt_id] = reservation
        heappush(heap, (due_s, attempt_id))
        if due_s < self._timer_s:
            self._wait(due_s)
        elif len(heap) > self._heap_max:
            heap[:] = [entry for entry in heap if entry[1] in self.waiting]
            heapify(heap)
            self._heap_max = max(2 * len(heap), SKIPPED_MAX)

    def _wait(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_later(max(due_s - self._now_s(), 0.0), self._end_due)

    def _end_due(self) -> None:
        self._timer, self._timer_s = None, inf
        heap, waiting, now_s = self._heap, self.waiting, self._now_s() + EARLY_S
        due: list[Prefilling] = []
        while heap and heap[0][0] <= now_s:
            _, attempt_id = heappop(heap)
            if attempt_id in waiting:
                due.append(waiting.pop(attempt_id))
                if len(due) == ENDED_AT_ONCE:
                    break
        if heap:
            self._wait(heap[0][0])
        for reservation in due:
            reservation.prefill_ended()
