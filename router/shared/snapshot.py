"""Snapshots: what makes the log short and a new replica warm.

``cw:{ns}:snap`` is a hash: ``v`` format version, ``id`` the stream id up to which everything is
included, ``at`` log time of writing, ``r`` writer, ``z`` whether ``data`` is deflated, ``data``
what `Fold.snapshot` gave. One write is one script, so it is atomic, and fenced by the lease:

    lease (SET NX PX) -> fold.snapshot() -> deflate in a thread -> script: still mine? HSET, XTRIM, DEL lease

A writer that dies leaves a lease that expires; one that was paused finds its lease gone and writes
nothing, so an old snapshot never replaces a newer one. The log keeps `TRIM_MARGIN_S` behind the
snapshot, so that a replica which is a few seconds late finds its place. The scripts run even when
Redis is out of memory (``allow-oom``, Redis 7): a snapshot is what frees memory.
"""

import asyncio
import time
import zlib
from dataclasses import dataclass

from router.shared.keys import Keys
from router.shared.ports import SharedListener
from router.shared.server import RedisLink
from router.shared.streams import StreamId, parse_id, stream_id

VERSION = 1
LEASE_S = 10.0
TRIM_MARGIN_S = 10.0
# Below this the thread costs more than the bytes.
DEFLATE_BYTES_MIN = 16 * 1024

_ACQUIRE = """#!lua flags=allow-oom
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_WRITE = """#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], 'r', ARGV[1], 'v', ARGV[2], 'id', ARGV[3], 'at', ARGV[4], 'z', ARGV[5],
  'data', ARGV[6])
redis.call('XTRIM', KEYS[3], 'MINID', '~', ARGV[7])
redis.call('DEL', KEYS[1])
return 1
"""


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """What is known of a snapshot without reading it.

    Attributes:
        version: Of the hash; these three fields keep their meaning in every version.
        covered: Everything in the log up to this id is included.
        at_us: Log time of writing.
    """

    version: int
    covered: StreamId
    at_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: its head, and the fold's bytes."""

    head: SnapshotHead
    payload: bytes


class SnapshotStore:
    """Reads and writes the snapshot of a namespace.

    Args:
        writer: Names this process; holder of the lease.
        keys: The namespace.
        listener: Told about reads and writes.
        trim_margin_s: How much of the log behind the snapshot is kept, seconds.
    """

    def __init__(self, writer: bytes, keys: Keys, listener: SharedListener, trim_margin_s: float) -> None:
        self._writer = writer
        self._keys = keys
        self._listener = listener
        self._trim_margin_ms = int(trim_margin_s * 1000)

    async def head(self, link: RedisLink) -> SnapshotHead | None:
        """Look at the newest snapshot; None if there is none."""
        return _head(await link.call("HMGET", self._keys.snapshot, "v", "id", "at"))

    async def read(self, link: RedisLink) -> Snapshot | None:
        """Read the newest snapshot; None if there is none, or none that this version can read."""
        started_s = time.monotonic()
        fields = await link.call("HMGET", self._keys.snapshot, "v", "id", "at", "z", "data")
        head = _head(fields)
        if head is None or head.version != VERSION:
            return None
        deflated, data = fields[3], fields[4]
        if deflated == b"1":
            try:
                data = await asyncio.to_thread(zlib.decompress, data)
            except zlib.error:
                return None
        self._listener.snapshot_read(len(data), time.monotonic() - started_s)
        return Snapshot(head, data)

    async def acquire(self, link: RedisLink) -> bool:
        """Take or extend the lease; False while somebody else has it."""
        return bool(await link.call("EVAL", _ACQUIRE, 1, self._keys.lease, self._writer, int(LEASE_S * 1000)))

    async def write(self, link: RedisLink, snapshot: Snapshot) -> bool:
        """Write a snapshot, trim the log behind it and give the lease back.

        Returns:
            False, and nothing was changed, if the lease had been lost meanwhile.
        """
        started_s = time.monotonic()
        data, deflated = snapshot.payload, 0
        if len(data) >= DEFLATE_BYTES_MIN:
            smaller = await asyncio.to_thread(zlib.compress, data, 1)
            if len(smaller) < len(data):
                data, deflated = smaller, 1
        covered = snapshot.head.covered
        kept_from = (max(0, covered[0] - self._trim_margin_ms), 0)
        written = await link.call(
            *("EVAL", _WRITE, 3, self._keys.lease, self._keys.snapshot, self._keys.log),
            *(self._writer, snapshot.head.version, stream_id(covered), snapshot.head.at_us, deflated, data),
            stream_id(kept_from),
        )
        if written:
            self._listener.snapshot_written(len(data), time.monotonic() - started_s)
        return bool(written)


def _head(fields: list[bytes | None]) -> SnapshotHead | None:
    version, covered, at_us = fields[:3]
    if version is None or covered is None or at_us is None:
        return None
    return SnapshotHead(int(version), parse_id(covered), int(at_us))
