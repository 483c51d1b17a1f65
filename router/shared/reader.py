"""Operations of the others: the log read in order, and our place in it.

    locate --> XREAD BLOCK --> apply --> XREAD BLOCK ...
       ^            |
       `-- gap -----'   the log was trimmed past our position

Entries of this process are skipped, since they were applied when they were published. Everything
else is applied in the order of the log; unknown and invalid operations are counted and
passed over, so that one bad operation never stops a replica. So is an operation whose time is more than a
minute ahead of both our clock and Redis': the newest word counts, and nothing newer would count until then.
Placements that tell the new part of a prompt are completed first (`router.shared.completing_fold`).

A gap cannot be seen in a reply: ids have holes by nature. But the log is only trimmed a margin
behind what was current, so only a reply whose first entry is old can hide one; then the first id
of the log is compared with our position. The entry at our position says whether the log is still the
one we read: if it is gone and no snapshot covers it, Redis was emptied or rolled back, even if entries have
been appended since. After a gap, after such a loss and at the start, the snapshot is merged into the
fold and reading goes on behind it. An entry with a field ``s`` instead of ``o`` asks for the
same: its writer knew things that the log cannot tell (`router.shared.state`).
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from policies import FUTURE_US, Left, said_us
from router.shared.clock import LogClock
from router.shared.completing_fold import CompletingFold
from router.shared.config import Warming
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import LogOp, decode_entry
from router.shared.ports import SharedListener, SkipReason
from router.shared.redis_latency import RedisLatency
from router.shared.server import RedisLink, RedisLost, RedisRefused
from router.shared.snapshot import Snapshot, SnapshotStore
from router.shared.streams import START, StreamId, parse_id, stream_id

logger = logging.getLogger(__name__)

VERSION = b"1"
READ_ENTRIES_MAX = 256
# A reply costs ten times more than an entry in it, so replies are given time to fill. At 2,000 operations
# per second of four replicas, flushes every 4 ms and reads every 6 ms cost 32 us per operation of a sibling
# at a median lag of 6.1 ms, 3 and 4 ms cost 37 us at 4.5 ms (`loadtest.bench.log --duration-s 60`).
READ_INTERVAL_S = 0.004
REFUSED_PAUSE_S = 0.5
# Applying never holds the loop for much longer than this.
SLICE_S = 0.002
# The same bound for merging a snapshot, whose steps take microseconds.
SNAPSHOT_SLICE_S = 0.001
REASON_CHARS_MAX = 200
# Share of the time that a snapshot takes; the rest is merging (`loadtest.bench.snapshots`).
FETCHED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ReaderRules:
    """Settings of a reader.

    Attributes:
        writer: Names this process; its entries are skipped.
        replica: Id of this replica.
        keys: Keys of the namespace.
        margin_s: Part of the log that is kept behind the snapshot, seconds.
        block_s: Longest wait for one reply, seconds.
    """

    writer: bytes
    replica: str
    keys: Keys
    margin_s: float
    block_s: float


class Reader:
    """Reads the log of a namespace into a fold.

    Attributes:
        position: Id of the newest entry that was applied, or covered by a snapshot.
        ready: Set once the log had been read to its end.
        cold: There was no snapshot to begin with, or none that could be used: others know more.
        lag_s: Age of the newest entry of another replica when it was applied; 0 when idle.
        skipped_ops: Operations of others that were not understood or not applied, by reason.
        entries: Entries read.
        gaps: Times that our place in the log was lost.
        marks: Entries of others read that ask to merge the snapshot.
        marked: Id of the newest of them.

    Args:
        rules: Settings of the reader.
        fold: Fold that operations are applied to.
        clock: Log time, for the lag.
        snapshots: Source from which a gap is mended.
        listener: Told about everything.
        on_left: Called for every `Left` in the log, with its writer.
        redis_latency: Told how late a read that found nothing came back; its problems show that Redis refuses
            to be read.
        presence: Told of entries of others; knows whether more are expected.
    """

    def __init__(
        self,
        rules: ReaderRules,
        fold: CompletingFold,
        clock: LogClock,
        snapshots: SnapshotStore,
        listener: SharedListener,
        on_left: Callable[[Left, bytes], None],
        *,
        redis_latency: RedisLatency,
        presence: PeerPresence,
    ) -> None:
        self._writer, self._replica, self._keys = rules.writer, rules.replica, rules.keys
        self._gap_check_us = int(rules.margin_s * 1e6 / 2)
        self._block_s = rules.block_s
        self._fold = fold
        self._clock = clock
        self._snapshots = snapshots
        self._listener = listener
        self._on_left = on_left
        self._redis_latency, self._degraded_reasons = redis_latency, redis_latency.degraded_reasons
        self._presence = presence
        self._target = START
        # The first id of the log when the snapshot was last read: entries before it are not missing.
        self._floor = START
        self.position = START
        # How much of the snapshot has been merged, while it is; and where reading the log began after it.
        self._restored: float | None = None
        self._read_from = START
        self.ready = asyncio.Event()
        self.cold = False
        self.lag_s = 0.0
        self.skipped_ops: Counter[SkipReason] = Counter()
        self._explained: set[type[LogOp]] = set()
        self.entries = 0
        self.gaps = 0
        self.marks = 0
        self.marked = START

    async def locate(self, commands: RedisLink, bulk: RedisLink) -> bool:
        """Find our place in the log; merge the snapshot if it is no longer there.

        Returns:
            False if the entries read are not in the log any more: Redis is new, flushed or rolled back.
        """
        first, last = await self._ends(commands)
        missing = self.position > START and not await self._in_log(self.position, commands)
        lost = missing and not await self._covered(self.position, commands)
        if missing:
            self.gaps += 1
            self._listener.gap()
            logger.warning(
                "Redis lost the part of the log that comes next: this replica reads the snapshot and goes on",
                extra={"event": "log.gap"},
            )
        if lost:
            self.position = START
        if missing or self.position == START:
            # If it is older than the fold, the others will soon tell their requests still in flight.
            await self._reload(bulk, last, missed=True)
            self._floor = first
        self._target = last
        self._read_from = max(first, self.position)
        self._note_ready()
        return not lost

    @property
    def warming(self) -> Warming | None:
        """Part to read before this replica is as warm as the others; None if nothing is left."""
        if self._restored is not None:
            return Warming("snapshot", self._restored)
        if self.ready.is_set():
            return None
        if self._target == START:
            return Warming("connect", 0.0)
        all_ms = self._target[0] - self._read_from[0]
        read_ms = min(max(0, self.position[0] - self._read_from[0]), all_ms)
        return Warming("log", read_ms / all_ms if all_ms else 0.0)

    async def vanished(self, commands: RedisLink) -> bool:
        """True if entries that were read are not in the log any more: Redis was flushed or rolled back."""
        position = self.position  # before asking: it moves on while the answer comes
        if position == START or await self._in_log(position, commands):
            return False
        return not await self._covered(position, commands)

    async def run(self, blocking: RedisLink, commands: RedisLink, bulk: RedisLink) -> None:
        """Read and apply for as long as the session; tries again when Redis refuses.

        Args:
            blocking: A link of its own, whose timeout exceeds ``block_s``.
            commands: For short commands.
            bulk: For reading the snapshot.

        Raises:
            RedisLost: Redis is gone, or the log in it; the position is kept.
        """
        while True:
            try:
                await self._read(blocking, commands, bulk)
                self._degraded_reasons.clear("read")
            except RedisRefused as error:
                self._degraded_reasons.set("read", f"Redis refused to be read: {error}")
                await asyncio.sleep(REFUSED_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _read(self, blocking: RedisLink, commands: RedisLink, bulk: RedisLink) -> None:
        started_s = time.monotonic()
        reply = await blocking.call(
            *("XREAD", "COUNT", READ_ENTRIES_MAX, "BLOCK", int(self._block_s * 1000)),
            *("STREAMS", self._keys.log, stream_id(self.position)),
        )
        if not reply:
            self._redis_latency.measured(started_s, time.monotonic(), self._block_s)
            self.lag_s = 0.0
            self._fold.look()
            return
        entries = reply[0][1]
        if await self._gap_before(parse_id(entries[0][0]), commands):
            if await self.vanished(commands):
                raise RedisLost("the log is gone from Redis")
            await self.locate(commands, bulk)
            return
        await self._apply_entries(entries, bulk)
        if len(entries) < READ_ENTRIES_MAX and not self._presence.alone:
            await asyncio.sleep(self._presence.pause_s(READ_INTERVAL_S))

    async def _apply_entries(self, entries: list[tuple[bytes, list[bytes]]], bulk: RedisLink) -> None:
        """Apply a reply of the log, in slices of `SLICE_S`."""
        first = 0
        while True:
            first, mark = self._apply_slice(entries, first)
            if mark is not None:
                await self._reload(bulk, mark, missed=False)
                self.position = max(self.position, mark)
                self.marks += 1
                self.marked = mark
            if first == len(entries):
                break
            await asyncio.sleep(0)
        self._note_ready()

    def _apply_slice(
        self, entries: list[tuple[bytes, list[bytes]]], first: int
    ) -> tuple[int, StreamId | None]:
        """Apply entries until `SLICE_S` is over, or a mark comes that asks to merge the snapshot.

        Returns:
            Number of the next entry, and the mark's id.
        """
        ends_s, now_us = time.monotonic() + SLICE_S, self._clock.now_us()
        until_us = self._until_us(parse_id(entries[-1][0]))
        heard, applied, mark = False, 0, None
        for number in range(first, len(entries)):
            entry_id, flat = entries[number]
            items = iter(flat)
            fields = dict(zip(items, items, strict=True))
            if fields.get(b"r") != self._writer:
                heard = True
                if b"s" in fields:
                    mark = parse_id(entry_id)
                    break
                applied += self._apply(fields, now_us, until_us)
            if time.monotonic() > ends_s:
                break
        position = parse_id(entry_id)
        if mark is None:
            self.position = max(self.position, position)
        self.entries += number + 1 - first
        if heard:
            self._presence.heard()
            self._fold.look()
            self.lag_s = max(0.0, (self._clock.now_us() - position[0] * 1000) / 1e6)
            self._listener.applied(applied, self.lag_s)
        return number + 1, mark

    def _apply(self, fields: dict[bytes, bytes], now_us: int, until_us: int) -> int:
        """Apply one entry of another replica; return the number of operations. Failures are counted.

        Args:
            fields: Fields of the entry.
            now_us: Log time.
            until_us: Last log time that an operation may have.
        """
        if fields.get(b"v") != VERSION:
            self._skip(1, "unknown_version")
            return 0
        ops, unknown, invalid = decode_entry(fields.get(b"o", b""))
        failed = future = 0
        apply = self._fold.apply
        for op in ops:
            if said_us(op) > until_us:
                future += 1
                continue
            try:
                apply(op, now_us)
                if type(op) is Left:
                    self._on_left(op, fields.get(b"r", b""))
            except Exception as error:  # noqa: BLE001 - after any failed operation, the next is read
                failed += 1
                self._explain(op, error)
        if unknown or invalid or failed or future:
            self._skip(unknown, "unknown_op")
            self._skip(invalid, "invalid")
            self._skip(failed, "failed")
            self._skip(future, "future")
        return len(ops) - failed - future

    def _until_us(self, position: StreamId) -> int:
        """Return the last log time that an operation at a place of the log may have.

        Redis' clock, which the place shows, may be behind or ahead of log time.
        """
        return max(self._clock.now_us(), position[0] * 1000) + FUTURE_US

    def _explain(self, op: LogOp, error: Exception) -> None:
        """Log why an operation was not applied, once for each kind of operation."""
        if type(op) in self._explained:
            return
        self._explained.add(type(op))
        refused = isinstance(error, ValueError)  # else it is a mistake of ours, and its traceback helps
        logger.log(
            logging.WARNING if refused else logging.ERROR,
            "an operation of another replica was not applied",
            exc_info=None if refused else error,
            extra={"event": "log.failed", "op": type(op).__name__, "reason": str(error)[:REASON_CHARS_MAX]},
        )

    def _skip(self, ops: int, reason: SkipReason) -> None:
        if not ops:
            return
        if not self.skipped_ops[reason]:
            logger.warning(
                "operations of another replica are skipped; the metric counts them",
                extra={"event": "log.skipped", "reason": reason},
            )
        self.skipped_ops[reason] += ops
        self._listener.skipped(ops, reason)

    async def _reload(self, bulk: RedisLink, last: StreamId, *, missed: bool) -> None:
        """Merge the snapshot; go on behind it, but never behind the end of the log."""
        try:
            snapshot = await self._snapshots.read(bulk, self._fetched)
            if snapshot is not None and snapshot.head.at_us > self._until_us(last):
                await self._snapshots.refuse(bulk, snapshot.head, "future")
                snapshot = None
            if snapshot is None or not await self._restore(snapshot, bulk, missed):
                self.cold = self.cold or not self.ready.is_set()
                return
        finally:
            self._restored = None
        self.cold = False
        self.position = max(self.position, min(snapshot.head.covered, last))

    def _fetched(self, share: float) -> None:
        self._restored = FETCHED_SHARE * share

    async def _restore(self, snapshot: Snapshot, bulk: RedisLink, missed: bool) -> bool:
        slice_ends_s = time.monotonic() + SNAPSHOT_SLICE_S
        steps = self._fold.restore_steps(snapshot.pieces, self._replica, missed=missed)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                self._skip(end.value or 0, "invalid")
                self._listener.snapshot_merged()
                return True
            except Exception as error:  # noqa: BLE001 - after any bytes, the log is read on
                reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                await self._snapshots.refuse(bulk, snapshot.head, "unreadable", reason)
                return False
            if time.monotonic() > slice_ends_s:
                self._restored = FETCHED_SHARE + (1 - FETCHED_SHARE) * progress
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SNAPSHOT_SLICE_S

    async def _gap_before(self, first_read: StreamId, commands: RedisLink) -> bool:
        if self._clock.now_us() - first_read[0] * 1000 < self._gap_check_us or self.position == START:
            return False
        first, _ = await self._ends(commands)
        return self._trimmed_past(first)

    async def _in_log(self, position: StreamId, commands: RedisLink) -> bool:
        at = stream_id(position)
        return bool(await commands.call("XRANGE", self._keys.log, at, at, "COUNT", 1))

    async def _covered(self, position: StreamId, commands: RedisLink) -> bool:
        head = await self._snapshots.head(commands)
        return head is not None and head.covered >= position

    def _trimmed_past(self, first: StreamId) -> bool:
        return first > max(self.position, self._floor)

    async def _ends(self, commands: RedisLink) -> tuple[StreamId, StreamId]:
        """First and last id in the log; `START` twice if it is empty."""
        replies = await commands.calls(
            ("XRANGE", self._keys.log, "-", "+", "COUNT", 1),
            ("XREVRANGE", self._keys.log, "+", "-", "COUNT", 1),
        )
        first, last = (parse_id(entries[0][0]) if entries else START for entries in replies)
        return first, last

    def _note_ready(self) -> None:
        if self.position >= self._target:
            self.ready.set()
