"""The shared log as its users see it: `policies.OpLog`, and the state of sharing."""

from collections.abc import Callable
from dataclasses import dataclass

from policies import OpLog
from router.shared.config import LogStatus
from router.shared.ports import Publish


@dataclass(frozen=True, slots=True)
class LogPort(OpLog):
    """Access to the log for every part of the gateway that changes the shared state.

    Attributes:
        publish: Takes several operations, too.
        status: State of sharing at this replica now.
        replicas: Ids of the replicas that are alive, this one included: the `status` costs ten times more.
    """

    publish: Publish
    status: Callable[[], LogStatus]
    replicas: Callable[[], tuple[str, ...]]
