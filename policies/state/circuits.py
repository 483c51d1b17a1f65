"""The circuits of all workers, as the log has them; `policies.state.breaker` decides their moves.

Closed ones are kept too, since an older operation may still come; they go with their worker.
"""

from policies.state.ops import Circuit, CircuitSet
from policies.state.registers import WorkerRegisters


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
