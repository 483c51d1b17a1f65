"""Snapshots: they keep the log short, and make a new replica warm.

    cw:{ns}:snap          the head, a hash: v format version, id stream id up to which everything is included,
                          at log time of writing, r writer, name of the pieces, n their number,
                          size bytes, sum xxh3 of them all, bad once a replica could not use them,
                          mark stream id of the entry that asks all to merge it, if one does
    cw:{ns}:snap:{name}   the pieces, a hash by number; each well under a megabyte, so that
                          none holds up Redis, and all others in its queue

A snapshot is written while the process serves: `Fold.snapshot_steps` in slices of a millisecond,
with pauses, each piece as soon as it is there. All of it is fenced by the lease:

    lease (SET NX PX) -> steps, piece: still mine? HSET, EXPIRE, extend the lease -> ...
                      -> flush own operations
                      -> still mine? point the head to the pieces, trim the log, give the lease back

Own operations go to the log first, since newcomers would know them and the others never would, should
the writer die. A replica that has not yet read the log covered by the snapshot before, or its mark, does not
replace it, unless the log has never come that far: then the head is wrong, and no replica will ever have read
it.

The head does not point to the new pieces before all are there, and the old ones stay for `GRACE_S`, so
that their readers may finish. A writer that dies leaves pieces and a lease that expire; one
that was paused finds its lease gone and changes nothing, so an old snapshot never replaces a newer one.
The log keeps `TRIM_MARGIN_S` behind the snapshot, so that a replica which is a few seconds late finds
its place. The scripts run even when Redis is out of memory (``allow-oom``, Redis 7): a snapshot frees
memory. And they trim without a limit (``LIMIT 0``): Redis would take no more than 10,000 entries away, fewer
than may come until the next one.

An unusable snapshot is *refused*: one log line, one count, and a mark on the head, on which a warm
replica writes the next one at once. A snapshot of a newer version is left to replicas that can read it.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import xxhash

from router.shared.keys import Keys
from router.shared.ports import RefusalReason, SharedListener
from router.shared.server import RedisLink, RedisRefused
from router.shared.streams import START, StreamId, parse_id, stream_id

logger = logging.getLogger(__name__)

LEASE_S = 10.0
TRIM_MARGIN_S = 10.0
PIECES_TTL_S = 60.0
"""Lifetime of pieces that no head points to, after the last was written."""

GRACE_S = 10.0
"""Time that the pieces of the snapshot before are kept; reading takes a second or two."""

SNAPSHOT_BYTES_MAX = 1 << 30
"""A longer one is not read: eight million blocks are some 100 MB."""

READ_ATTEMPTS = 3
"""Times that reading begins again because the snapshot was replaced meanwhile."""

SLICE_S = 0.001
"""A step of the fold takes microseconds; so long is stepped before others get their turn."""

PAUSE_S = 0.002
"""Between two slices of writing, so that it takes a third of a core at most."""

_ACQUIRE = """#!lua flags=allow-oom
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then redis.call('DEL', KEYS[1]) holder = false end
if holder and holder ~= ARGV[1] and redis.call('PTTL', KEYS[1]) > 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_PUT = """#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1
"""

_POINT = """#!lua flags=allow-oom
local function before(one, other)
  local ms, seq = one:match('^(%d+)-(%d+)$')
  local other_ms, other_seq = other:match('^(%d+)-(%d+)$')
  if not other_ms then return false end
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms < other_ms or (ms == other_ms and tonumber(seq) < tonumber(other_seq))
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[6]) then return 0 end
local known = redis.pcall('HMGET', KEYS[2], 'v', 'id', 'mark', 'bad')
if known[1] == ARGV[2] and known[2] and not known[4] then
  local last, stream = '0-0', redis.pcall('XINFO', 'STREAM', KEYS[3])
  for at = 1, #stream, 2 do
    if stream[at] == 'last-generated-id' then last = stream[at + 1] end
  end
  for _, id in ipairs({known[2], known[3] or known[2]}) do
    if before(ARGV[3], id) and not before(last, id) then return 0 end
  end
end
redis.call('PEXPIRE', KEYS[5], ARGV[9])
redis.call('PERSIST', KEYS[4])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'r', ARGV[1], 'v', ARGV[2], 'id', ARGV[3], 'at', ARGV[4], 'name', ARGV[5],
  'n', ARGV[6], 'size', ARGV[7], 'sum', ARGV[8])
if ARGV[11] == '1' then
  redis.call('HSET', KEYS[2], 'mark', redis.call('XADD', KEYS[3], '*', 'v', '1', 'r', ARGV[1], 's', ARGV[4]))
end
redis.call('XTRIM', KEYS[3], 'MINID', '~', ARGV[10], 'LIMIT', 0)
return 1
"""

_CONDEMN = """#!lua flags=allow-oom
if redis.call('HGET', KEYS[1], 'name') ~= ARGV[1] then return 0 end
return redis.call('HSET', KEYS[1], 'bad', '1')
"""


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Description of a snapshot, known without reading it.

    Attributes:
        version: Format of the pieces; these first three fields keep their meaning in every version.
        covered: Everything in the log up to this id is included.
        at_us: Log time at which writing began.
        name: Name of its pieces; empty if it is of another version.
        pieces: Their number.
        size_bytes: Size of all pieces together.
        checksum: xxh3 of all pieces, hexadecimal.
        sound: Its pieces are all there, and no replica has refused it.
    """

    version: int
    covered: StreamId
    at_us: int
    name: str = ""
    pieces: int = 0
    size_bytes: int = 0
    checksum: str = ""
    sound: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: its head, and the fold's pieces."""

    head: SnapshotHead
    pieces: list[bytes]


class SnapshotStore:
    """Reads and writes the snapshot of a namespace.

    Args:
        writer: Names this process; holder of the lease.
        keys: The namespace.
        listener: Told about reads, writes and refusals.
        trim_margin_s: Part of the log that is kept behind the snapshot, seconds.
        version: The format that this replica's fold reads and writes.
    """

    def __init__(
        self, writer: bytes, keys: Keys, listener: SharedListener, trim_margin_s: float, version: int
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._listener = listener
        self._trim_margin_ms = int(trim_margin_s * 1000)
        self._version = version

    async def head(self, link: RedisLink) -> SnapshotHead | None:
        """Look at the newest snapshot; None if there is none."""
        try:
            head, refused = await self._head(link)
        except (RedisRefused, ValueError):
            return SnapshotHead(self._version, START, 0, sound=False)
        if head is None or head.version != self._version:
            return head
        pieces = await link.call("HLEN", self._keys.pieces(head.name))
        return dataclasses.replace(head, sound=False) if refused or pieces != head.pieces else head

    async def read(self, link: RedisLink, fetched: Callable[[float], None]) -> Snapshot | None:
        """Read the newest snapshot, piece by piece.

        Args:
            link: For large values.
            fetched: Told the progress, 0 to 1.

        Returns:
            None if there is none, or one that had to be refused.
        """
        started_s = time.monotonic()
        head: SnapshotHead | None = None
        for _ in range(READ_ATTEMPTS):
            name = head.name if head is not None else None
            try:
                head, _refused = await self._head(link)
                if head is None:
                    return None
                if head.version != self._version:
                    await self.refuse(link, head, "version")
                    return None
                if head.name == name:
                    break  # not replaced: a piece is missing for good
                pieces, checksum = await self._pieces(link, head, fetched)
            except (RedisRefused, ValueError) as error:
                await self.refuse(link, head, "damaged", str(error))
                return None
            if len(pieces) < head.pieces:
                continue
            if checksum != head.checksum or sum(map(len, pieces)) != head.size_bytes:
                await self.refuse(link, head, "damaged", "its checksum does not fit")
                return None
            self._listener.snapshot_read(head.size_bytes, time.monotonic() - started_s)
            return Snapshot(head, pieces)
        await self.refuse(link, head, "incomplete")
        return None

    async def refuse(
        self, link: RedisLink, head: SnapshotHead | None, reason: RefusalReason, detail: str = ""
    ) -> None:
        """Say that a snapshot cannot be used; unless its version is another, mark it for all to see.

        Args:
            link: For short commands.
            head: Head of the snapshot; None if there is none that makes sense.
            reason: Reason in a word.
            detail: Reason in a sentence.
        """
        logger.warning(
            "snapshot refused, reading the log only; a warm replica writes the next one",
            extra={
                "event": "snapshot.refused",
                "reason": reason,
                "detail": detail,
                "version": head.version if head else None,
                "version_read": self._version,
                "size_bytes": head.size_bytes if head else None,
            },
        )
        self._listener.snapshot_refused(reason)
        if reason != "version" and head is not None:
            with contextlib.suppress(RedisRefused):  # the value there is no head at all
                await link.call("EVAL", _CONDEMN, 1, self._keys.snapshot, head.name)

    async def acquire(self, link: RedisLink) -> bool:
        """Take or extend the lease; False while another replica has it."""
        return bool(await link.call("EVAL", _ACQUIRE, 1, self._keys.lease, self._writer, int(LEASE_S * 1000)))

    async def write(
        self,
        link: RedisLink,
        covered: StreamId,
        at_us: int,
        steps: Iterator[bytes | None],
        flush: Callable[[], Awaitable[None]],
        *,
        mark: bool,
        hurries: Callable[[], bool] = lambda: False,
    ) -> SnapshotHead | None:
        """Write a snapshot, trim the log behind it and give the lease back.

        Args:
            link: For large values.
            covered: Everything in the log up to this id has been applied before the first step.
            at_us: Log time.
            steps: Pieces, and None where there is none yet (`Fold.snapshot_steps`).
            flush: Sends the own operations that the pieces include.
            mark: Ask all to merge it: it has content that the log lacks.
            hurries: Write without pauses from now on, since the log grows too fast.

        Returns:
            None, and the snapshot before is still there, if the lease was lost meanwhile, or that one knows
            more.
        """
        started_s = time.monotonic()
        name, pieces, size_bytes, checksum = secrets.token_hex(8), 0, 0, xxhash.xxh3_64()
        slice_ends_s = started_s + SLICE_S
        for piece in steps:
            if piece is not None:
                if not await self._put(link, name, pieces, piece):
                    return None
                pieces += 1
                size_bytes += len(piece)
                checksum.update(piece)
            elif time.monotonic() < slice_ends_s:
                continue
            await asyncio.sleep(0.0 if hurries() else PAUSE_S)
            slice_ends_s = time.monotonic() + SLICE_S
        head = SnapshotHead(self._version, covered, at_us, name, pieces, size_bytes, checksum.hexdigest())
        await flush()
        if not await self._point(link, head, mark):
            return None
        self._listener.snapshot_written(size_bytes, time.monotonic() - started_s)
        return head

    async def _put(self, link: RedisLink, name: str, number: int, piece: bytes) -> bool:
        keys = (self._keys.lease, self._keys.pieces(name))
        times_ms = int(LEASE_S * 1000), int(PIECES_TTL_S * 1000)
        command = ("EVAL", _PUT, len(keys), *keys, self._writer, times_ms[0], number, piece, times_ms[1])
        return bool(await link.call(*command))

    async def _point(self, link: RedisLink, head: SnapshotHead, mark: bool) -> bool:
        try:
            before, _refused = await self._head(link)
        except (RedisRefused, ValueError):
            before = None  # it makes no sense, and goes
        names = (head.name, before.name if before is not None and before.name else head.name)
        kept_from = (max(0, head.covered[0] - self._trim_margin_ms), 0)
        return bool(
            await link.call(
                *("EVAL", _POINT, 5, self._keys.lease, self._keys.snapshot, self._keys.log),
                *(self._keys.pieces(name) for name in names),
                *(self._writer, head.version, stream_id(head.covered), head.at_us, head.name, head.pieces),
                *(head.size_bytes, head.checksum, int(GRACE_S * 1000), stream_id(kept_from), int(mark)),
            )
        )

    async def _head(self, link: RedisLink) -> tuple[SnapshotHead | None, bool]:
        """Return the head, without looking at the pieces, and True if a replica refused it.

        Raises:
            ValueError: It makes no sense.
        """
        fields = await link.call(
            "HMGET", self._keys.snapshot, "v", "id", "at", "name", "n", "size", "sum", "bad"
        )
        version, covered, at_us, name, pieces, size_bytes, checksum, refused = fields
        if version is None or covered is None or at_us is None:
            return None, False
        known = int(version), parse_id(covered), int(at_us)
        if known[0] != self._version:
            return SnapshotHead(*known, name=(name or b"").decode()), False
        if None in (name, pieces, size_bytes, checksum):
            raise ValueError("its head lacks a field")
        return SnapshotHead(*known, name.decode(), int(pieces), int(size_bytes), checksum.decode()), bool(
            refused
        )

    async def _pieces(
        self, link: RedisLink, head: SnapshotHead, fetched: Callable[[float], None]
    ) -> tuple[list[bytes], str]:
        """The pieces up to the first that is not there, and their checksum."""
        pieces: list[bytes] = []
        read_bytes, checksum = 0, xxhash.xxh3_64()
        for number in range(head.pieces):
            piece = await link.call("HGET", self._keys.pieces(head.name), number)
            if piece is None:
                break
            read_bytes += len(piece)
            if read_bytes > SNAPSHOT_BYTES_MAX:
                raise ValueError(f"it is longer than {SNAPSHOT_BYTES_MAX} bytes")
            pieces.append(piece)
            checksum.update(piece)
            fetched(len(pieces) / head.pieces)
        return pieces, checksum.hexdigest()
