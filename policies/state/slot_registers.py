"""Registers of workers with state by slot: circuits, sources of cache contents, reports of load.

**Circuits** as the log has them; `policies.state.breaker` decides their moves. Closed ones are kept too,
since an older operation may still come.

**Evidence** is the source of a worker's cache contents: its engine's own events, or history. History is the
placements, corrected by answers and bounded by a guess of the capacity. A worker whose KV events are followed
without a gap (`router.fleet.kv_events`) needs neither: its engine reports removals. While it is *exact*

* no bound of its own applies to its blocks in the tree, only the bound on the whole tree;
* a shortfall in an answer's ``cached_tokens`` takes nothing out of the tree: an event does, or will.

**Reports.** An engine knows of requests from elsewhere, and counts tokens in shared prefixes once. A report
is old when it is read, so it is kept as a difference to the requests in flight at that moment as the asking
replica knew, and holds for those in flight now:

    foreign requests = running + waiting - in flight then, at least 0
    tokens held now  = held then + (in flight now - in flight then)
"""

from math import inf

import numpy as np

from policies.state.load_rows import numbers
from policies.state.loads import Whole
from policies.state.ops import Circuit, CircuitSet, Reported, Tracked
from policies.state.registers import WorkerRegisters

NEVER_US = -(2.0**62)
"""Report time of a worker that was never asked."""


class Circuits(WorkerRegisters[CircuitSet]):
    """Registers of the circuits; ``tripped`` has those that are not closed, by slot."""

    __slots__ = ("tripped",)

    def __init__(self) -> None:
        super().__init__(CircuitSet)
        self.tripped: dict[int, CircuitSet] = {}

    def _taken(self, op: CircuitSet, slot: int) -> None:
        if op.state is Circuit.CLOSED:
            self.tripped.pop(slot, None)
        else:
            self.tripped[slot] = op

    def _dropped(self, slot: int) -> None:
        self.tripped.pop(slot, None)


class Evidence(WorkerRegisters[Tracked]):
    """Registers of the sources; ``exact`` has the slots of workers described by their events."""

    __slots__ = ("exact",)

    def __init__(self) -> None:
        super().__init__(Tracked)
        self.exact: set[int] = set()

    def _taken(self, op: Tracked, slot: int) -> None:
        if op.exact:
            self.exact.add(slot)
        else:
            self.exact.discard(slot)

    def _dropped(self, slot: int) -> None:
        self.exact.discard(slot)


class Reports(WorkerRegisters[Reported]):
    """The newest report of each worker; all columns are by slot.

    Attributes:
        at_us: Log time of the newest report; `NEVER_US` without one.
        foreign_requests: Requests beside those in flight there, >= 0.
        extra_tokens: Added to the tokens in flight to get those held; -inf if unknown.
        running_max: Most requests it runs at a time; +inf if unknown.
        running_max_revision: Counts changes of ``running_max``.
        newest_us: Log time of the newest report of any worker; `NEVER_US` without one.
    """

    def __init__(self) -> None:
        super().__init__(Reported)
        self.running_max_revision = 0
        self.newest_us: float = NEVER_US
        self.at_us: Whole = np.full(8, NEVER_US)
        self.said_us_at = numbers(self.at_us)
        """``at_us``, to read single numbers."""
        self.foreign_requests: Whole = np.zeros(8)
        self.extra_tokens: Whole = np.full(8, -inf)
        self.running_max: Whole = np.full(8, inf)

    def ensure(self, slot: int) -> None:
        """Make room for a slot."""
        rows = len(self.at_us)
        if slot < rows:
            return
        added = max(slot + 1, 2 * rows) - rows
        self.at_us = np.append(self.at_us, np.full(added, NEVER_US))
        self.said_us_at = numbers(self.at_us)
        self.foreign_requests = np.append(self.foreign_requests, np.zeros(added))
        self.extra_tokens = np.append(self.extra_tokens, np.full(added, -inf))
        self.running_max = np.append(self.running_max, np.full(added, inf))

    def _taken(self, op: Reported, slot: int) -> None:
        self.at_us[slot] = op.at_us
        self.newest_us = max(self.newest_us, op.at_us)
        present = max(op.running, 0) + max(op.waiting, 0)
        self.foreign_requests[slot] = max(present - op.inflight_requests, 0)
        self.extra_tokens[slot] = op.kv_tokens - op.inflight_tokens if op.kv_tokens >= 0 else -inf
        running_max = float(op.running_max) if op.running_max > 0 else inf
        if running_max != self.running_max[slot]:
            self.running_max[slot] = running_max
            self.running_max_revision += 1

    def _dropped(self, slot: int) -> None:
        self.at_us[slot] = NEVER_US
        self.foreign_requests[slot] = 0
        self.extra_tokens[slot] = -inf
        self.running_max[slot] = inf
        self.running_max_revision += 1
