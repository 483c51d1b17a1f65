"""Times at which a replica tells the others its load in flight (`policies.LoadVector`).

    a first token, an end   within `INTERVAL_S`, with the flush that is due then
      while requests wait   with the next flush: they wait for the room that it made
      alone                 within `ALONE_S`: a newcomer begins with the last vector
    nothing, or placements  all again each `FULL_S`, as long as anything is in flight
    a vector may be lost    all, as soon as possible

A vector is made when its entry goes out, and comes last in it: it includes every placement before it. None is
kept for later: the next one knows better. The owner brings clocks and timers.
"""

from collections.abc import Callable
from typing import Protocol

from policies.state.ops import LoadVector, Op

INTERVAL_S = 0.04
"""25 a second. One costs each reader some 5 us and 2.5 a row (`loadtest.bench.log_forms --vectors`); its
content is as late as this."""

ALONE_S = 1.0
EARLY_S = 0.001
"""A flush so much before a vector is due takes it along; so does a timer that fires early."""

FULL_S = 2.0
"""A vector that is lost unnoticed is mended then. At 1,000 busy workers it is 60 KB, 30 us to read."""


class LoadPort(Protocol):
    """Load of a replica in flight, and the part that it tells the others (`policies.state.load_reports`)."""

    @property
    def due(self) -> bool:
        """True if something changed since the last vector."""

    @property
    def urgent(self) -> bool:
        """True if others may wait for the changes."""

    def tells(self, op: Op, /) -> bool:
        """True if an own operation, not yet applied, must be told; else the next vector tells it."""

    def vector(self, now_us: int, /, *, full: bool) -> LoadVector:
        """Return the load in flight at a log time: all, or the changes since the last vector."""


class LoadVectors:
    """The vectors of one replica.

    Args:
        loads: Makes them.
        now_us: Log time.
        alone: True while no other replica is there.
        monotonic_s: A clock in seconds; its zero does not matter.
    """

    def __init__(
        self,
        loads: LoadPort,
        now_us: Callable[[], int],
        alone: Callable[[], bool],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._loads, self._now_us, self._alone = loads, now_us, alone
        self._monotonic_s = monotonic_s
        self._told_s = self._full_s = monotonic_s() - FULL_S
        self._lost = True
        self._told_any = False
        self._closed = False

    def close(self) -> None:
        """Tell no more: this replica leaves."""
        self._closed = True

    def lost(self) -> None:
        """Tell everything next: earlier vectors may not have reached all replicas."""
        self._lost = True

    def wait_s(self) -> float | None:
        """Seconds until the next vector is due, 0 if it is; None if there is nothing to tell."""
        now_s = self._monotonic_s()
        again = self._told_any and (self._lost or now_s - self._full_s >= FULL_S)
        if self._closed or not (again or self._loads.due):
            return None
        if self._loads.urgent or (again and self._lost):
            return 0.0
        interval_s = ALONE_S if self._alone() else INTERVAL_S
        return max(0.0, self._told_s + interval_s - now_s)

    def take(self) -> LoadVector | None:
        """Return the vector that is due now; None if none is."""
        wait_s = self.wait_s()
        if wait_s is None or wait_s > EARLY_S:
            return None
        now_s = self._monotonic_s()
        full = self._lost or now_s - self._full_s >= FULL_S
        vector = self._loads.vector(self._now_us(), full=full)
        if not full and not vector.workers:
            self._told_any = True  # placements alone, which are told themselves
            return None
        self._told_s = now_s
        self._lost = False
        if full:
            self._full_s = now_s
        self._told_any = bool(vector.workers) or (self._told_any and not full)
        return vector
