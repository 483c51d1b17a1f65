"""Sees to it that Redis holds a snapshot from which a newcomer can start.

Every replica looks once a second. A replica that finds one due and gets the lease writes it:

    too old, or too much log behind it           the ordinary case; a slow snapshot is written half of the
                                                 time at most, unless the log grows too fast
    Redis lost what we knew, or we had to drop   written at once, with a mark in the log that makes the
    operations of our own                        others merge it: the log does not tell what is in it
    unsound, or of an older version              by a warm replica at once; one that could not start from
                                                 it either leaves that to replicas that know more
    none yet                                     after one interval, so that a survivor comes first
    of a newer version                           left to replicas that can read it (roll-out), unless they
                                                 have written none for `ABANDONED_S`
    of the future                                replaced: no clock of a replica is ahead by `FUTURE_S`

A replica that waits for prompts which it asked for (`router.shared.placed_forms`) leaves the snapshot to
others for up to `HOLD_S`: a newcomer would start behind those placements and never learn their prompts.

One survivor's mark is enough for all: a replica that has merged it need not write its own. But only a mark
that is newer than all that this replica wrote or read of the lost log: an older one is of an earlier loss,
and lacks the later operations of this replica, as on the old primary of a split brain.
"""

import contextlib
import time
from collections.abc import Callable

from router.shared.clock import LogClock
from router.shared.ports import Fold
from router.shared.publisher import ENTRIES_MAX as LOG_ENTRIES_MAX
from router.shared.publisher import Publisher
from router.shared.reader import Reader
from router.shared.server import RedisLink, RedisRefused
from router.shared.snapshot import SnapshotHead, SnapshotStore
from router.shared.streams import StreamId

# A newcomer applies an entry of two or three operations in some 50 us on a busy core (`Reader`, 2,000
# operations per second of four replicas), so this is two seconds of its work.
ENTRIES_MAX = 40_000

HURRY_ENTRIES = LOG_ENTRIES_MAX // 8
"""Entries behind a snapshot that make the next one due at once, and let it be written without pauses: Redis
drops what is older than `LOG_ENTRIES_MAX`, whether or not a snapshot has it. Between two snapshots come this
many entries and those of writing both."""

ABANDONED_S = 600.0
"""Age at which a snapshot of a newer version that no replica has replaced has no readers: the upgrade was
rolled back, or it is no snapshot at all. Meanwhile the log is not trimmed."""

FUTURE_S = 60.0
"""A snapshot that claims to be so far ahead of log time would never be due."""


TOOK_S_MAX = 120
"""Longest time to write that counts: a clock that was set meanwhile holds up no snapshot for long."""

HOLD_S = 5.0
"""Answers take milliseconds. A snapshot that is due waits no longer for them."""


class SnapshotKeeper:
    """Writes the snapshot when it is due.

    Args:
        interval_s: Age at which the snapshot is replaced, in seconds.
        clock: Log time.
        fold: State that is written.
        store: Store of snapshots.
        reader: Knows our place in the log.
        publisher: Sends the operations that the snapshot includes, and knows the dropped ones.
        waits: True if the fold lacks prompts that were asked for.
        hold_s: Seconds for which a snapshot that is due waits for them at most.

    Attributes:
        at_us: Log time of the newest snapshot that was seen; None if there is none.
        wrote_us: Log time of the newest one that this replica wrote; None if it wrote none.
    """

    def __init__(
        self,
        interval_s: float,
        clock: LogClock,
        fold: Fold,
        store: SnapshotStore,
        reader: Reader,
        publisher: Publisher,
        waits: Callable[[], bool] = lambda: False,
        hold_s: float = HOLD_S,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._fold = fold
        self._store = store
        self._reader = reader
        self._publisher = publisher
        self._waits, self._hold_s = waits, hold_s
        self._held_since_s: float | None = None
        self._connected_s = 0.0
        self._entries = 0
        self._took_s = 0
        self._told_dropped = 0
        self._refill_after: StreamId | None = None
        self.at_us: int | None = None
        self.wrote_us: int | None = None

    def connected(self) -> None:
        """A session with Redis begins."""
        self._connected_s = time.monotonic()

    def refill(self, known: StreamId) -> None:
        """Redis lost entries that we knew.

        Args:
            known: Newest entry of the lost log that this replica wrote or read. A mark that is newer makes a
                snapshot of ours unnecessary.
        """
        self._refill_after = known

    async def look(self, commands: RedisLink, bulk: RedisLink) -> bool:
        """Look at the snapshot, and write the next one if it is due.

        Args:
            commands: For short commands.
            bulk: For large values.

        Returns:
            False if the snapshot that we knew is gone from Redis.

        Raises:
            StateError: Redis is gone, or refused it.
        """
        head = await self._store.head(commands)
        if head is None and self.at_us is not None:
            self.at_us = None
            self.refill(self._reader.position)
            return False
        if head is None or head.at_us != self.at_us:
            if head is not None and self.at_us is not None:  # as seen: another replica has just written it
                self._took(head.at_us)
            self.at_us = head.at_us or None if head else None
            self._entries = self._reader.entries
        if self._refill_after is not None and self._reader.marked > self._refill_after:
            self._refill_after = None  # another survivor was first; the fold has merged its snapshot
        if self._due(head) and not self._held() and await self._store.acquire(commands):
            await self._write(commands, bulk)
        return True

    def _held(self) -> bool:
        """True if a snapshot that is due should wait a moment."""
        if not self._waits():
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        return now_s - self._held_since_s < self._hold_s

    @property
    def _needs_mark(self) -> bool:
        return self._refill_after is not None or self._publisher.dropped_ops > self._told_dropped

    def _due(self, head: SnapshotHead | None) -> bool:
        version = self._fold.snapshot_version
        age_s = 0.0 if head is None else (self._clock.now_us() - head.at_us) / 1e6
        future = age_s < -FUTURE_S
        if head is not None and head.version > version and not (future or age_s > ABANDONED_S):
            return False
        if self._needs_mark:
            return True
        connected_long = time.monotonic() - self._connected_s >= self._interval_s
        if head is None:
            return connected_long
        if head.version != version or not head.sound or future:
            return connected_long or not self._reader.cold
        entries = self._reader.entries - self._entries
        if entries >= HURRY_ENTRIES:
            return True
        return age_s >= 2 * self._took_s and (age_s >= self._interval_s or entries >= ENTRIES_MAX)

    def _took(self, at_us: int) -> None:
        """Note how many seconds a snapshot took that began at a log time and has just been written."""
        self._took_s = min(max(self._clock.now_us() - at_us, 0) // 1_000_000, TOOK_S_MAX)

    async def _write(self, commands: RedisLink, bulk: RedisLink) -> None:
        dropped, mark = self._publisher.dropped_ops, self._needs_mark
        covered, entries, at_us = self._reader.position, self._reader.entries, self._clock.now_us()

        async def flush() -> None:
            with contextlib.suppress(RedisRefused):  # out of memory: the snapshot frees it
                await self._publisher.flush(commands)

        steps = self._fold.snapshot_steps()

        def hurries() -> bool:
            return self._reader.entries - entries >= HURRY_ENTRIES

        written = await self._store.write(bulk, covered, at_us, steps, flush, mark=mark, hurries=hurries)
        if written is None:
            return
        self._took(at_us)
        if mark:
            self._told_dropped, self._refill_after = dropped, None
        self.at_us, self._entries = at_us, entries
        self.wrote_us = at_us
