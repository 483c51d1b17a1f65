"""Who is alive: this replica says so every third of its time to live, and watches the others.

Each beat is one round trip: ``SET cw:{ns}:replica:{id} .. PX ttl``, the time of the beat into the
sorted set ``cw:{ns}:replicas``, and that set back. A sibling not seen for longer than the time to
live is asked for by its key; if that has expired, the sibling has left.

    seen --ttl without a beat, key expired--> Left(replica, last seen + ttl) in the log --> forgotten

The time in `Left` follows from the last beat, so all survivors say the same and saying it again
changes nothing. What a paused replica does after it wakes has later times and stands.

A replica whose own beats did not get through for the last time to live judges nobody: after an
outage of Redis every key has expired, and each must first have had the time to come back.
"""

import time
from collections.abc import Callable

import msgspec

from policies import Left
from router.shared.clock import LogClock
from router.shared.keys import Keys
from router.shared.server import RedisLink

# More replicas than this in one namespace would be a mistake; the rest is not watched.
REPLICAS_MAX = 1024


class Heartbeat:
    """The heartbeat of one replica and its view of the others.

    Args:
        replica: Id of this replica.
        keys: The namespace.
        clock: Log time.
        publish_left: Says in the log that a sibling has left.
        ttl_s: Time without a beat after which a replica has left, seconds.
        address: Where operators reach this replica; only shown.
        version: Of the gateway; only shown.
    """

    def __init__(
        self,
        replica: str,
        keys: Keys,
        clock: LogClock,
        publish_left: Callable[[Left], None],
        *,
        ttl_s: float,
        address: str,
        version: str,
    ) -> None:
        self._replica = replica
        self._keys = keys
        self._clock = clock
        self._publish_left = publish_left
        self._ttl_us = int(ttl_s * 1e6)
        self._value = msgspec.json.encode(
            {"address": address, "version": version, "started_unix_s": round(time.time(), 3)}
        )
        self._seen_us: dict[str, int] = {}
        self._beating_since_us: int | None = None
        self.interval_s = ttl_s / 3

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas that are alive, this one included, sorted."""
        return tuple(sorted({self._replica, *self._seen_us}))

    def interrupted(self) -> None:
        """Note that beats do not get through: the others may have their reasons too."""
        self._beating_since_us = None

    def left(self, op: Left) -> None:
        """Note what the log says: a replica has left, unless it was seen later."""
        if self._seen_us.get(op.replica, op.at_us + 1) <= op.at_us:
            del self._seen_us[op.replica]

    async def beat(self, link: RedisLink) -> None:
        """Say that we are alive, and find out who no longer is.

        Raises:
            StateError: The beat did not get through.
        """
        try:
            now_us = self._clock.now_us()
            replies = await link.calls(
                ("SET", self._keys.replica(self._replica), self._value, "PX", self._ttl_us // 1000),
                ("ZADD", self._keys.replicas, now_us, self._replica),
                ("ZREVRANGE", self._keys.replicas, 0, REPLICAS_MAX - 1, "WITHSCORES"),
            )
            if self._beating_since_us is None:
                self._beating_since_us = now_us
            members = replies[2]
            for member, score in zip(members[::2], members[1::2], strict=True):
                self._note(member.decode(), int(score))
            if now_us - self._beating_since_us >= self._ttl_us:
                await self._judge(link, now_us)
        except BaseException:
            self.interrupted()
            raise

    async def goodbye(self, link: RedisLink) -> None:
        """Remove this replica, so that nobody waits for its heartbeat to expire."""
        await link.calls(
            ("DEL", self._keys.replica(self._replica)), ("ZREM", self._keys.replicas, self._replica)
        )

    def _note(self, replica: str, seen_us: int) -> None:
        if replica != self._replica and (replica in self._seen_us or len(self._seen_us) < REPLICAS_MAX):
            self._seen_us[replica] = max(seen_us, self._seen_us.get(replica, 0))

    async def _judge(self, link: RedisLink, now_us: int) -> None:
        silent = [replica for replica, seen_us in self._seen_us.items() if now_us - seen_us > self._ttl_us]
        if not silent:
            return
        alive = await link.calls(*(("EXISTS", self._keys.replica(replica)) for replica in silent))
        gone = [replica for replica, exists in zip(silent, alive, strict=True) if not exists]
        for replica in gone:
            seen_us = self._seen_us.pop(replica, None)
            if seen_us is not None:
                self._publish_left(Left(replica, seen_us + self._ttl_us))
        if gone:
            await link.call("ZREM", self._keys.replicas, *gone)
