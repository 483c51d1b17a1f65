"""Carries out the decisions of `policies.Breaker`: publishes, logs, and filters the workers for dispatch.

Circuits are shared state; this replica's part in them (failures that it counted, its probe) is in the
worker's `Breaker`. Closed circuits cost nothing here. At most a share of the candidates is ejected
(`BreakerRules.spared`). The others are *spared*: they take requests although their circuits are open, and are
probed in turn all the same.
"""

import logging
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from policies import Breaker, BreakerRules, Circuit, CircuitSet, FleetState, probe_from_us
from router.fleet.local_worker import LocalWorker
from router.shared import LogPort

logger = logging.getLogger(__name__)

Slots = NDArray[np.intp]

CACHED_MAX = 100
"""Lists of slots (one per model) with cached results."""

RANKS_US = 1_000_000
"""Time for which the turns to probe are cached: replicas come and go."""


class Circuits:
    """The circuits of the workers, as this replica moves and obeys them."""

    def __init__(self, fleet: FleetState, log: LogPort, rules: BreakerRules) -> None:
        self._fleet = fleet
        self._log = log
        self._replicas = log.replicas
        self._rules = rules
        self._revision = -1
        self._stale_us = 0
        self._refused = np.zeros(0, dtype=np.intp)
        self._open: dict[int, CircuitSet] = {}
        """Open circuits by slot of each place; those of the log are by slot of their workers."""
        self.spared: set[int] = set()
        """Slots of ejected workers that take requests, since too many are ejected."""
        self._logged_spared: set[int] = set()
        self._cached: dict[int, tuple[Slots, Slots]] = {}

    def breaker(self, worker_id: str) -> Breaker | None:
        """This replica's part in a new worker's circuit; None if circuits are turned off."""
        off = self._rules.disable_circuit_breaker
        return None if off else Breaker(self._rules, worker_id, self._log.replica)

    def use(self, rules: BreakerRules, workers: Iterable[LocalWorker]) -> None:
        """Apply other rules from now on."""
        self._rules = rules
        self._revision = -1
        for local in workers:
            if rules.disable_circuit_breaker or local.breaker is None:
                local.breaker = self.breaker(local.worker.worker_id)
            else:
                local.breaker.rules = rules

    def of(self, local: LocalWorker) -> CircuitSet | None:
        """A worker's circuit as this replica obeys it; None if it was always closed."""
        off = self._rules.disable_circuit_breaker
        return None if off else self._fleet.circuits.get(local.worker.worker_id)

    def state(self, local: LocalWorker) -> Circuit:
        """The state of a worker's circuit."""
        circuit = self.of(local)
        return Circuit.CLOSED if circuit is None else circuit.state

    def allowed(self, slots: Slots, now_us: int) -> Slots:
        """Return the slots that this replica may dispatch to now: the same array until that changes."""
        if not self._fleet.circuits.tripped or self._rules.disable_circuit_breaker:
            return slots
        if self._revision != self._fleet.circuits.revision or now_us >= self._stale_us:
            self._rank(now_us)
        cached = self._cached.get(id(slots))  # see `policies.fleet.columns`
        if cached is None or cached[0] is not slots:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            cached = self._cached[id(slots)] = (slots, self._without_refused(slots))
        return cached[1]

    def _without_refused(self, slots: Slots) -> Slots:
        """Drop ejected workers, but spare some if too many are."""
        refused = slots[np.isin(slots, self._refused)]
        spared = self._rules.spared(len(slots), len(refused))
        if spared:
            opened = self._open
            # The first that were ejected have had most time to recover; every replica spares the same.
            ranked = sorted(refused.tolist(), key=lambda slot: (opened[slot].until_us, opened[slot].worker))
            self._spare(ranked[:spared])
            refused = np.array(ranked[spared:], dtype=np.intp)
        return slots[~np.isin(slots, refused)]

    def _spare(self, slots: list[int]) -> None:
        self.spared.update(slots)
        for slot in slots:
            if slot not in self._logged_spared:
                logger.warning(
                    "a worker takes requests although its circuit is open: too many others are ejected",
                    extra={"event": "worker.spared", "worker_id": self._open[slot].worker},
                )
        self._logged_spared.update(slots)

    def dispatched(self, local: LocalWorker, now_us: int) -> None:
        """Note a request about to be sent; to a spared worker it is no probe."""
        tripped = self._fleet.circuits.tripped
        if tripped and local.breaker is not None:
            circuit, log = tripped.get(local.worker.slot), self._log
            if circuit is not None and now_us < probe_from_us(circuit, log.replica, self._replicas()):
                return
            self._move(local, local.breaker.dispatched(self.of(local), now_us), "the wait is over")

    def succeeded(self, local: LocalWorker, now_us: int, sent_us: int) -> None:
        """Note a success of a request sent at ``sent_us``."""
        breaker = local.breaker
        if breaker is not None and (breaker.failures or self._fleet.circuits.tripped):
            self._move(local, breaker.succeeded(self.of(local), now_us, sent_us), "probes succeeded")

    def failed(self, local: LocalWorker, now_us: int, sent_us: int, reason: str) -> None:
        """Note a failure of a request sent at ``sent_us``."""
        if local.breaker is not None:
            self._move(local, local.breaker.failed(self.of(local), now_us, sent_us), reason)

    def restarted(self, local: LocalWorker, now_us: int) -> None:
        """Half-open the circuit of a healthy worker with a new process: its next request probes it."""
        if self._fleet.circuits.tripped and local.breaker is not None:
            self._move(local, local.breaker.restarted(self.of(local), now_us), "restarted")

    def released(self, local: LocalWorker, now_us: int, sent_us: int) -> None:
        """Note the end of a request sent at ``sent_us``, with an outcome or without."""
        if self._fleet.circuits.tripped and local.breaker is not None:
            self._move(local, local.breaker.released(self.of(local), now_us, sent_us), "no outcome")

    def _rank(self, now_us: int) -> None:
        """Find the workers that this replica may not dispatch to now, and until when that holds."""
        replicas, stale_us = self._replicas(), now_us + RANKS_US
        self._open = {}
        for slot, circuit in self._fleet.circuits.tripped.items():
            from_us = circuit.until_us
            if from_us <= now_us:  # turns to probe matter only after the wait
                from_us = probe_from_us(circuit, self._log.replica, replicas)
            if from_us > now_us:
                for place in self._fleet.places(self._fleet.at_slot(slot)):
                    self._open[place.slot] = circuit
                stale_us = min(stale_us, from_us)
        self._refused, self._stale_us = np.array(list(self._open), dtype=np.intp), stale_us
        self._revision = self._fleet.circuits.revision
        self._cached.clear()
        self.spared = set()
        self._logged_spared &= self._open.keys()

    def _move(self, local: LocalWorker, op: CircuitSet | None, reason: str) -> None:
        if op is None or local.removed:
            return
        before = self.state(local)
        self._log.publish(op)
        if op.state is before:
            return
        event, level, message = _LINES[op.state]
        logger.log(
            level,
            message,
            extra={
                "event": event,
                "worker_id": local.worker.worker_id,
                "reason": reason,
                "replica": self._log.replica,
                "successes": op.successes,
            },
        )


_LINES = {
    Circuit.OPEN: (
        "worker.ejected",
        logging.WARNING,
        "worker failed requests in a row and is ejected: only probes go there until they succeed",
    ),
    Circuit.HALF_OPEN: ("worker.probed", logging.INFO, "an ejected worker gets one request as a probe"),
    Circuit.CLOSED: ("worker.restored", logging.INFO, "an ejected worker takes requests again"),
}
