"""The shared log, snapshots and heartbeats on Redis."""

from router.shared.clock import LogClock
from router.shared.config import LogStatus, SharedConfig, Warming
from router.shared.embedded import EmbeddedValkey
from router.shared.ports import Fold, NoListener, RefusalReason, SharedListener, SkipReason
from router.shared.state import SharedState

__all__ = [
    "EmbeddedValkey",
    "Fold",
    "LogClock",
    "LogStatus",
    "NoListener",
    "RefusalReason",
    "SharedConfig",
    "SharedListener",
    "SharedState",
    "SkipReason",
    "Warming",
]
