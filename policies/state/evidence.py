"""By what each worker's cache is known: its engine's own events, or history. The newest word wins.

History is what was placed, corrected by answers and bounded by a guess of what fits. A worker whose KV events
are followed without a gap (`router.fleet.kv_events`) needs neither guess nor correction: what the engine
removes, it says. So while it is *exact*

* no bound of its own applies to its blocks in the tree, only the bound on the whole tree;
* a shortfall in an answer's ``cached_tokens`` takes nothing out of the tree: an event does, or will.
"""

from policies.state.ops import Tracked


class Evidence:
    """The registers of a fleet.

    Attributes:
        exact: Slots of the workers that are described by their events.
    """

    __slots__ = ("_known", "exact")

    def __init__(self) -> None:
        self.exact: set[int] = set()
        self._known: dict[str, Tracked] = {}

    def get(self, worker: str) -> Tracked | None:
        """The newest word about a worker; None if it was always known by history."""
        return self._known.get(worker)

    def put(self, op: Tracked, slot: int) -> bool:
        """Take in a word about the worker in a slot. False if a newer one is known."""
        known = self._known.get(op.worker)
        if known is not None and (op.at_us, op.replica) <= (known.at_us, known.replica):
            return False
        self._known[op.worker] = op
        if op.exact:
            self.exact.add(slot)
        else:
            self.exact.discard(slot)
        return True

    def drop(self, worker: str, slot: int, until_us: int) -> None:
        """The worker in a slot was removed: what was said at or before ``until_us`` no longer counts."""
        known = self._known.get(worker)
        if known is not None and known.at_us <= until_us:
            del self._known[worker]
            self.exact.discard(slot)

    def dump(self) -> list[Tracked]:
        """All registers, as the operations that make them."""
        return [self._known[worker] for worker in sorted(self._known)]
