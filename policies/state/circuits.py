"""The circuits of all workers, as the log says.

Kept are also the closed ones, since an older word may still come; they go with their worker. What
moves a circuit is decided in `policies.state.breaker`.
"""

from policies.state.ops import Circuit, CircuitSet
from policies.state.registers import WorkerRegisters


class Circuits(WorkerRegisters[CircuitSet]):
    """The circuit registers of a fleet.

    Attributes:
        tripped: Those that are not closed, by slot: empty while there is no trouble.
    """

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
