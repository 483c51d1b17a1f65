"""Parts that the shared log needs from its owner: a fold to apply to, and a listener to tell.

The payload is opaque here. `policies.FleetState` is the fold; the listener turns events into
metrics. All calls are synchronous, on the event loop, and must be quick.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from policies import LoadPort, Op

SkipReason = Literal["unknown_version", "unknown_op", "invalid", "failed", "future", "unencodable"]
"""Reasons to skip an operation: a newer version wrote it, its bytes or values are wrong, the fold refused
it, its time has not come, or a snapshot left it out since it cannot be encoded."""

RefusalReason = Literal["version", "incomplete", "damaged", "unreadable", "future"]
"""Reasons to refuse a snapshot: its version is another, a piece is missing, its bytes are not the ones
written, the fold cannot read them, or its time has not come."""


class Fold(Protocol):
    """The state that is folded from the log."""

    def apply(self, op: Op, /) -> None:
        """Apply one operation. Order and repetition do not matter."""

    @property
    def handlers(self) -> Mapping[type, Callable[[Any], object]]:
        """The fold by type of operation: what `apply` calls."""

    @property
    def load_reports(self) -> LoadPort:
        """Load in flight here."""

    @property
    def snapshot_version(self) -> int:
        """Format of the snapshots written and read here; another is not even tried."""

    def snapshot_steps(self) -> Iterator[bytes | None]:
        """Encode the whole state, in pieces well under a megabyte; None where there is none yet.

        Operations may be applied between two steps, each of which takes microseconds. Operations that were
        applied before the first step are in it.
        """

    def digests(self) -> Mapping[int, list[int]]:
        """Digest of each kind of register by tag: all values since this was last asked, the present one last.

        Equal where the same words are known (`policies.state.digests`).
        """

    def words(self, tags: Collection[int], /) -> Iterator[Op]:
        """All that is known of some kinds of register, as operations."""

    @property
    def left_out_ops(self) -> int:
        """Operations that snapshots left out so far, since they could not be encoded."""

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, /, *, missed: bool
    ) -> Generator[float, None, int]:
        """Merge a snapshot into the state: as if all operations behind it had been applied.

        Operations may be applied between two steps. Yields the progress, 0 to 1. Returns the number of
        operations in it that were skipped.

        Args:
            pieces: Pieces that `snapshot_steps` gave.
            own: Id of this replica, which knows its own requests best.
            missed: Part of the log was not read, and reading goes on where the snapshot ends.

        Raises:
            ValueError: The snapshot cannot be read; nothing was changed.
        """


class Publish(Protocol):
    """Changes the shared state."""

    def __call__(self, op: Op, *more: Op) -> None:
        """Apply operations at once and tell the other replicas; all of them, or none (`OpRefused`)."""


class SharedListener(Protocol):
    """Hears events, for metrics."""

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        """One entry was appended to the log."""

    def applied(self, ops: int, lag_s: float) -> None:
        """Operations of others were applied, the newest entry this long after it was appended."""

    def skipped(self, ops: int, reason: SkipReason) -> None:
        """Operations of other replicas were not applied."""

    def dropped(self, ops: int) -> None:
        """Own operations were dropped because the outgoing buffer was full."""

    def degraded(self, reason: str | None) -> None:
        """Redis does not do its work, for this reason; None: it does again."""

    def gap(self) -> None:
        """The log had been trimmed past our position, or was lost: the snapshot was read again."""

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        """This replica wrote the snapshot."""

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        """This replica restored the snapshot."""

    def snapshot_merged(self) -> None:
        """The content of a snapshot is in the fold."""

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """There is a snapshot, but this replica cannot use it."""

    def replica_left(self, replica: str) -> None:
        """A sibling's heartbeat expired and this replica said so in the log."""


class NoListener:
    """Hears nothing."""

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        """Ignore."""

    def applied(self, ops: int, lag_s: float) -> None:
        """Ignore."""

    def skipped(self, ops: int, reason: SkipReason) -> None:
        """Ignore."""

    def dropped(self, ops: int) -> None:
        """Ignore."""

    def degraded(self, reason: str | None) -> None:
        """Ignore."""

    def gap(self) -> None:
        """Ignore."""

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        """Ignore."""

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        """Ignore."""

    def snapshot_merged(self) -> None:
        """Ignore."""

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """Ignore."""

    def replica_left(self, replica: str) -> None:
        """Ignore."""
