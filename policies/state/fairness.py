"""Service of each flow while others waited, and so the flows that may go next.

Requests belong to *flows*, ``CLASS/TENANT``. Classes share the fleet by their weights, and the tenants of a
class share its part by theirs: a class with a hundred tenants gets no more than one with a single tenant. The
unit is predicted prefill seconds (uncached tokens, priced by `policies.estimates.costs`).

By key alone a flow with many short requests would be served before all others. So of the flows that wait for
one room, only those may go that are not far ahead: with ``n = service of the last window / weight``,

    n(flow) - least n <= (quantum / window) · (sum of service / sum of weights)

where all are those that compete for that room. The right side is the service of a unit of weight in a
quantum, so a flow may be ahead by a quantum of time, however large the fleet and the weights are. Within that
time the order is by key, which keeps short waits and locality: deficits bounded as in VTC (Sheng et al., OSDI
2024, arXiv:2401.00588), order inside the bound free as in DLPM (Cao et al., arXiv:2501.14312). The flow with
the least service may always go: a room is never held while a request waits for it.

VTC lifts the counter of a flow that returns, so that it cannot claim service that it left to others. Here
only placements while a request waits are charged (`Placed.flow`), and only the last window counts, so nothing
needs to be lifted, and the sums are a fold: whole microseconds in buckets of log time.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import repeat
from math import fsum
from operator import truediv

import numpy as np
from numpy.typing import NDArray

from policies.state.flow_rows import FlowRows, Rows

BUCKETS = 16
"""Parts of the window that leave it one after the other."""

SNAPSHOT_FLOWS_MAX = 2_000
"""Flows in a snapshot, those with the most service: less than 200 KB.

Of others a newcomer knows nothing for one window, and serves them sooner than it should.
"""

Charges = list[tuple[int, dict[str, int]]]
"""By the log time at which a bucket begins: microseconds of prefill by flow."""


def class_of(flow: str) -> str:
    """The class of a flow."""
    return flow.partition("/")[0]


class Weights(dict[str, float]):
    """Cache of weights, by class or flow."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of

    def __missing__(self, name: str) -> float:
        weight = self[name] = self._weight_of(name)
        return weight


def equal_weights(_name: str) -> float:
    """Prefer no class and no tenant."""
    return 1.0


class Fairness:
    """Service per flow and class in the last window, of all replicas.

    Args:
        weight_of: Weight > 0 of a class among classes, or of a flow among the tenants of its class. May
            change; that counts within a sixteenth of the window.
        quantum_s: Allowed lead of a flow, seconds of its share of the fleet.
        window_s: Older service does not count, seconds.

    Attributes:
        rows: The same numbers of flows that wait, if they are many.
    """

    def __init__(
        self,
        weight_of: Callable[[str], float] = equal_weights,
        quantum_s: float = 1.0,
        window_s: float = 60.0,
    ) -> None:
        self._window_s = window_s
        self.rows = FlowRows(self.weight_of, lambda flow: self._service_us.get(flow, 0))
        self.use(weight_of, quantum_s)
        self._bucket_us = max(1, round(window_s * 1e6) // BUCKETS)
        self._newest = 0
        self._buckets: dict[int, dict[str, int]] = {}
        self._service_us: dict[str, int] = {}

    def use(self, weight_of: Callable[[str], float], quantum_s: float) -> None:
        """Change weights and quantum (see `Fairness`)."""
        self._weights = Weights(weight_of)
        self.rows.weights_may_change()
        self._slack_ratio = quantum_s / self._window_s

    # The fold.

    def charge(self, flow: str, at_us: int, service_us: int) -> None:
        """Count a placement; the caller counts each only once (`policies.state.loads`)."""
        bucket = at_us // self._bucket_us
        if bucket > self._newest:
            self._advance(bucket)
        if bucket > self._newest - BUCKETS:
            self._add(bucket, flow, service_us)

    def dump(self) -> Charges:
        """Charges, for `merge`."""
        flows = {flow for charged in self._buckets.values() for flow in charged}
        kept = set(sorted(flows, key=lambda flow: (-self._service_us[flow], flow))[:SNAPSHOT_FLOWS_MAX])
        return [
            (bucket * self._bucket_us, {flow: us for flow, us in sorted(charged.items()) if flow in kept})
            for bucket, charged in sorted(self._buckets.items())
        ]

    def merge(self, charges: Charges) -> None:
        """Merge another replica's charges: of one flow and bucket the greater sum."""
        for begins_us, charged in charges:
            bucket = begins_us // self._bucket_us
            self._advance(bucket)
            if bucket > self._newest - BUCKETS:
                counted = self._buckets.get(bucket, {})
                for flow, us in charged.items():
                    more_us = us - counted.get(flow, 0)
                    if more_us > 0:
                        self._add(bucket, flow, more_us)

    # Questions.

    def service_us(self, name: str, now_us: int) -> int:
        """Service of a class or a flow in the last window, predicted microseconds of prefill."""
        self._advance(now_us // self._bucket_us)
        return self._service_us.get(name, 0)

    def weight_of(self, name: str) -> float:
        """Weight of a class, or of a flow in its class."""
        return self._weights[name]

    def may_go(self, classes: Mapping[str, Collection[str]], now_us: int) -> dict[str, Collection[str]]:
        """Return which of the flows that wait for a room may have it, by class; at least one, if any."""
        self._advance(now_us // self._bucket_us)
        return {name: self._not_ahead(classes[name]) for name in self._not_ahead(classes)}

    def classes_to_go(self, names: Collection[str], now_us: int) -> Collection[str]:
        """Return which of the classes that wait for a room may have it; at least one, if any."""
        self._advance(now_us // self._bucket_us)
        return self._not_ahead(names)

    def to_go(self, rows: Rows, newcomer: str = "") -> tuple[NDArray[np.bool_], bool]:
        """Return which flows of one class may go, by their rows, and whether a newcomer may.

        Ask after `classes_to_go`. The newcomer competes with them; empty for none.
        """
        return self.rows.not_ahead(rows, self._slack_ratio, newcomer)

    # Inside.

    def _not_ahead(self, names: Collection[str]) -> Collection[str]:
        """Classes, or flows of one class, that are not too far ahead."""
        if len(names) < 2:
            return names
        service_us = list(map(self._service_us.get, names, repeat(0)))
        weights = list(map(self._weights.__getitem__, names))
        served = list(map(truediv, service_us, weights))
        most = min(served) + self._slack_ratio * sum(service_us) / fsum(weights)
        return [name for name, each in zip(names, served, strict=True) if each <= most]

    def _add(self, bucket: int, flow: str, service_us: int) -> None:
        charged = self._buckets.setdefault(bucket, {})
        charged[flow] = charged.get(flow, 0) + service_us
        for name in {flow, class_of(flow)}:
            self._service_us[name] = self._service_us.get(name, 0) + service_us
        self.rows.served(flow, self._service_us[flow])

    def _advance(self, bucket: int) -> None:
        if bucket <= self._newest:
            return
        self._newest = bucket
        self._weights.clear()
        self.rows.weights_may_change()
        for old in [old for old in self._buckets if old <= bucket - BUCKETS]:
            for flow, us in self._buckets.pop(old).items():
                for name in {flow, class_of(flow)}:
                    left_us = self._service_us[name] - us
                    if left_us:
                        self._service_us[name] = left_us
                    else:
                        del self._service_us[name]
                self.rows.served(flow, self._service_us.get(flow, 0))
