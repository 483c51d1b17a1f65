"""The circuits of all workers, as the log says: a register per worker, where the newest word wins.

Kept are also the closed ones, since an older word may still come; they go with their worker. What
moves a circuit is decided in `policies.state.breaker`.
"""

from policies.state.ops import Circuit, CircuitSet


class Circuits:
    """The circuit registers of a fleet.

    Attributes:
        tripped: Those that are not closed, by slot: empty while there is no trouble.
        revision: Counts changes.
    """

    __slots__ = ("_known", "revision", "tripped")

    def __init__(self) -> None:
        self.tripped: dict[int, CircuitSet] = {}
        self.revision = 0
        self._known: dict[str, CircuitSet] = {}

    def get(self, worker: str) -> CircuitSet | None:
        """The state of a worker's circuit; None if it was always closed."""
        return self._known.get(worker)

    def set(self, op: CircuitSet, slot: int) -> bool:
        """Take in a word about the worker in a slot. False if a newer one is known."""
        known = self._known.get(op.worker)
        if known is not None and (op.at_us, op.replica) <= (known.at_us, known.replica):
            return False
        self._known[op.worker] = op
        self.revision += 1
        if op.state is Circuit.CLOSED:
            self.tripped.pop(slot, None)
        else:
            self.tripped[slot] = op
        return True

    def drop(self, worker: str, slot: int, until_us: int) -> None:
        """The worker in a slot was removed: what was said at or before ``until_us`` no longer counts."""
        known = self._known.get(worker)
        if known is not None and known.at_us <= until_us:
            del self._known[worker]
            self.tripped.pop(slot, None)
            self.revision += 1

    def dump(self) -> list[CircuitSet]:
        """All registers, as the operations that make them."""
        return [self._known[worker] for worker in sorted(self._known)]
