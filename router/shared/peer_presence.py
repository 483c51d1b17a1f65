"""Number of the other replicas: alone, and among many, the log is written at leisure.

A flush or a read costs some 100 us with any content, so hundreds per second are worth their price only
where a replica waits for what they carry. A lone replica makes few:

            a sibling's heartbeat, or an entry of another replica in the log
    alone ----------------------------------------------------------------> in company
          <----------------------------------------------------------------
            no heartbeat for its time to live, nor an entry for `HEARD_S`

A newcomer beats before it serves and sees us at once. We see it with our own next beat, 0.4 s later at
most, or with its first entry, if that comes first; both end a pause of the publisher at once. Until then our
operations take up to `LONE_FLUSH_S` longer to it: two bursts of the same prompt may cost in that time one
placement that does not know of the other, once per start. If we are killed, Redis misses up to `LONE_FLUSH_S`
more of our operations; but the requests of that time died with us, and no sibling had its share in them.
Reads need no pause: alone, there is nothing to read but our own seldom entries.

Every entry is delivered to all replicas for 1 us each, and every read costs Valkey some 10 us. N replicas
that flush and read as often as two of them would cost its one thread N^2. So from `FEW` siblings on the
pauses grow with N: 50 replicas pause for 42 ms, and write 1,200 entries per second at most. An operation
that comes after a quiet moment goes at once all the same.
"""

import asyncio
import time
from collections.abc import Callable

LEISURE_S = 0.05
"""Longest pause among many replicas. Twenty reads per second cost a quarter of a percent of a core."""

LONE_FLUSH_S = 0.2
"""Pause after a flush that no other replica waits for. Each flush is an entry that comes back by a read, so
five a second cost a quarter of twenty."""

FEW = 7
# Part of the pause for each sibling more than `FEW`.
SIBLING_S = 0.001
# Longer than it takes to see the heartbeat of a sibling that was heard.
HEARD_S = 1.0


class PeerPresence:
    """Knows how many others read and write the log.

    Args:
        siblings: Number of other replicas whose heartbeats are seen.
        monotonic_s: The local clock; its zero does not matter.
    """

    def __init__(
        self, siblings: Callable[[], int], monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._siblings = siblings
        self._monotonic_s = monotonic_s
        self._heard_s = monotonic_s() - HEARD_S
        self._met = asyncio.Event()

    def heard(self) -> None:
        """Note that an entry of another replica was read."""
        self._heard_s = self._monotonic_s()
        self._met.set()

    def seen(self) -> None:
        """Note that the heartbeat of another replica was seen."""
        self._met.set()

    @property
    def alone(self) -> bool:
        """True if no other replica is there."""
        return not self._siblings() and self._monotonic_s() - self._heard_s >= HEARD_S

    def pause_s(self, usual_s: float) -> float:
        """Choose the pause after a flush or a read in company.

        Args:
            usual_s: The pause in company of few, seconds.
        """
        return max(usual_s, min((self._siblings() - FEW) * SIBLING_S, LEISURE_S))

    async def rest(self, usual_s: float) -> None:
        """Pause after a flush: longer while alone, but then only until another replica appears."""
        if not self.alone:
            await asyncio.sleep(self.pause_s(usual_s))
            return
        self._met.clear()
        over = asyncio.get_running_loop().call_later(max(usual_s, LONE_FLUSH_S), self._met.set)
        await self._met.wait()
        over.cancel()
