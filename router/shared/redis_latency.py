"""Latency of Redis: a degraded reason while replicas learn of each other too late.

A Redis that answers late still works: nothing here waits for it. But siblings learn of changes late by
as much, so it is said. Round trips come from calls that are made anyway: flushes, heartbeats, clock samples,
and blocking reads that found nothing and came back later than they should.

              all above `SLOW_S` for `SLOW_FOR_S`, 2 at least, or an answer overdue for much longer
    in time ----------------------------------------------------------> slow
            <----------------------------------------------------------
              3 in a row below `FAST_S`

A stall of this process makes everything late that was under way, once. So a round trip only counts
if it began after the last one that counted had ended.

A replica that is alone with its own Valkey is never slow: no sibling waits for its answers.
"""

from collections.abc import Callable

from router.shared.degraded_reasons import DegradedReasons

# Between the delay of a busy host (tens of milliseconds) and the 100 ms at which a burst of requests
# with one prefix is spread over replicas that do not know of each other's placements.
SLOW_S = 0.075
FAST_S = 0.05
SLOW_IN_A_ROW = 2
SLOW_FOR_S = 1.0  # shorter is a stall of the machine: over before an operator could read of it
FAST_IN_A_ROW = 3


class RedisLatency:
    """Judges round trips.

    Args:
        degraded_reasons: Reasons that show a slow Redis.
        unheard: Returns True while no other replica waits for this one's entries.

    Attributes:
        degraded_reasons: As given.
    """

    def __init__(
        self, degraded_reasons: DegradedReasons, unheard: Callable[[], bool] = lambda: False
    ) -> None:
        self.degraded_reasons = degraded_reasons
        self._unheard = unheard
        self._slow = self._silent = False
        self._against = 0
        self._against_since_s = 0.0
        self._counted_until_s = 0.0

    def measured(self, started_s: float, ended_s: float, expected_s: float = 0.0) -> None:
        """Take one round trip into account.

        Args:
            started_s: Monotonic seconds just before the command.
            ended_s: Monotonic seconds just after the answer.
            expected_s: Time that the server was asked to wait before it answers, seconds.
        """
        if started_s < self._counted_until_s:
            return
        self._counted_until_s = ended_s
        took_s = ended_s - started_s - expected_s
        if took_s < FAST_S if self._slow else took_s > SLOW_S:
            if not self._against:
                self._against_since_s = started_s
            self._against += 1
        else:
            self._against = 0
        if self._slow and (self._against == FAST_IN_A_ROW or self._unheard()):
            self._slow = self._silent = False
            self._against = 0
            self.degraded_reasons.clear("pace")
        elif (self._silent and took_s > SLOW_S) or self._is_slow_now(ended_s):
            self._silent = False
            self._slowed(f"Redis answers late: after {took_s * 1000:.0f} ms")

    def overdue(self, silence_s: float) -> None:
        """Take into account that an answer has not come for this long, and may never come."""
        if not self._slow:
            self._silent = True
            self._slowed(f"Redis has not answered for {silence_s:g} s")

    def _is_slow_now(self, now_s: float) -> bool:
        """True if Redis has answered late for long enough, and was not slow before."""
        lasting = now_s - self._against_since_s >= SLOW_FOR_S
        return not self._slow and self._against >= SLOW_IN_A_ROW and lasting

    def _slowed(self, reason: str) -> None:
        if self._unheard():
            self._silent, self._against = False, 0
            return
        self._slow, self._against = True, 0
        self.degraded_reasons.set("pace", reason)
