"""A circuit breaker per worker, with time as an argument.

    closed ──failure_threshold failures in a row──> open
    open ──open_s later──> half-open: exactly one request goes through
    half-open ──success_threshold successes, one after the other──> closed
    half-open ──a failure──> open, for another open_s

Only the probe's own outcome counts while half-open: streams that were sent before the circuit opened may
still end, well or not, for minutes.

A failure is the worker's fault (unreachable, silent, broken off, a 5xx); an answer that blames the
request is a success. A probe whose outcome is never reported (its client left) does not block the
circuit: after ``open_s`` the next request may try.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf


class Circuit(StrEnum):
    """State of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Breaker:
    """One worker's circuit.

    Attributes:
        failure_threshold: Failures in a row that open it, >= 1.
        success_threshold: Successes in a row that close it again, >= 1.
        open_s: Seconds it stays open before a probe.
        state: Where it is.
    """

    failure_threshold: int
    success_threshold: int
    open_s: float
    state: Circuit = Circuit.CLOSED
    _failures: int = 0
    _successes: int = 0
    _wait_until_s: float = 0.0
    _probe_sent_s: float = 0.0

    @property
    def closed(self) -> bool:
        """Whether requests pass freely."""
        return self.state is Circuit.CLOSED

    def allows(self, now_s: float) -> bool:
        """Whether a request may be dispatched now. Changes nothing."""
        return self.state is Circuit.CLOSED or now_s >= self._wait_until_s

    def on_dispatch(self, now_s: float) -> None:
        """A request that `allows` permitted is sent."""
        if self.state is not Circuit.CLOSED:
            self.state = Circuit.HALF_OPEN
            self._wait_until_s = now_s + self.open_s  # one probe at a time
            self._probe_sent_s = now_s

    def on_success(self, now_s: float, sent_s: float = inf) -> None:
        """A worker answered a request that was sent at ``sent_s``."""
        if self.state is Circuit.CLOSED:
            self._failures = 0
        elif self.state is Circuit.HALF_OPEN and sent_s >= self._probe_sent_s:
            self._successes += 1
            self._wait_until_s = now_s
            if self._successes >= self.success_threshold:
                self.state = Circuit.CLOSED
                self._failures = self._successes = 0

    def on_failure(self, now_s: float, sent_s: float = inf) -> None:
        """A worker failed a request that was sent at ``sent_s``."""
        if self.state is Circuit.CLOSED:
            self._failures += 1
            opens = self._failures >= self.failure_threshold
        else:
            opens = self.state is Circuit.HALF_OPEN and sent_s >= self._probe_sent_s
        if opens:
            self.state = Circuit.OPEN
            self._successes = 0
            self._wait_until_s = now_s + self.open_s
