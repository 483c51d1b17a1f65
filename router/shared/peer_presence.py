"""Whether other replicas are there: alone, the log is written and read at leisure.

A flush or a read costs some 100 us, whatever is in it, so hundreds per second are worth their price only
where somebody waits for what they carry. A lone replica makes few:

            a sibling's heartbeat, or an entry of another replica in the log
    alone ----------------------------------------------------------------> in company
          <----------------------------------------------------------------
            no heartbeat for its time to live, nor an entry for `HEARD_S`

A newcomer beats before it serves and sees us at once. We see it with our own next beat, 0.4 s later at
most, or with its first entry, whichever comes first. Until then operations of both take up to
`LEISURE_S` longer to the other: what two bursts of the same prompt may cost in that time is one placement
that does not know of the other, once per start. Should we be killed, Redis misses up to `LEISURE_S` more of
what we did; but the requests of that time died with us, and no sibling had its share in them.
"""

import time
from collections.abc import Callable

# Twenty flushes and reads per second cost half a percent of a core, as much as an idle log.
LEISURE_S = 0.05
# Longer than it takes to see the heartbeat of whoever was heard.
HEARD_S = 1.0


class PeerPresence:
    """Knows whether anybody else reads and writes the log.

    Args:
        alone: Whether no other replica's heartbeat is seen.
        monotonic_s: The local clock; its zero does not matter.
    """

    def __init__(self, alone: Callable[[], bool], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._alone = alone
        self._monotonic_s = monotonic_s
        self._heard_s = monotonic_s() - HEARD_S

    def heard(self) -> None:
        """Note that an entry of another replica was read."""
        self._heard_s = self._monotonic_s()

    @property
    def alone(self) -> bool:
        """True if nobody else is there."""
        return self._alone() and self._monotonic_s() - self._heard_s >= HEARD_S

    def pause_s(self, usual_s: float) -> float:
        """Choose the pause after a flush or a read.

        Args:
            usual_s: The pause in company, seconds.
        """
        return max(usual_s, LEISURE_S) if self.alone else usual_s
