"""Comparison of the registers of all replicas: a value that one replica alone has is published again.

The log carries each value once. A failover, a split brain or a restored backup may remove entries that some
replicas have applied. Then two live replicas have different values, and no later entry need ever mend that.
So each replica publishes a digest of each kind of register with its heartbeat (`policies.state.digests`), and
compares those of its siblings with its own:

    equal, or ours of a moment ago ──> they agree
    no value in common for `DIFFER_S`  ──> each side publishes its registers of that kind again
    for `ALERT_S`                      ──> `LogStatus.differing` and a reason why this replica is degraded

Registers may be repeated, and the newest value counts, so both sides have the union afterwards. One of
several replicas with the same digest publishes; if that does not help, the next one does, after a longer
pause.

Digests are a heartbeat old when they are compared, and values change meanwhile. So a sibling's digest is
compared with all digests that this replica had in the last `RECENT_S`. A replica that is far behind in the
log compares nothing, and publishes no digest before it has read the log once. Kinds whose digest a sibling
does not publish, since it is of another version, are not compared.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from policies import KIND_NAMES

logger = logging.getLogger(__name__)

RECENT_S = 1.5
"""Age up to which own digests are remembered: three heartbeats, and the greatest lag of a replica."""

DIFFER_S = 2.0
"""Time that two digests must differ until registers are published again."""

AGAIN_S = 4.0
AGAIN_S_MAX = 60.0
"""Pause until they are published again; doubled each time that it did not help, up to the second value."""

ALERT_S = 10.0
"""Time that two digests must differ until it is told."""

LAG_S_MAX = 1.0
"""A replica that is further behind in the log compares nothing."""

Digests = dict[int, int]
_decoder: msgspec.msgpack.Decoder[Digests] = msgspec.msgpack.Decoder(Digests)


@dataclass(slots=True)
class _Difference:
    """A kind of register of which this replica and some others know different words.

    Attributes:
        since_s: By sibling, monotonic seconds since which no value was in common.
        rounds: Times that registers were published again for it.
        again_s: Monotonic seconds before which they are not.
    """

    since_s: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    again_s: float = 0.0


class Agreement:
    """Compares the digests of one replica with those of its siblings.

    Args:
        replica: Id of this replica.
        digests: Gives the own digests by tag: all values since it was last asked, the present one last.
        monotonic_s: The local clock; its zero does not matter.

    Attributes:
        published_again: Times that each kind of register was published again, by name.
    """

    def __init__(
        self,
        replica: str,
        digests: Callable[[], Mapping[int, list[int]]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._digests = digests
        self._monotonic_s = monotonic_s
        self._own: Digests = {}
        self._recent: deque[tuple[float, dict[int, frozenset[int]]]] = deque()
        self._differences: dict[int, _Difference] = {}
        self.published_again: dict[str, int] = {}

    def shown(self, *, ready: bool) -> bytes:
        """Return the value of the next heartbeat: the digest of each kind, of a replica that is ready."""
        self._look()
        return msgspec.msgpack.encode(self._own if ready else {})

    def compare(self, shown: Mapping[str, bytes], lag_s: float) -> list[int]:
        """Compare the digests of living siblings with the own ones.

        Args:
            shown: Values of heartbeats by sibling; only of heartbeats that came just now.
            lag_s: Seconds that this replica is behind in the log.

        Returns:
            Tags of the kinds that this replica must publish again now.
        """
        if lag_s > LAG_S_MAX:
            self.interrupted()
            return []
        others = {replica: _decoded(value) for replica, value in shown.items() if replica != self._replica}
        if all(not digests or digests == self._own for digests in others.values()):
            self._differences.clear()
            return []
        now_s = self._look()
        again: list[int] = []
        for tag, own in self._own.items():
            values = {replica: digests[tag] for replica, digests in others.items() if tag in digests}
            difference = self._differences.get(tag)
            since_s = {} if difference is None else difference.since_s
            differing = {
                replica: since_s.get(replica, now_s)
                for replica, value in values.items()
                if not any(value in recent.get(tag, ()) for _, recent in self._recent)
            }
            if not differing:
                self._differences.pop(tag, None)
                continue
            if difference is None:
                difference = self._differences[tag] = _Difference()
            difference.since_s = differing
            if min(differing.values()) > now_s - DIFFER_S or now_s < difference.again_s:
                continue
            equals = sorted([self._replica, *(replica for replica, value in values.items() if value == own)])
            if equals[difference.rounds % len(equals)] == self._replica:
                again.append(tag)
            difference.again_s = now_s + min(AGAIN_S_MAX, AGAIN_S * 2**difference.rounds)
            difference.rounds += 1
        for tag in again:
            name = KIND_NAMES[tag]
            self.published_again[name] = self.published_again.get(name, 0) + 1
        if again:
            logger.warning(
                "replicas know different registers; they are published again",
                extra={"event": "registers.published_again", "registers": [KIND_NAMES[tag] for tag in again]},
            )
        return again

    def interrupted(self) -> None:
        """Note that nothing is compared for now: earlier differences may be gone."""
        self._differences.clear()

    def _look(self) -> float:
        """Take in the own digests, and return when that was."""
        now_s = self._monotonic_s()
        found = self._digests()
        self._own = {tag: values[-1] for tag, values in found.items()}
        self._recent.append((now_s, {tag: frozenset(values) for tag, values in found.items()}))
        while self._recent[0][0] < now_s - RECENT_S:
            self._recent.popleft()
        return now_s

    @property
    def differing(self) -> dict[str, tuple[str, ...]]:
        """Kinds of register that differ for `ALERT_S` by now, by name, and the replicas that differ."""
        until_s = self._monotonic_s() - ALERT_S
        return {
            KIND_NAMES[tag]: replicas
            for tag, difference in self._differences.items()
            if (
                replicas := tuple(
                    sorted(r for r, since_s in difference.since_s.items() if since_s <= until_s)
                )
            )
        }

    @property
    def reason(self) -> str | None:
        """Reason why this replica is degraded, in words; None if all replicas agree, or did a moment ago."""
        differing = self.differing
        if not differing:
            return None
        replicas = sorted({replica for names in differing.values() for replica in names})
        return f"registers differ from those of {', '.join(replicas)}: {', '.join(sorted(differing))}"


def _decoded(value: bytes) -> Digests:
    """Return the digests that a sibling shows; none if they make no sense here."""
    try:
        return _decoder.decode(value)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return {}
