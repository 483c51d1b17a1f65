"""Virtual time: a heap of calls, and a now that jumps from one to the next.

It is the part of an event loop that the modelled engines need (`loadtest.engine`). Calls for one moment are
made in the order in which they were scheduled, so a run depends on nothing but its input.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Call = Callable[[], object]


class VirtualTimer:
    """A call that has not been made yet."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    def cancel(self) -> None:
        """Do not call. Too late or twice is harmless."""
        self._call = None

    def take(self) -> Call | None:
        """Call to make now; None if it was cancelled."""
        call, self._call = self._call, None
        return call


class VirtualClock:
    """Seconds since the start of a simulation; ``events`` counts the calls made."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._heap: list[tuple[float, int, VirtualTimer]] = []
        self._asked = 0
        self.events = 0

    def time(self) -> float:
        """Now, in seconds."""
        return self._now_s

    def call_at(self, when: float, callback: Call, /) -> VirtualTimer:
        """Call at a time, or at once, behind the calls already due, if that has passed."""
        timer = VirtualTimer(callback)
        heappush(self._heap, (max(when, self._now_s), self._asked, timer))
        self._asked += 1
        return timer

    def call_later(self, delay_s: float, callback: Call, /) -> VirtualTimer:
        """Call ``delay_s`` from now."""
        return self.call_at(self._now_s + delay_s, callback)

    def __len__(self) -> int:
        """Calls to come, with those that were cancelled but whose time has not come."""
        return len(self._heap)

    def run(self) -> None:
        """Make all calls, including those that are asked for meanwhile."""
        heap = self._heap
        while heap:
            when, _, timer = heappop(heap)
            call = timer.take()
            if call is not None:  # what was cancelled moves no time
                self._now_s = when
                self.events += 1
                call()
