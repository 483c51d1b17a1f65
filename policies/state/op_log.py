"""The log of operations as decisions see it: this replica, the time, and publishing.

The gateway's own port adds the other replicas (`router.shared.LogPort`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.state.ops import Op


@dataclass(frozen=True, slots=True)
class OpLog:
    """Port of every part that changes the shared state.

    Attributes:
        replica: Id of this replica.
        publish: Applies an operation at once and sends it to the other replicas.
        now_us: Log time.
    """

    replica: str
    publish: Callable[[Op], None]
    now_us: Callable[[], int]
