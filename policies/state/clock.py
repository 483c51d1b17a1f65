"""Log time: Redis server time, kept locally, so that reading it never waits.

A replica's monotonic clock never leaves the process and wall clocks of hosts disagree, so operations carry
the time of the one clock that all replicas can see. `LogClock` keeps the offset between the monotonic clock
and Redis ``TIME``:

    TIME sent ----------- server reads its clock ----------- answer received
              half the round trip            half the round trip

The sample with the shortest round trip wins, since its error is at most half of it. A new offset is
approached gradually (*slewed*): log time runs between half and one and a half times as fast as real time,
never backwards. Only a step forward of more than `STEP_US` is taken at once: waiting would leave this replica
behind the others for longer than the jump is worth. After a step of Redis' clock forth and back all replicas
are ahead of it and slew back together; a replica that starts meanwhile steps to their time
(`LogClock.follow`). One that alone is ahead by more than `FUTURE_US` steps back at once: the others do not
accept its operations. Before the first contact the wall clock, read once, is the best guess; nothing has left
the process then, so the first offset is taken as it is, even backwards. Later steps of the wall clock change
nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

STEP_US = 1_000_000
FUTURE_US = 60_000_000
"""Lead over log time beyond which no replica can have a time: a minute, as far as clocks of two servers were
ever seen apart in a failover."""

SLEW = 0.5


@dataclass(frozen=True, slots=True)
class TimeSample:
    """A Redis ``TIME`` exchange: monotonic nanoseconds around it, and microseconds since the epoch."""

    sent_ns: int
    received_ns: int
    server_us: int


class LogClock:
    """Log time in integer microseconds since the epoch: unique and, once in contact, increasing per call.

    Args:
        monotonic_ns: The local clock; its zero does not matter.
        wall_ns: Wall clock, read once, for the time before the first contact.
    """

    __slots__ = ("_base_ns", "_in_contact", "_last_us", "_monotonic_ns", "_offset_us", "_target_us")

    def __init__(self, monotonic_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._base_ns = monotonic_ns()
        self._offset_us = self._target_us = (wall_ns() - self._base_ns) // 1000
        self._last_us = 0
        self._in_contact = False

    def now_us(self) -> int:
        """Return log time: greater than every value returned since the first contact."""
        if self._offset_us != self._target_us:
            self._slew(self._monotonic_ns())
        at_us = self._monotonic_ns() // 1000 + self._offset_us
        if at_us <= self._last_us:
            at_us = self._last_us + 1
        self._last_us = at_us
        return at_us

    def monotonic_s(self, at_us: int) -> float:
        """Convert a log time to monotonic seconds of this process."""
        return (at_us - self._offset_us) / 1e6

    def synchronise(self, samples: Iterable[TimeSample]) -> int:
        """Aim for the offset of the best of some samples, at least one; return the error of log time so far.

        In microseconds, positive if it was behind.
        """
        best = min(samples, key=lambda sample: sample.received_ns - sample.sent_ns)
        offset_us = best.server_us - (best.sent_ns + best.received_ns) // 2000
        self._slew(self._monotonic_ns())
        error_us = offset_us - self._offset_us
        self._target_us = offset_us
        if error_us > STEP_US or not self._in_contact:
            self._offset_us = offset_us
        if not self._in_contact:
            self._in_contact = True
            self._last_us = 0
        return error_us

    def follow(self, siblings_us: int | None) -> int:
        """Follow the other replicas, if most of them have another time.

        Args:
            siblings_us: Log time of most living siblings, some tenths of a second old; None without any.

        Returns:
            How far log time was set forth, or back if negative, in microseconds.
        """
        self._slew(self._monotonic_ns())
        now_us = self._monotonic_ns() // 1000 + self._offset_us
        if siblings_us is None or not self._in_contact:
            return 0
        if siblings_us - now_us > STEP_US:
            step_us = siblings_us - now_us
        elif self._target_us < self._offset_us - FUTURE_US and siblings_us < now_us - FUTURE_US:
            step_us = self._target_us - self._offset_us
            self._last_us = 0
        else:
            return 0
        self._offset_us += step_us
        return step_us

    def _slew(self, at_ns: int) -> int:
        """Move the offset towards its target by at most `SLEW` of the time since the last move."""
        room_us = int((at_ns - self._base_ns) // 1000 * SLEW)
        missing_us = self._target_us - self._offset_us
        moved_us = max(-room_us, min(room_us, missing_us))
        # A move of nothing keeps its base: time too short for a whole microsecond adds up.
        if moved_us or not missing_us:
            self._offset_us += moved_us
            self._base_ns = at_ns
        return self._offset_us
