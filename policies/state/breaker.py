"""A circuit breaker per worker: one state for all replicas, with time as an argument.

    closed ──failure_threshold failures in a row──> open
    open ──open_us later──> half-open: exactly one request goes through, in the whole gateway
    half-open ──success_threshold successes, one after the other──> closed
    half-open ──a failure──> open, for another open_us
    open ──the worker's process is another one──> half-open

The state is a register in the shared log (`policies.state.ops.CircuitSet`), so all replicas eject and restore
a worker together; failures in a row are each replica's own, and so is the one probe it may have under way. A
replica says half-open *before* it sends the probe. So that two do not do so at once, the right to probe is
staggered: the replica that ranks first for a worker may go as soon as the wait is over, the next one
`PROBE_STAGGER_US` later, if nobody has, and so on (`probe_from_us`). While replicas cannot hear each other,
each side probes by itself.

Only the probe's own outcome counts while half-open: streams that were sent before the circuit opened may
still end, well or not, for minutes; nor do they count against a worker that was restored meanwhile.

A failure is the worker's fault (unreachable, silent, broken off, a 5xx); an answer that blames the
request is a success. A probe without an outcome (its client left) gives the right to probe back; one whose
replica died does not block the circuit: after ``open_us`` the next request may try.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.declared import setting
from policies.state.ops import Circuit, CircuitSet
from policies.state.rendezvous import turn_of

PROBE_STAGGER_US = 250_000
"""Between the replicas' turns to probe: ten times what the log lags at P99."""


@dataclass(frozen=True)
class BreakerRules:
    """When circuits move."""

    cb_failure_threshold: int = setting(
        10,
        "Failures in a row, of one replica's requests, after which all replicas eject a worker. The default "
        "is the peers'.",
        ge=1,
        live=True,
    )
    cb_success_threshold: int = setting(
        3,
        "Successful probes in a row after which an ejected worker takes requests again, of all replicas; "
        "fleet.slow_start_s says how fast. The default is the peers'.",
        ge=1,
        live=True,
    )
    cb_timeout_duration_secs: float = setting(
        60.0,
        "Time after which an ejected worker gets one request of the whole gateway as a probe, in seconds. "
        "The default is the peers'.",
        gt=0,
        live=True,
    )
    ejected_ratio_max: float = setting(
        0.5,
        "Greatest share of the workers that may take a request which is ejected, 0 to 1; below 1 the last "
        "one never is. Workers beyond it go on taking requests. The default is Envoy's panic threshold; the "
        "peers eject all (1).",
        ge=0,
        le=1,
        live=True,
    )
    disable_circuit_breaker: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never eject a worker for failing requests; health checks still count.",
        live=True,
    )

    @property
    def open_us(self) -> int:
        """Microseconds that a circuit stays open before a probe, and a probe may take before the next one."""
        return round(self.cb_timeout_duration_secs * 1e6)

    def spared(self, workers: int, ejected: int) -> int:
        """How many of the ejected workers take requests all the same, since too many are.

        Envoy's outlier detection calls the bound ``max_ejection_percent``: when most of the workers fail, the
        cause is rarely the workers, and the few that are left would be given what all of them had.

        Args:
            workers: Those that may take a request, ejected or not.
            ejected: Those of them that are ejected.
        """
        most = workers if self.ejected_ratio_max == 1 else int(self.ejected_ratio_max * workers)
        return max(ejected - most, 0)


def probe_from_us(known: CircuitSet, replica: str, replicas: Sequence[str]) -> int:
    """Log time from which one replica may dispatch to a worker whose circuit is not closed.

    Args:
        known: The state of the circuit.
        replica: Who asks.
        replicas: All that are alive.
    """
    return known.until_us + turn_of(known.worker, replica, replicas) * PROBE_STAGGER_US


class Breaker:
    """One replica's part in one worker's circuit. Each method returns what to tell everybody, if anything.

    Args:
        rules: When it moves.
        worker: Worker id.
        replica: Id of this replica.

    Attributes:
        rules: As given; may change.
    """

    __slots__ = ("_counting_since_us", "_failures", "_probe", "_replica", "_sent_us", "_worker", "rules")

    def __init__(self, rules: BreakerRules, worker: str, replica: str) -> None:
        self.rules = rules
        self._worker = worker
        self._replica = replica
        self._failures = 0
        self._counting_since_us = 0
        self._probe: CircuitSet | None = None
        self._sent_us = 0

    @property
    def failures(self) -> int:
        """Failures in a row that this replica saw."""
        return self._failures

    def dispatched(self, known: CircuitSet | None, now_us: int) -> CircuitSet | None:
        """A request is about to be sent: unless the circuit is closed it is the probe."""
        if known is None or known.state is Circuit.CLOSED:
            return None
        self._sent_us = now_us
        until_us = now_us + self.rules.open_us
        self._probe = self._to(known, now_us, Circuit.HALF_OPEN, until_us, known.successes)
        return self._probe

    def succeeded(self, known: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """The worker answered what was sent at ``sent_us``."""
        self._failures = 0
        if known is None or not self._probes(known, sent_us):
            return None
        successes = known.successes + 1
        if successes >= self.rules.cb_success_threshold:
            return self._to(known, now_us, Circuit.CLOSED)
        return self._to(known, now_us, Circuit.HALF_OPEN, now_us, successes)

    def failed(self, known: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """The worker failed what was sent at ``sent_us``."""
        if known is None or known.state is Circuit.CLOSED:
            since_us = known.at_us if known is not None else 0
            if since_us != self._counting_since_us:
                self._counting_since_us, self._failures = since_us, 0
            if sent_us < since_us:
                return None
            self._failures += 1
            if self._failures < self.rules.cb_failure_threshold:
                return None
        elif not self._probes(known, sent_us):
            return None
        self._failures = 0
        return self._to(known, now_us, Circuit.OPEN, now_us + self.rules.open_us)

    def restarted(self, known: CircuitSet | None, now_us: int) -> CircuitSet | None:
        """Another process is behind the worker: what the old one failed says nothing of it."""
        if known is None or known.state is not Circuit.OPEN:
            return None
        return self._to(known, now_us, Circuit.HALF_OPEN, now_us)

    def released(self, known: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """What was sent at ``sent_us`` is over: if it was the probe and had no outcome, the next may go."""
        if known is None or not self._probes(known, sent_us):
            return None
        return self._to(known, now_us, Circuit.HALF_OPEN, now_us, known.successes)

    def _probes(self, known: CircuitSet, sent_us: int) -> bool:
        """Whether the circuit waits for the outcome of what was sent then."""
        return known == self._probe and sent_us >= self._sent_us

    def _to(
        self, known: CircuitSet | None, now_us: int, state: Circuit, until_us: int = 0, successes: int = 0
    ) -> CircuitSet:
        """The next state: later than the known one, also if the clock of who set that is ahead."""
        at_us = now_us if known is None else max(now_us, known.at_us + 1)
        return CircuitSet(self._worker, at_us, self._replica, state, until_us, successes)
