"""The shared log, snapshots and heartbeats on Redis."""

from router.shared.clock import LogClock
from router.shared.embedded import EmbeddedValkey
from router.shared.ports import Fold, NoListener, SharedListener, SkipReason

__all__ = ["EmbeddedValkey", "Fold", "LogClock", "NoListener", "SharedListener", "SkipReason"]
