"""The log of operations as those who decide see it: who this replica is, what time it is, whom it tells.

The gateway's own port adds who else is there (`router.shared.LogPort`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.state.ops import Op


@dataclass(frozen=True, slots=True)
class OpLog:
    """What every part that changes the shared state is given.

    Attributes:
        replica: Id of this replica.
        publish: Applies an operation at once and tells the other replicas.
        now_us: Log time.
    """

    replica: str
    publish: Callable[[Op], None]
    now_us: Callable[[], int]
