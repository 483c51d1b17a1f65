"""Presence of replicas: this one beats four times per time to live or oftener, and watches the others.

Each beat is one round trip: ``SET cw:{ns}:replica:{id} .. PX ttl``, the time of the beat into the
sorted set ``cw:{ns}:replicas``, and that set back; and the digests of registers into the hash
``cw:{ns}:digests`` (`router.shared.agreement`), and those of the siblings back. It also asks Redis, without
writing anything, whether it would append to the log, so that a refusal shows while nothing is published.

In the hash ``cw:{ns}:onward`` each beat says that this replica reads shortened placements
(`router.shared.placed_forms`), and load vectors (`READS`). An older version says less, or nothing. It may go
on under the id of a newer one: then its beat in the set is newer than the one in the hash.

Of both hashes a beat asks only for the fields of siblings that earlier beats found, so a new sibling's are
known one beat after its id. Other fields of any writer cost nothing here, and values longer than
`VALUE_BYTES_MAX` are not looked at.

A sibling whose time in the set has not changed for a time to live, on *our* monotonic clock, is asked
for by its key; if that has expired too, the sibling has left. No clock is compared with another, so
no clock that steps, ours, its or the server's, makes a replica leave.

    seen --ttl without a change, key expired--> Left(replica, last beat + ttl) in the log --> forgotten

The time in `Left` follows from the last beat, so all survivors say the same and saying it again
changes nothing. Operations of a paused replica after it wakes have later times and stand.

A replica whose own beats did not get through for the last time to live judges no sibling: after an
outage of Redis every key has expired, and each must first have had the time to come back. The same after a
pause of its own process for that long: where a host stands still, all its replicas do.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from policies import Left
from radix import WHOLE_MAX, is_name, parsed_whole
from router.shared.clock import LogClock
from router.shared.keys import Keys
from router.shared.server import RedisLink

logger = logging.getLogger(__name__)

# More replicas than this in one namespace would be a mistake; the rest is not watched.
REPLICAS_MAX = 1024
VALUE_BYTES_MAX = 4096
"""Longest value of a sibling in a hash, bytes: the digests of 27 kinds of register are 273."""
# A quarter of the time to live, but short enough that a failing Redis is noticed within a second.
INTERVAL_S_MAX = 0.4
LOST_S = 600.0
"""Time for which a replica that fell silent is remembered, to be shown."""
LOST_MAX = 16
READS = b"vectors"
"""Mark of this version, in the hash behind the process. Older ones take it for a part of the process name."""

ALONE_VALUE_S = 5.0
"""Age up to which a replica without siblings repeats its vitals and digests: a newcomer reads new ones after
its second beat at the latest, and digests must differ for longer to mean anything."""

FRESH_BEATS = 3
"""Missed beats in a row after which a sibling may have changed its registers without showing it."""


def _beat_of(member: bytes, score: bytes) -> tuple[str, int] | None:
    """The replica of a beat and its log time; None if no replica could have said that."""
    try:
        replica, beat_us = member.decode(), int(float(score))
    except (ValueError, OverflowError):
        return None
    return (replica, beat_us) if is_name(replica) and 0 <= beat_us <= WHOLE_MAX // 2 else None


def _told(replicas: tuple[str, ...], values: list[bytes | None]) -> dict[str, bytes]:
    """Values of a hash by replica, without those that are missing or that no replica would have written."""
    return {
        replica: value
        for replica, value in zip(replicas, values, strict=True)
        if value is not None and len(value) <= VALUE_BYTES_MAX
    }


@dataclass(frozen=True, slots=True)
class _Sibling:
    """The last beat of a sibling in log time, and when we first saw it in monotonic seconds of ours."""

    beat_us: int
    changed_s: float


class Heartbeat:
    """The heartbeat of one replica and its view of the others.

    Args:
        replica: Id of this replica.
        keys: The namespace.
        clock: Log time.
        publish_left: Says in the log that a sibling has left.
        ttl_s: Time without a beat after which a replica has left, seconds.
        value: Vitals of this replica, asked at every beat in company; only shown (`router.shared.vitals`).
        digests: Digests of its registers, asked with the vitals.
        monotonic_s: The local clock; its zero does not matter.

    Attributes:
        joined: Processes of siblings, seen for the first time, that read shortened placements.
        reads_vectors: True if all siblings read load vectors, as of the last beat.
    """

    def __init__(
        self,
        replica: str,
        keys: Keys,
        clock: LogClock,
        publish_left: Callable[[Left], None],
        *,
        ttl_s: float,
        value: Callable[[], bytes],
        digests: Callable[[], bytes] = bytes,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._keys = keys
        self._clock = clock
        self._publish_left = publish_left
        self._ttl_s = ttl_s
        self._monotonic_s = monotonic_s
        self._value, self._digests = value, digests
        self._shown_value, self._shown_digests, self._value_s = b"", b"", -inf
        self._process = secrets.token_hex(4).encode()
        self.joined = 0
        self.reads_vectors = True
        self._onward: dict[str, bytes] = {}
        self._shown: dict[str, bytes] = {}
        self._siblings: dict[str, _Sibling] = {}
        self._lost_us: dict[str, int] = {}
        self._beaten_s = self._beating_since_s = -inf
        self.interval_s = min(ttl_s / 4, INTERVAL_S_MAX)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas that are alive, this one included, sorted."""
        return tuple(sorted({self._replica, *self._siblings}))

    @property
    def lost(self) -> tuple[str, ...]:
        """Ids of replicas that fell silent in the last ten minutes and have not come back, sorted."""
        since_us = self._clock.now_us() - int(LOST_S * 1e6)
        alive = self._siblings.keys() | {self._replica}
        return tuple(
            sorted(each for each, us in self._lost_us.items() if us > since_us and each not in alive)
        )

    @property
    def siblings(self) -> int:
        """Number of other replicas that are known to be alive."""
        return len(self._siblings)

    @property
    def onward(self) -> bool:
        """True if there are siblings, and all of them read shortened placements.

        A replica that is alone tells whole prompts: that costs nothing, and when it starts again there is no
        other one to ask.
        """
        return bool(self._siblings) and self._siblings.keys() <= self._onward.keys()

    @property
    def shown(self) -> dict[str, bytes]:
        """Digests of the siblings that beat a moment ago, by replica id, as the last beat found them."""
        since_s = self._monotonic_s() - FRESH_BEATS * self.interval_s
        return {
            replica: self._shown[replica]
            for replica, sibling in self._siblings.items()
            if sibling.changed_s > since_s and replica in self._shown
        }

    @property
    def siblings_us(self) -> int | None:
        """Log time of most siblings that beat a moment ago, some tenths of a second old; None without any.

        Of an even number it is the earlier one of the two in the middle: one clock that is ahead decides
        nothing where there are others.
        """
        since_s = self._monotonic_s() - FRESH_BEATS * self.interval_s
        beats = sorted(each.beat_us for each in self._siblings.values() if each.changed_s > since_s)
        return beats[(len(beats) - 1) // 2] if beats else None

    def interrupted(self) -> None:
        """Note that beats do not get through: the others may have their reasons too."""
        self._beaten_s = -inf

    def left(self, op: Left) -> None:
        """Note a `Left` of the log: the replica has left, unless it was seen later."""
        sibling = self._siblings.get(op.replica)
        if sibling is not None and sibling.beat_us <= op.at_us:
            del self._siblings[op.replica]

    def fell_silent(self, op: Left) -> None:
        """Note that a replica has left without a goodbye: another one has said so."""
        self._lost_us.pop(op.replica, None)
        self._lost_us[op.replica] = op.at_us
        while len(self._lost_us) > LOST_MAX:
            del self._lost_us[next(iter(self._lost_us))]

    async def beat(self, link: RedisLink) -> None:
        """Say that we are alive, and find the siblings that no longer are.

        Raises:
            StateError: The beat did not get through.
        """
        try:
            self._renew_value()
            now_us, known = self._clock.now_us(), self.replicas
            replies = await link.calls(
                ("SET", self._keys.replica(self._replica), self._shown_value, "PX", int(self._ttl_s * 1000)),
                ("HSET", self._keys.onward, self._replica, b"%d %s %s" % (now_us, self._process, READS)),
                ("ZADD", self._keys.replicas, now_us, self._replica),
                ("ZREVRANGE", self._keys.replicas, 0, REPLICAS_MAX - 1, "WITHSCORES"),
                ("XADD", self._keys.probe, "NOMKSTREAM", "*", "v", 0),
                ("HMGET", self._keys.onward, *known),
                ("HSET", self._keys.digests, self._replica, self._shown_digests),
                ("HMGET", self._keys.digests, *known),
            )
            now_s = self._monotonic_s()
            if now_s - self._beaten_s >= self._ttl_s:
                self._beating_since_s = now_s
            self._beaten_s = now_s
            members, onward, shown = replies[3], _told(known, replies[5]), _told(known, replies[7])
            beats = [
                beat
                for member, score in zip(members[::2], members[1::2], strict=True)
                if (beat := _beat_of(member, score)) is not None
            ]
            for beat in beats:
                self._note(*beat, now_s)
            self._note_onward(beats, onward, known)
            self._shown = shown
            if now_s - self._beating_since_s >= self._ttl_s:
                await self._judge(link, now_s)
        except BaseException:
            self.interrupted()
            raise

    def _renew_value(self) -> None:
        now_s = self._monotonic_s()
        if self._siblings or now_s - self._value_s >= ALONE_VALUE_S:
            self._shown_value, self._shown_digests, self._value_s = self._value(), self._digests(), now_s

    async def remove_foreign(self, link: RedisLink) -> None:
        """Remove values of another type in place of our keys: Redis refuses us until they are gone.

        Without the log the replicas go on as after a flush.

        Raises:
            StateError: Redis refuses that as well.
        """
        kinds = (
            (self._keys.replicas, b"zset"),
            (self._keys.onward, b"hash"),
            (self._keys.digests, b"hash"),
            (self._keys.seed, b"string"),
            (self._keys.probe, b"none"),
            (self._keys.log, b"stream"),
        )
        found = await link.calls(*(("TYPE", key) for key, _ in kinds))
        for (key, kind), known in zip(kinds, found, strict=True):
            if known not in (kind, b"none"):
                logger.warning(
                    "a key of the namespace holds something else and is removed",
                    extra={"event": "redis.foreign_key", "key": key, "type": known.decode()},
                )
                await link.call("DEL", key)

    async def has_beaten(self, link: RedisLink) -> bool:
        """True if a former life under this id ended without a goodbye, and no sibling has noticed.

        Raises:
            StateError: Redis does not say.
        """
        return await link.call("ZSCORE", self._keys.replicas, self._replica) is not None

    async def goodbye(self, link: RedisLink) -> None:
        """Remove this replica, so that no sibling waits for its heartbeat to expire."""
        await link.calls(
            ("DEL", self._keys.replica(self._replica)),
            ("ZREM", self._keys.replicas, self._replica),
            ("HDEL", self._keys.onward, self._replica),
            ("HDEL", self._keys.digests, self._replica),
        )

    def _note(self, replica: str, beat_us: int, now_s: float) -> None:
        known = self._siblings.get(replica)
        if replica == self._replica or (known is not None and known.beat_us == beat_us):
            return
        if known is not None or len(self._siblings) < REPLICAS_MAX:
            self._siblings[replica] = _Sibling(beat_us, now_s)

    def _note_onward(
        self, beats: list[tuple[str, int]], told: dict[str, bytes], asked: tuple[str, ...]
    ) -> None:
        """Note which siblings read shortened placements, and whether one of them is a new process."""
        onward: dict[str, bytes] = {}
        for replica, beat_us in beats:
            said_us, _, process = told.get(replica, b"").partition(b" ")
            if replica != self._replica and (parsed_whole(said_us.decode(errors="replace")) or 0) >= beat_us:
                onward[replica] = process
        joined = onward.items() - self._onward.items()
        self._onward = onward
        self.joined += len(joined)
        # A sibling that was not asked for its fields yet is no older version for that.
        self.reads_vectors = all(
            onward.get(replica, b"").endswith(b" " + READS) for replica in asked if replica in self._siblings
        )

    async def _judge(self, link: RedisLink, now_s: float) -> None:
        silent = [
            (replica, sibling)
            for replica, sibling in self._siblings.items()
            if now_s - sibling.changed_s >= self._ttl_s
        ]
        if not silent:
            return
        alive = await link.calls(*(("EXISTS", self._keys.replica(replica)) for replica, _ in silent))
        gone = [found for found, exists in zip(silent, alive, strict=True) if not exists]
        for replica, sibling in gone:
            # Unless the log has said so meanwhile, or it has come back.
            if self._siblings.get(replica) is sibling:
                del self._siblings[replica]
                left = Left(replica, sibling.beat_us + int(self._ttl_s * 1e6))
                self.fell_silent(left)
                self._publish_left(left)
        if gone:
            names = [replica for replica, _ in gone]
            await link.calls(
                ("ZREM", self._keys.replicas, *names),
                ("HDEL", self._keys.onward, *names),
                ("HDEL", self._keys.digests, *names),
            )
