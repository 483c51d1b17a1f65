"""The last worker of each session, told to all replicas through a stream in Redis (decision 0085).

    tell ──> due here ──XADD──> cw:{ns}:sessions ──XREAD──> heard ──> `router.sessions` of every replica

An entry holds packed 64-bit hashes of sessions by the id of their worker; without an id those sessions
ended. A session is told when it begins and when its worker changes (`router.sessions`), so most requests add
nothing. Every replica applies all entries in the order of the stream, its own ones, too, so all end with the
same worker.

Bounds: due sessions, sessions of an entry, entries of the stream, and a time to live of all of it. Sessions
that Redis does not take in time are counted and dropped. A replica that cannot read starts again with what
the stream still holds. No request waits for Redis: without it each process knows its own sessions only.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping

import msgspec

from router.errors import StateError
from router.session_rules import SessionRules
from router.shared.keys import Keys
from router.shared.server import RedisLink, leave_replaced
from router.shared.streams import START, StreamId, parse_id, stream_id

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
BLOCK_S = 1.0
"""Longest wait for an entry; below `TIMEOUT_S`, after which a silent connection is given up."""

PAUSE_S = 0.5
"""Pause after Redis failed."""

INTERVAL_S = 0.05
"""Pause between two entries of a replica. The second request of a session follows its first answer."""

READ_INTERVAL_S = 0.01
DUE_MAX = 10_000
BATCH_MAX = 256
ENTRIES_MAX = 4_000
"""Entries of the stream, 2 to 7 KB each when full: a new replica begins with them."""

READ_MAX = 64
ENTRY_BYTES_MAX = 256 * 1024
WORKER_CHARS_MAX = 512
HASH_BYTES = 8

ENDED = ""
"""In place of a worker: the session ended."""

Heard = Callable[[int, str, float], None]
"""Takes the hash of a session, the id of its worker or `ENDED`, and the age of that word in seconds."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class SessionHomes:
    """Words on sessions that one process tells and hears. For use from the event loop's thread.

    Attributes:
        dropped: Words that other replicas did not get, since Redis did not take them in time.
    """

    def __init__(
        self, rules: SessionRules, url: str, keys: Keys, replica: str, now_us: Callable[[], int]
    ) -> None:
        self._key, self._now_us = keys.sessions, now_us
        name = f"cacheway-sessions-{replica}"
        self._telling = RedisLink(url, TIMEOUT_S, home=keys.log, name=name)
        self._reading = RedisLink(url, TIMEOUT_S, home=keys.log, name=f"{name}-reader")
        self._due: OrderedDict[int, str] = OrderedDict()
        self._on, self._wake = asyncio.Event(), asyncio.Event()
        self._failing: frozenset[str] = frozenset()
        self.dropped = 0
        self.use(rules)

    @property
    def due(self) -> int:
        """Number of sessions of which Redis was not told yet."""
        return len(self._due)

    def use(self, rules: SessionRules) -> None:
        """Apply new settings: nothing is told or heard while no session is remembered."""
        self._ttl_s = rules.session_ttl_s
        if rules.sessions_max:
            self._on.set()
        else:
            self._on.clear()
            self._due.clear()

    def tell(self, session: int, worker_id: str) -> None:
        """Tell all replicas the worker of a session, or that it `ENDED`; the last word counts."""
        if not self._on.is_set():
            return
        if session not in self._due and len(self._due) >= DUE_MAX:
            self.dropped += 1
            return
        self._due[session] = worker_id
        self._wake.set()

    async def run(self, heard: Heard) -> None:
        """Tell and hear until cancelled. Failures of Redis do not end it."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell_all(), name="sessions-told")
                group.create_task(self._hear_all(heard), name="sessions-heard")
                group.create_task(leave_replaced(self._telling, self._reading), name="sessions-server")
        finally:
            await self._telling.aclose()
            await self._reading.aclose()

    # Inside.

    async def _tell_all(self) -> None:
        while True:
            await self._wake.wait()
            try:
                await self._tell()
                self._note("told", None)
                await asyncio.sleep(INTERVAL_S)
            except StateError as error:
                self._note("told", error)
                await asyncio.sleep(PAUSE_S)

    async def _tell(self) -> None:
        """Append one entry; words that Redis did not take stay due, unless there is a newer word."""
        batch = [self._due.popitem(last=False) for _ in range(min(len(self._due), BATCH_MAX))]
        if not self._due:
            self._wake.clear()
        if not batch:
            return
        try:
            await self._telling.calls(
                ("XADD", self._key, "MAXLEN", "~", ENTRIES_MAX, "*", "h", entry_of(batch)),
                ("PEXPIRE", self._key, max(int(self._ttl_s * 1000), 1)),
            )
        except StateError:
            for session, worker_id in batch:
                if session not in self._due:
                    self.tell(session, worker_id)
            raise

    async def _hear_all(self, heard: Heard) -> None:
        position = START
        while True:
            await self._on.wait()
            try:
                position = await self._hear(position, heard)
                self._note("heard", None)
            except StateError as error:
                self._note("heard", error)
                position = START  # another server may have another stream
                await asyncio.sleep(PAUSE_S)

    async def _hear(self, position: StreamId, heard: Heard) -> StreamId:
        """Read once; return the id of the last entry."""
        reply = await self._reading.call(
            *("XREAD", "COUNT", READ_MAX, "BLOCK", int(BLOCK_S * 1000)),
            *("STREAMS", self._key, stream_id(position)),
        )
        if not reply:
            return position
        now_ms = self._now_us() / 1000  # log time, as in the ids: the clock of a host may be wrong
        for entry_id, fields in reply[0][1]:
            position = parse_id(entry_id)
            age_s = max(now_ms - position[0], 0.0) / 1000
            for worker_id, sessions in homes_in(fields).items():
                for start in range(0, len(sessions) - HASH_BYTES + 1, HASH_BYTES):
                    session = int.from_bytes(sessions[start : start + HASH_BYTES], "little")
                    if session not in self._due:  # else our own word is newer
                        heard(session, worker_id, age_s)
            await asyncio.sleep(0)
        await asyncio.sleep(READ_INTERVAL_S)
        return position

    def _note(self, part: str, error: StateError | None) -> None:
        """Log that telling or hearing fails, or that both work again, once for each."""
        before = self._failing
        self._failing = before - {part} if error is None else before | {part}
        if self._failing and not before:
            logger.warning(
                "sessions are not shared with other replicas: each knows its own; see to Redis",
                extra={"event": "sessions.degraded", "part": part, "reason": str(error)},
            )
        elif before and not self._failing:
            logger.info("replicas share sessions again", extra={"event": "sessions.recovered"})


def entry_of(homes: list[tuple[int, str]]) -> bytes:
    """Return the bytes of an entry: the hashes of sessions by the id of their worker."""
    by_worker: defaultdict[str, bytearray] = defaultdict(bytearray)
    for session, worker_id in homes:
        by_worker[worker_id] += session.to_bytes(HASH_BYTES, "little")
    return _encode(by_worker)


def homes_in(fields: object) -> Mapping[str, bytes]:
    """Return the sessions of an entry by their worker; empty for foreign entries."""
    if not isinstance(fields, list) or len(fields) != 2 or not isinstance(fields[1], bytes):
        return {}
    if fields[0] != b"h" or len(fields[1]) > ENTRY_BYTES_MAX:
        return {}
    try:
        homes = _decode(fields[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {
        worker_id: sessions
        for worker_id, sessions in homes.items()
        if len(worker_id) <= WORKER_CHARS_MAX and len(sessions) <= BATCH_MAX * HASH_BYTES
    }
