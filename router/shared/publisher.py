"""Own operations on their way to the log.

`Publisher.put` takes an encoded operation and returns: it never waits. The flusher turns all that was put
since the last flush into one stream entry:

    put put ... put --> XADD log MAXLEN ~ N * v 1 r <writer> o <msgpack array of operations> --pause--> ...

The pause comes behind the flush and not before it: a lone operation goes at once, and many share a
flush all the same. An operation waits half as long as with the pause in front, for as many flushes.
While no sibling waits for them the pause is long (`router.shared.peer_presence`).

Placements go out with the new part of their prompt where all replicas know the rest
(`router.shared.placed_forms`). The buffer holds them whole: a prompt that is sent again may be new then.

The last operation of a flush is this replica's load vector, if one is due (`policies.state.load_vectors`).

An operation leaves the buffer when Redis has acknowledged its entry. If the acknowledgement is
lost, the entry may come twice, which operations bear. The newest acknowledged entries are remembered, in case
Redis loses it (`router.shared.resend_buffer`). The buffer is bounded in operations and
bytes; when Redis is gone for long the oldest are dropped and counted, and the snapshot that
follows (`router.shared.snapshot`) tells the others their content.
"""

import asyncio
import logging
import random
import time
from collections import deque
from dataclasses import dataclass

from policies import LoadVectors, encode_op
from router.shared.degraded_reasons import DegradedReasons
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms
from router.shared.ports import SharedListener
from router.shared.resend_buffer import ResendBuffer
from router.shared.server import RedisLink, RedisRefused

logger = logging.getLogger(__name__)

VERSION = 1
# Redis replies and replicates entry by entry; 1 MiB keeps each well under a millisecond of copying.
ENTRY_BYTES_MAX = 1 << 20
# Shortening a placement takes 5 us, and a third of them are placements.
ENTRY_OPS_MAX = 1000
ENTRIES_MAX = 1_000_000
REFUSED_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class PublisherRules:
    """Pace and bounds of a publisher.

    Attributes:
        interval_s: Pause after a flush, in which operations are gathered for the next, in company.
        ops_max: Most operations held.
        bytes_max: Most bytes held.
    """

    interval_s: float
    ops_max: int
    bytes_max: int


class Publisher:
    """A bounded buffer of encoded operations, and the loop that empties it.

    Args:
        writer: Names this process in the log; unique per start.
        keys: Keys of the namespace.
        listener: Told about flushes and drops.
        degraded_reasons: Reasons that show a refusal.
        presence: Knows if another replica waits for the published operations.
        forms: Shortens placements on their way out.
        vectors: Tell the load in flight.
        rules: Its pace and bounds.
    """

    def __init__(
        self,
        writer: bytes,
        keys: Keys,
        listener: SharedListener,
        degraded_reasons: DegradedReasons,
        presence: PeerPresence,
        forms: PlacedForms,
        vectors: LoadVectors,
        rules: PublisherRules,
    ) -> None:
        self._writer = writer
        self._key = keys.log
        self._listener = listener
        self._degraded_reasons = degraded_reasons
        self._presence = presence
        self._forms, self._vectors = forms, vectors
        self._interval_s, self._ops_max, self._bytes_max = rules.interval_s, rules.ops_max, rules.bytes_max
        self._bodies: deque[bytes] = deque()
        self._bytes = 0
        self._resend_buffer = ResendBuffer()
        self._wake = asyncio.Event()
        self._woken = False
        """True if `put` has set `_wake`, and nothing has cleared it since."""
        self.loads_timer: asyncio.TimerHandle | None = None
        """Runs while changed loads are to be told."""
        self._turn = asyncio.Lock()
        self._dropping = False
        self.dropped_ops = 0

    def __len__(self) -> int:
        """Operations not yet acknowledged, without those on their way."""
        return len(self._bodies)

    def put(self, body: bytes) -> None:
        """Take an encoded operation; the oldest are dropped if there is no room."""
        self._bodies.append(body)
        self._bytes += len(body)
        if self._bytes > self._bytes_max or len(self._bodies) > self._ops_max:
            self._drop()
        if not self._woken:
            self._woken = True
            self._wake.set()

    def loads_changed(self) -> None:
        """See to it that they are told, with the operations put until then or by themselves."""
        if self.loads_timer is None:
            wait_s = self._vectors.wait_s()
            if wait_s is not None:
                self.loads_timer = asyncio.get_running_loop().call_later(wait_s, self._tell_loads)

    def hurry(self) -> None:
        """Tell changed loads as soon as another replica, which has just come, wants to know them."""
        if self.loads_timer is not None:
            self.loads_timer.cancel()
            self.loads_timer = None
        self.loads_changed()

    def _tell_loads(self) -> None:
        self.loads_timer = None
        self._wake.set()

    async def run(self, link: RedisLink) -> None:
        """Append the operations put, at once but not too often. Runs as long as the session.

        Raises:
            RedisLost: Entries without an acknowledgement stay buffered for the next session.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._woken = False
            try:
                await self.flush(link)
                self.loads_changed()
                self._degraded_reasons.clear("flush")
                await self._presence.rest(self._interval_s)
            except RedisRefused as error:
                self._degraded_reasons.set("flush", f"Redis refused the log entry: {error}")
                await asyncio.sleep(REFUSED_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                self._wake.set()

    def resend(self) -> None:
        """Append the last acknowledged entries once more, as far as there is room: they may be lost."""
        self._forms.reset()
        self._vectors.lost()
        bodies = self._resend_buffer.take(self._ops_max - len(self._bodies), self._bytes_max - self._bytes)
        self._bodies.extendleft(reversed(bodies))
        self._bytes += sum(map(len, bodies))
        if bodies:
            self._wake.set()

    async def flush(self, link: RedisLink) -> None:
        """Append everything put before now, as entries of about `ENTRY_BYTES_MAX` at most.

        Raises:
            StateError: Entries without an acknowledgement stay buffered.
        """
        async with self._turn:  # also for the entries that another flush has under way
            left = self._bytes - await self._append(link)
            while left > 0:
                left -= await self._append(link)

    async def _append(self, link: RedisLink) -> int:
        started_s = time.monotonic()
        batch, size = self._take()
        bodies = [*map(self._forms.outgoing, batch)]
        # Only behind all that was put: it includes every placement before it.
        vector = None if self._bodies else self._vectors.take()
        if vector is not None:
            bodies.append(encode_op(vector))
        if not bodies:
            return 0
        entry = array_header(len(bodies)) + b"".join(bodies)
        try:
            await link.call(
                *("XADD", self._key, "MAXLEN", "~", ENTRIES_MAX, "*"),
                *("v", VERSION, "r", self._writer, "o", entry),
            )
        except BaseException:
            self._forms.reset()
            self._vectors.lost()
            self._bodies.extendleft(reversed(batch))
            self._bytes += size
            self._drop()
            self._wake.set()
            raise
        ended_s = time.monotonic()
        self._dropping = False
        if batch:
            self._resend_buffer.keep(batch, ended_s)
        self._listener.flushed(len(bodies), len(entry), ended_s - started_s)
        return size

    def _take(self) -> tuple[list[bytes], int]:
        batch: list[bytes] = []
        size = 0
        while (
            self._bodies
            and (not batch or size + len(self._bodies[0]) <= ENTRY_BYTES_MAX)
            and len(batch) < ENTRY_OPS_MAX
        ):
            batch.append(self._bodies.popleft())
            size += len(batch[-1])
        self._bytes -= size
        return batch, size

    def _drop(self) -> None:
        dropped = 0
        while self._bytes > self._bytes_max or len(self._bodies) > self._ops_max:
            self._bytes -= len(self._bodies.popleft())
            dropped += 1
        if dropped:
            if not self._dropping:
                self._dropping = True
                logger.warning(
                    "the buffer of own operations is full, the oldest are dropped",
                    extra={"event": "log.dropped", "ops": len(self._bodies), "size_bytes": self._bytes},
                )
            self.dropped_ops += dropped
            self._listener.dropped(dropped)


def array_header(length: int) -> bytes:
    """Encode the head of a msgpack array (msgpack specification, array format family)."""
    if length < 16:
        return bytes((0x90 | length,))
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")
