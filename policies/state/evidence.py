"""Source of each worker's cache contents: its engine's own events, or history.

History is the placements, corrected by answers and bounded by a guess of the capacity. A worker whose KV
events are followed without a gap (`router.fleet.kv_events`) needs neither guess nor correction: its engine
reports removals. While it is *exact*

* no bound of its own applies to its blocks in the tree, only the bound on the whole tree;
* a shortfall in an answer's ``cached_tokens`` takes nothing out of the tree: an event does, or will.
"""

from policies.state.ops import Tracked
from policies.state.registers import WorkerRegisters


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
