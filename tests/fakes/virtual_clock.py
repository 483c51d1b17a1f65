"""Time that passes on command."""

import heapq
from collections.abc import Callable


class VirtualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """The part of an event loop that a scheduler needs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._order = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, timer))
        return timer

    def run(self, until_s: float = float("inf")) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self.now_s = max(self.now_s, when)
                self.calls += 1
                timer.callback()
        if until_s < float("inf"):
            self.now_s = max(self.now_s, until_s)
