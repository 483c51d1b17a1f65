"""The shared log as its users see it: who this replica is, what time it is, who else is there."""

from collections.abc import Callable
from dataclasses import dataclass

from router.shared.config import LogStatus
from router.shared.ports import Publish


@dataclass(frozen=True, slots=True)
class LogPort:
    """What every part that changes the shared state is given.

    Attributes:
        replica: Id of this replica.
        publish: Applies operations at once and appends them to the log.
        now_us: Log time.
        status: How well this replica shares now.
    """

    replica: str
    publish: Publish
    now_us: Callable[[], int]
    status: Callable[[], LogStatus]

    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas that are alive, this one included."""
        return self.status().replicas
