"""A circuit breaker per worker: one state for all replicas, with time as an argument.

    closed ──failure_threshold failures in a row──> open
    open ──open_us later──> half-open: one request probes, as a rule one in the whole gateway
    half-open ──success_threshold successes, one after the other──> closed
    half-open ──a failure──> open, for another open_us
    open ──the worker's process is another one──> half-open

The state is a register in the shared log (`policies.state.ops.CircuitSet`), so all replicas eject and restore
a worker together; failures in a row are each replica's own, and so is its probe. A replica publishes
half-open *before* it sends the probe. The right to probe is staggered, so that two replicas do not do so at
once: the first replica of a worker may go as soon as the wait is over, the next one `PROBE_STAGGER_US` later,
if no other has, and so on (`probe_from_us`). Two replicas both probe if their requests meet within the log's
lag after both turns have begun: the register of the later one wins, and the outcome of the other does not
count. Partitioned replicas probe on each side.

Only the probe's own outcome counts while half-open: streams sent before the circuit opened may end, well or
not, for minutes; nor do they count against a worker that was restored meanwhile.

A failure is the worker's fault (unreachable, silent, broken off, a 5xx); an answer that blames the request is
a success. A probe without an outcome (its client left) returns the right to probe; if its replica died, the
next request may try after ``open_us``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.declared import setting
from policies.state.ops import Circuit, CircuitSet
from policies.state.rendezvous import turn_of

PROBE_STAGGER_US = 250_000
"""Time between the replicas' turns to probe: ten times the log's lag at P99."""


@dataclass(frozen=True)
class BreakerRules:
    """Thresholds of circuits."""

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
        "Greatest share of ejected workers among those that may take a request, 0 to 1; below 1 the last one "
        "is never ejected. Workers beyond it go on taking requests. The default is Envoy's panic threshold; "
        "the peers eject all (1).",
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
        """Microseconds that a circuit stays open, and that a probe may take before the next one."""
        return round(self.cb_timeout_duration_secs * 1e6)

    def spared(self, workers: int, ejected: int) -> int:
        """Number of ejected workers that take requests all the same, since too many are ejected.

        Envoy's outlier detection calls the bound ``max_ejection_percent``: when most of the workers that may
        take a request fail, the cause is rarely the workers, and the few others would be given the load of
        all.
        """
        most = workers if self.ejected_ratio_max == 1 else int(self.ejected_ratio_max * workers)
        return max(ejected - most, 0)


def probe_from_us(current: CircuitSet, replica: str, replicas: Sequence[str]) -> int:
    """Log time from which a living replica may dispatch to a worker whose circuit is not closed."""
    return current.until_us + turn_of(current.worker, replica, replicas) * PROBE_STAGGER_US


class Breaker:
    """A replica's part in a worker's circuit. Each method returns the operation to publish, if any."""

    __slots__ = ("_counting_since_us", "_probe", "_replica", "_sent_us", "_worker", "failures", "rules")

    def __init__(self, rules: BreakerRules, worker: str, replica: str) -> None:
        self.rules = rules
        self._worker = worker
        self._replica = replica
        self.failures = 0
        """Failures in a row that this replica saw."""
        self._counting_since_us = 0
        self._probe: CircuitSet | None = None
        self._sent_us = 0

    def dispatched(self, current: CircuitSet | None, now_us: int) -> CircuitSet | None:
        """Note a dispatch: unless the circuit is closed it is the probe."""
        if current is None or current.state is Circuit.CLOSED:
            return None
        self._sent_us = now_us
        until_us = now_us + self.rules.open_us
        self._probe = self._to(current, now_us, Circuit.HALF_OPEN, until_us, current.successes)
        return self._probe

    def succeeded(self, current: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """Note an answer to the request sent at ``sent_us``."""
        self.failures = 0
        if current is None or not self._probes(current, sent_us):
            return None
        successes = current.successes + 1
        if successes >= self.rules.cb_success_threshold:
            return self._to(current, now_us, Circuit.CLOSED)
        return self._to(current, now_us, Circuit.HALF_OPEN, now_us, successes)

    def failed(self, current: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """Note a failure of the request sent at ``sent_us``."""
        if current is None or current.state is Circuit.CLOSED:
            since_us = current.at_us if current is not None else 0
            if since_us != self._counting_since_us:
                self._counting_since_us, self.failures = since_us, 0
            if sent_us < since_us:
                return None
            self.failures += 1
            if self.failures < self.rules.cb_failure_threshold:
                return None
        elif not self._probes(current, sent_us):
            return None
        self.failures = 0
        return self._to(current, now_us, Circuit.OPEN, now_us + self.rules.open_us)

    def restarted(self, current: CircuitSet | None, now_us: int) -> CircuitSet | None:
        """Half-open the circuit of a worker whose process is new: old failures do not concern it."""
        if current is None or current.state is not Circuit.OPEN:
            return None
        return self._to(current, now_us, Circuit.HALF_OPEN, now_us)

    def released(self, current: CircuitSet | None, now_us: int, sent_us: int) -> CircuitSet | None:
        """Return the right to probe, if the request sent at ``sent_us`` was the probe and had no outcome."""
        if current is None or not self._probes(current, sent_us):
            return None
        return self._to(current, now_us, Circuit.HALF_OPEN, now_us, current.successes)

    def _probes(self, current: CircuitSet, sent_us: int) -> bool:
        """True if the circuit waits for the outcome of the request sent then."""
        return current == self._probe and sent_us >= self._sent_us

    def _to(
        self, current: CircuitSet | None, now_us: int, state: Circuit, until_us: int = 0, successes: int = 0
    ) -> CircuitSet:
        """Next state: later than the present one, also if its author's clock is ahead."""
        at_us = now_us if current is None else max(now_us, current.at_us + 1)
        return CircuitSet(self._worker, at_us, self._replica, state, until_us, successes)
