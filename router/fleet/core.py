"""State, workers and log of one replica, which are passed on together."""

from dataclasses import dataclass, field

from policies import FleetState, turn_of
from router.fleet.registry import Registry
from router.shared import LogPort

TURNS_MAX = 10_000
"""Workers with a cached turn."""


@dataclass(slots=True)
class Core:
    """The fleet at one replica: the state folded from the log, its own view of each worker, and the log."""

    fleet: FleetState
    registry: Registry
    log: LogPort
    _alive: tuple[str, ...] = field(init=False, default=())
    _turns: dict[str, int] = field(init=False, default_factory=dict)

    def turn(self, worker_id: str) -> int:
        """Replicas that come before this one at a worker (`policies.turn_of`)."""
        alive = self.log.replicas()
        if alive != self._alive or len(self._turns) > TURNS_MAX:
            self._alive = alive
            self._turns.clear()
        turn = self._turns.get(worker_id)
        if turn is None:
            turn = self._turns[worker_id] = turn_of(worker_id, self.log.replica, alive)
        return turn
