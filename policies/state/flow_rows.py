"""Numbers of the flows that wait, one row each, so that a question about thousands of them is a few sums.

    FlowRows      by row: service, waiting work, weight     one for a replica, owned by `Fairness`
    FlowHeads     of one line and class: rows, least keys   made when a line has more than `FEW` flows

A row belongs to a flow while such a line has it. Sums are exact, so replicas that number their flows
differently decide the same.
"""

from collections.abc import Callable
from math import fsum
from typing import cast

import numpy as np
from numpy.typing import NDArray

FEW = 24
"""Flows up to which plain Python is as fast: 10 us (`python -m loadtest.bench.decision --queue`)."""

REFRESHED_MAX = 128
"""Weights that one question asks for again, some 0.1 ms."""

NO_KEY = 2**63 - 1
"""Key of a flow without a competing ticket."""

Rows = NDArray[np.intp]
Keys = NDArray[np.int64]


class FlowRows:
    """Service in the window, waiting work and weight of each flow that has a row.

    Args:
        weight_of: Present weight of a flow, or of a class.
        service_us: Present service of a flow.

    Attributes:
        work_us: Predicted prefill that waits, of each flow with any, at all replicas.
    """

    def __init__(self, weight_of: Callable[[str], float], service_us: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._service_of = service_us
        self.work_us: dict[str, int] = {}
        self._classes: dict[str, int] = {}
        self._row: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._version = 0
        self._allocate(64)

    def _allocate(self, rows: int) -> None:
        def grown(name: str, dtype: type[np.generic]) -> NDArray[np.generic]:
            column = np.zeros(rows, dtype=dtype)
            old = getattr(self, name, None)
            if old is not None:
                column[: len(old)] = old
            return column

        self._service_us = cast("Keys", grown("_service_us", np.int64))
        self._weights = cast("NDArray[np.float64]", grown("_weights", np.float64))
        self._versions = cast("Keys", grown("_versions", np.int64))
        self._work_us = cast("Keys", grown("_work_us", np.int64))
        self._class = cast("Rows", grown("_class", np.intp))

    def enter(self, flow: str) -> int:
        """Return the row of a flow, for one more user."""
        users = self._users.get(flow, 0)
        self._users[flow] = users + 1
        if users:
            return self._row[flow]
        if self._free:
            row = self._free.pop()
            self._names[row] = flow
        else:
            row = len(self._names)
            self._names.append(flow)
            if row == len(self._service_us):
                self._allocate(2 * row)
        self._row[flow] = row
        self._service_us[row] = self._service_of(flow)
        self._work_us[row] = self.work_us.get(flow, 0)
        self._class[row] = self._classes.setdefault(flow.partition("/")[0], len(self._classes))
        self._weigh(row)
        return row

    def leave(self, flow: str) -> None:
        """End one use of a flow's row."""
        self._users[flow] -= 1
        if not self._users[flow]:
            del self._users[flow]
            self._free.append(self._row.pop(flow))

    def served(self, flow: str, service_us: int) -> None:
        """Note the present service of a flow."""
        row = self._row.get(flow)
        if row is not None:
            self._service_us[row] = service_us

    def waits(self, flow: str, more_us: int) -> None:
        """Note that more of a flow's work waits; less if the number is negative."""
        if not more_us:
            return
        work_us = self.work_us.get(flow, 0) + more_us
        if work_us:
            self.work_us[flow] = work_us
        else:
            self.work_us.pop(flow, None)
        row = self._row.get(flow)
        if row is not None:
            self._work_us[row] = work_us

    def weights_may_change(self) -> None:
        """Ask for all weights again, a few in each question."""
        self._version += 1

    def name_of(self, row: int) -> str:
        """The flow of a row."""
        return self._names[row]

    def capacity(self) -> int:
        """A number above all rows."""
        return len(self._service_us)

    def not_ahead(self, rows: Rows, slack_ratio: float, newcomer: str = "") -> tuple[NDArray[np.bool_], bool]:
        """Return which of these flows may go (`policies.state.fairness`), and whether the newcomer may.

        A newcomer competes with them; without one, or if its row is among them, the second is as its row's.
        """
        self._refresh(rows)
        service_us, weights = self._service_us[rows], self._weights[rows]
        served = service_us / weights
        least, total_us = served.min(), int(service_us.sum())
        own = self._row.get(newcomer, -1)
        known: list[int] = np.flatnonzero(rows == own).tolist() if own >= 0 else []
        added = [] if known or not newcomer else [self._weight_of(newcomer)]
        n = 0.0
        if added:
            own_us = self._service_of(newcomer)
            n = own_us / added[0]
            least, total_us = min(least, n), total_us + own_us
        elif known:
            n = served.item(known[0])
        most = float(least) + slack_ratio * total_us / _sum(weights, added)
        return served <= most, bool(n <= most)

    def most_waiting(self, rows: Rows, name: str, limit_us: float) -> str | None:
        """Return the flow that gives way to one of a class with so much waiting (`Tickets.worst`)."""
        self._refresh(rows)
        weights = np.array([self._weight_of(each) for each in self._classes])
        higher = weights[self._class[rows]] - self._weight_of(name)
        waiting_us = self._work_us[rows] / self._weights[rows]
        gives_way = (higher < 0) | (
            (self._class[rows] == self._classes.get(name, -1)) & (waiting_us > limit_us)
        )
        if not gives_way.any():
            return None
        gives_way &= higher == higher[gives_way].min()
        gives_way &= waiting_us == waiting_us[gives_way].max()
        return max(map(self._names.__getitem__, rows[gives_way].tolist()))

    def _refresh(self, rows: Rows) -> None:
        stale = rows[self._versions[rows] != self._version]
        for row in stale[:REFRESHED_MAX].tolist():
            self._weigh(row)

    def _weigh(self, row: int) -> None:
        self._weights[row] = self._weight_of(self._names[row])
        self._versions[row] = self._version


def _sum(weights: NDArray[np.float64], added: list[float]) -> float:
    """Sum of weights, rounded once."""
    first = weights.item(0)
    if (weights == first).all() and (not added or added[0] == first):
        return first * (len(weights) + len(added))
    return fsum(weights.tolist() + added)


class FlowHeads:
    """Rows and least keys of the flows of one line and class, in any order.

    Attributes:
        at: Position of each flow.
    """

    __slots__ = ("_flows", "_keys", "_rows", "_table", "at")

    def __init__(self, table: FlowRows) -> None:
        self._table = table
        self.at: dict[str, int] = {}
        self._flows: list[str] = []
        self._rows: Rows = np.zeros(2 * FEW, dtype=np.intp)
        self._keys: Keys = np.zeros(2 * FEW, dtype=np.int64)

    @property
    def rows(self) -> Rows:
        """The rows, by position."""
        return self._rows[: len(self._flows)]

    @property
    def keys(self) -> Keys:
        """The least keys, by position."""
        return self._keys[: len(self._flows)]

    def put(self, flow: str, key_us: int) -> None:
        """Note the least key of a flow."""
        at = self.at.get(flow)
        if at is None:
            at = self.at[flow] = len(self._flows)
            self._flows.append(flow)
            if at == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])
            self._rows[at] = self._table.enter(flow)
        self._keys[at] = key_us

    def drop(self, flow: str) -> None:
        """Remove a flow; the last one takes its position."""
        at, last = self.at.pop(flow), len(self._flows) - 1
        other = self._flows.pop()
        if at != last:
            self._flows[at], self.at[other] = other, at
            self._rows[at], self._keys[at] = self._rows[last], self._keys[last]
        self._table.leave(flow)


def merged(parts: list[tuple[Rows, Keys]], capacity: int) -> tuple[Rows, Keys]:
    """Return all rows with a key, and the least key of each; ``capacity`` is above all rows."""
    if len(parts) == 1:
        rows, keys = parts[0]
        competes = keys < NO_KEY
        return (rows, keys) if competes.all() else (rows[competes], keys[competes])
    least = np.full(capacity, NO_KEY)
    for rows, keys in parts:
        least[rows] = np.minimum(least[rows], keys)
    found = np.flatnonzero(least < NO_KEY)
    return found, least[found]
