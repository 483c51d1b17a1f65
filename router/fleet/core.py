"""State, workers and log of one replica, which are passed on together."""

from dataclasses import dataclass

from policies import FleetState
from router.fleet.registry import Registry
from router.shared import LogPort


@dataclass(frozen=True, slots=True)
class Core:
    """The fleet at one replica: the state folded from the log, its own view of each worker, and the log."""

    fleet: FleetState
    registry: Registry
    log: LogPort
