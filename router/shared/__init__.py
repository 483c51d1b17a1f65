"""The shared log, snapshots and heartbeats on Redis."""

from router.shared.clock import LogClock
from router.shared.config import LogStatus, SharedConfig
from router.shared.embedded import EmbeddedValkey
from router.shared.ports import Fold, NoListener, SharedListener, SkipReason
from router.shared.state import SharedState

__all__ = [
    "EmbeddedValkey",
    "Fold",
    "LogClock",
    "LogStatus",
    "NoListener",
    "SharedConfig",
    "SharedListener",
    "SharedState",
    "SkipReason",
]
