"""Counts what goes through the shared log, and wakes those who wait for news."""

from collections.abc import Callable

from router.shared import NoListener, RefusalReason


class LogListener(NoListener):
    """Counts operations and refused snapshots for the metrics.

    ``changed`` is called when operations of others were applied, or a snapshot was merged.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.published_ops = 0
        self.applied_ops = 0
        self.snapshots_refused = 0

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        """Count what this replica appended."""
        self.published_ops += ops

    def applied(self, ops: int, lag_s: float) -> None:
        """Count what others appended; it may let a request go that waits here."""
        self.applied_ops += ops
        self._changed()

    def snapshot_merged(self) -> None:
        """All may be new."""
        self._changed()

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """Count what was of no use; the log line says why."""
        self.snapshots_refused += 1
