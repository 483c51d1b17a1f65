"""Rows of `LoadVector`: what each other replica has in flight at each worker, by its own newest word.

    cells[replica, column, slot]    five sums, which `policies.state.loads` adds up, and the oldest prefill
    times[replica, slot]            log time of the vector that the row is from

A vector replaces the rows that it names, and a full one all; a newer row stays, whatever comes later. So a
replica that dies is one subtraction, whatever it had in flight.
"""

import numpy as np
from numpy.typing import NDArray

from policies.state.ops import LoadVector

COLUMNS = (
    "prefill_us",
    "prefill_requests",
    "prefill_tokens",
    "inflight_requests",
    "inflight_tokens",
    "head_us",
    "head_service_us",
    "head_tokens",
    "done_us",
)
"""Numbers of a row in a vector.

Of the requests without a first token the sum of their predicted prefills (microseconds), their number and
their uncached tokens; of all in flight the number and the tokens of their contexts; of the oldest one without
a first token the time of its placement, its predicted prefill and its context; the time at which the newest
prefill was done. Both times are microseconds before the vector's, so that none lies in the future; `NONE` for
never.
"""

SUMS = 5
"""Columns that add up over replicas; they come first."""

PREFILL_REQUESTS, INFLIGHT_REQUESTS = 1, 3
HEAD_US, HEAD_SERVICE_US, HEAD_TOKENS, DONE_US = range(SUMS, len(COLUMNS))

NONE = (1 << 32) - 1
"""The greatest number; of a time: 71 minutes ago, or never."""

CELLS_MAX = 1 << 22
"""Rows of all replicas, empty ones included: 256 replicas at 16,384 workers, or 300 MB."""

Numbers = NDArray[np.float64]
Slots = NDArray[np.intp]


def packed(columns: Numbers) -> bytes:
    """Return rows, a column in each of `COLUMNS`, as the numbers of a vector."""
    return np.clip(columns, 0, NONE).astype("<u4").tobytes()


def unpacked(op: LoadVector) -> Numbers:
    """Return the rows of a vector with absolute times, 0 for none.

    Raises:
        ValueError: They contradict each other.
    """
    workers = len(op.workers)
    if len(op.numbers) != 4 * len(COLUMNS) * workers or len(set(op.workers)) != workers:
        raise ValueError("a load vector has one row of numbers for each of its workers")
    columns = np.frombuffer(op.numbers, "<u4").reshape(len(COLUMNS), workers).astype(np.float64)
    prefills, done = columns[PREFILL_REQUESTS], columns[DONE_US]
    if (prefills > columns[INFLIGHT_REQUESTS]).any():
        raise ValueError("a load vector has more prefills than requests in flight")
    columns[DONE_US] = (op.at_us - done) * (done < NONE)
    columns[HEAD_US] = op.at_us - columns[HEAD_US]
    columns[HEAD_US:DONE_US] *= prefills > 0
    if op.at_us < NONE:
        np.maximum(columns, 0.0, out=columns)
    return columns


class LoadRows:
    """Rows of the replicas that send vectors.

    Args:
        slots: Number of slots.

    Attributes:
        newest_us: By replica, log time of its newest vector. What it placed until then is in its rows.
        head_us: Per slot, when the oldest prefill in a row was placed; 0 if there is none.
        head_service_us: Its predicted duration.
        head_tokens: Its context.
    """

    def __init__(self, slots: int) -> None:
        self.newest_us: dict[str, int] = {}
        self._index: dict[str, int] = {}
        self._full_us: dict[str, int] = {}
        self._cells = np.zeros((0, DONE_US, slots))
        self._times = np.zeros((0, slots))
        self.head_us, self.head_service_us, self.head_tokens = np.zeros((3, slots))

    def resize(self, slots: int) -> None:
        """Make room for more slots."""
        self._grow(len(self._cells), slots)
        kept = len(self.head_us)
        heads = np.zeros((3, slots))
        heads[:, :kept] = self.head_us, self.head_service_us, self.head_tokens
        self.head_us, self.head_service_us, self.head_tokens = heads

    def put(self, op: LoadVector, columns: Numbers, slots: Slots) -> tuple[Slots, Numbers]:
        """Take the rows of a vector that are newer than those known.

        Args:
            op: The vector.
            columns: Its rows (`unpacked`).
            slots: Their slots.

        Returns:
            Slots of changed rows, and by how much each sum grew there.

        Raises:
            ValueError: There are too many replicas.
        """
        row = self._row_of(op.replica)
        if op.full:
            whole = np.zeros((DONE_US, self._cells.shape[2]))
            whole[:, slots] = columns[:DONE_US]
            columns, slots = whole, np.arange(self._cells.shape[2])
        newest_us = self.newest_us.get(op.replica, -1)
        if op.at_us <= newest_us:
            fresh = op.at_us > np.maximum(self._times[row, slots], self._full_us.get(op.replica, -1))
            slots, columns = slots[fresh], columns[:, fresh]
        cells = self._cells[row]
        grown = columns[:SUMS] - cells[:SUMS, slots]
        cells[:, slots] = columns[:DONE_US]
        self._times[row, slots] = op.at_us
        self.newest_us[op.replica] = max(op.at_us, newest_us)
        if op.full:
            self._full_us[op.replica] = max(op.at_us, self._full_us.get(op.replica, -1))
            slots, grown = _changed(slots, grown, columns)
        self._find_heads(slots)
        return slots, grown

    def drop(self, replica: str, until_us: int) -> tuple[Slots, Numbers] | None:
        """Void the vectors of a replica until a log time; return what changed, as `put` does."""
        row = self._index.get(replica)
        if row is None:
            return None
        cells, old = self._cells[row], self._times[row] <= until_us
        slots = np.flatnonzero(old & cells.any(axis=0))
        grown = -cells[:SUMS, slots]
        cells[:, slots] = 0.0
        if self.newest_us[replica] <= until_us:
            self._times[row] = 0.0
            del self._index[replica], self.newest_us[replica]
            self._full_us.pop(replica, None)
        self._find_heads(slots)
        return slots, grown

    def clear(self, slot: int) -> None:
        """Free a slot for another worker."""
        self._cells[:, :, slot] = self._times[:, slot] = 0.0
        self.head_us[slot] = self.head_service_us[slot] = self.head_tokens[slot] = 0.0

    def prefills_since_us(self, replica: str, slot: int) -> float:
        """Log time before which all that a replica placed at a worker is prefilled, by its newest word."""
        row = self._index.get(replica)
        if row is None:
            return np.inf
        if self._cells[row, PREFILL_REQUESTS, slot]:
            return float(self._cells[row, HEAD_US, slot])
        return float(max(self._times[row, slot], self._full_us.get(replica, 0))) + 1.0

    def dumped(self, replica: str) -> LoadVector | None:
        """Return the rows of a replica as a full vector, with slots in place of worker ids."""
        row = self._index.get(replica)
        if row is None:
            return None
        at_us = self.newest_us[replica]
        slots = np.flatnonzero(self._cells[row, INFLIGHT_REQUESTS])
        columns = np.full((len(COLUMNS), len(slots)), float(NONE))
        columns[:DONE_US] = self._cells[row][:, slots]
        columns[HEAD_US] = at_us - columns[HEAD_US]
        return LoadVector(replica, at_us, tuple(map(str, slots.tolist())), packed(columns), full=True)

    def _row_of(self, replica: str) -> int:
        row = self._index.get(replica)
        if row is not None:
            return row
        used = set(self._index.values())
        free = next((each for each in range(len(self._cells)) if each not in used), None)
        if free is None:
            free = len(self._cells)
            if (2 * free + 1) * self._cells.shape[2] > CELLS_MAX:
                raise ValueError("too many replicas tell their loads")
            self._grow(2 * free + 1, self._cells.shape[2])
        self._index[replica] = free
        return free

    def _grow(self, replicas: int, slots: int) -> None:
        cells, times = np.zeros((replicas, DONE_US, slots)), np.zeros((replicas, slots))
        known = self._times.shape
        cells[: known[0], :, : known[1]] = self._cells
        times[: known[0], : known[1]] = self._times
        self._cells, self._times = cells, times

    def _find_heads(self, slots: Slots) -> None:
        """Find the oldest prefill in the rows of some slots; of two of one moment the longer one."""
        placed_us = self._cells[:, HEAD_US, slots]
        placed_us[placed_us == 0] = np.inf
        first = placed_us.argmin(axis=0)
        alike = placed_us == self._cells[first, HEAD_US, slots]
        if np.count_nonzero(alike) > len(slots):
            service_us = self._cells[:, HEAD_SERVICE_US, slots]
            first = np.where(alike, service_us, -1.0).argmax(axis=0)
        self.head_us[slots], self.head_service_us[slots], self.head_tokens[slots] = self._cells[
            first, HEAD_US:DONE_US, slots
        ].T


def _changed(slots: Slots, grown: Numbers, columns: Numbers) -> tuple[Slots, Numbers]:
    """Leave out the slots at which a full vector changes nothing, and has nothing."""
    some = grown.any(axis=0) | columns.any(axis=0)
    return slots[some], grown[:, some]
