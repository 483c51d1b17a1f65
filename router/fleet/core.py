"""What a replica knows of its fleet and changes in it: state, workers and log, which belong together."""

from dataclasses import dataclass

from policies import FleetState
from router.fleet.registry import Registry
from router.shared import LogPort


@dataclass(frozen=True, slots=True)
class Core:
    """The state of the fleet at one replica.

    Attributes:
        fleet: What all replicas know, folded from the log.
        registry: This replica's side of each worker: connections, health, circuit.
        log: Where changes are published.
    """

    fleet: FleetState
    registry: Registry
    log: LogPort
