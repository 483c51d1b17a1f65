"""Recent requests by length, and an amount that each brings, of all replicas.

    length buckets      prompt plus expected output of one prompt       microseconds of predicted prefill
    remote prefill      tokens left to prefill in the home site         cached tokens before them

Rows are lengths, four to the octave, so that the powers of two are bounds of rows. Columns are minutes of log
time, of which the last `WINDOW_MINUTES` are kept. A part of the fold: sums of whole numbers do not depend on
their order. The caller counts each request once (`policies.state.loads`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from policies.estimates.costs import Floats

WINDOW_MINUTES = 16
"""Long enough that a bound is not moved for one burst, short enough to follow the hours of a day."""

_FIRST_BITS, _LAST_BITS = 10, 23
"""The first row ends at 1K tokens, the last bounded one at 8M; longer requests count as 8M."""

ROWS = 1 + 4 * (_LAST_BITS - _FIRST_BITS)

ROW_TOKENS_MAX: tuple[int, ...] = tuple(
    [1 << _FIRST_BITS]
    + [
        (1 << bits) + quarter * (1 << bits - 2)
        for bits in range(_FIRST_BITS, _LAST_BITS)
        for quarter in range(1, 5)
    ]
)
"""Upper bound of each row, inclusive."""

MINUTE_US = 60_000_000


def row_of(tokens: int) -> int:
    """Row of a length."""
    last = tokens - 1  # bounds are inclusive
    bits = last.bit_length() - 1
    if bits < _FIRST_BITS:
        return 0
    return min(1 + 4 * (bits - _FIRST_BITS) + (last >> bits - 2 & 3), ROWS - 1)


@dataclass(frozen=True, slots=True)
class LengthDemand:
    """Requests and their predicted prefill seconds, per row, over a window of seconds > 0."""

    requests: Floats
    service_s: Floats
    window_s: float

    @property
    def load(self) -> float:
        """Predicted worker-seconds per second of all."""
        return float(self.service_s.sum()) / self.window_s

    def rows(self) -> Iterator[tuple[int, int, float]]:
        """Rows with requests: upper bound, requests, predicted seconds."""
        table = zip(ROW_TOKENS_MAX, self.requests.tolist(), self.service_s.tolist(), strict=True)
        for tokens_max, requests, service_s in table:
            if requests:
                yield tokens_max, int(requests), service_s

    def within(self, tokens_max: Sequence[int]) -> list[tuple[int, float]]:
        """Requests and load of each of the buckets with these bounds; the last includes longer ones."""
        ends = np.searchsorted(ROW_TOKENS_MAX, tokens_max, side="right").tolist()
        return [
            (int(self.requests[low:high].sum()), float(self.service_s[low:high].sum()) / self.window_s)
            for low, high in pairwise((0, *ends[:-1], ROWS))
        ]


class LengthHistogram:
    """Requests, and an amount that each brings, by length and minute."""

    def __init__(self) -> None:
        self._minute = 0
        # Row by row, as lists: the fold changes two numbers of them with each request.
        self._requests = [0] * (ROWS * WINDOW_MINUTES)
        self._amounts = [0] * (ROWS * WINDOW_MINUTES)

    def add(self, at_us: int, tokens: int, amount: int) -> None:
        """Count a request, placed at a log time, with its whole amount >= 0."""
        minute = at_us // MINUTE_US
        if minute > self._minute:
            self._advance(minute)
        if self._minute - minute < WINDOW_MINUTES:
            cell = row_of(tokens) * WINDOW_MINUTES + minute % WINDOW_MINUTES
            self._requests[cell] += 1
            self._amounts[cell] += amount

    def sums(self, now_us: int) -> tuple[Floats, Floats, float]:
        """Sums over the window that ends now.

        Returns:
            Requests and amounts by row, and the seconds, at least 1, since the first minute with any request.
        """
        oldest = max(now_us // MINUTE_US, self._minute) - WINDOW_MINUTES + 1
        minutes = range(oldest, self._minute + 1)
        busy = [
            minute for minute in minutes if any(self._requests[minute % WINDOW_MINUTES :: WINDOW_MINUTES])
        ]
        window_s = (now_us - busy[0] * MINUTE_US) / 1e6 if busy else 0.0
        columns = [minute % WINDOW_MINUTES for minute in busy]
        requests, amounts = (
            np.array(table, dtype=np.float64).reshape(ROWS, WINDOW_MINUTES)[:, columns].sum(axis=1)
            for table in (self._requests, self._amounts)
        )
        return requests, amounts, max(window_s, 1.0)

    def demand(self, now_us: int) -> LengthDemand:
        """Sums of a histogram of microseconds of prefill."""
        requests, amounts_us, window_s = self.sums(now_us)
        return LengthDemand(requests, amounts_us / 1e6, window_s)

    def dump(self) -> tuple[int, list[int], list[int]]:
        """The newest minute, and both tables row by row."""
        return self._minute, list(self._requests), list(self._amounts)

    def merge(self, minute: int, requests: Sequence[int], amounts: Sequence[int]) -> None:
        """Merge a `dump`; the greater count of each minute wins."""
        self._advance(minute)
        for each in range(self._minute - WINDOW_MINUTES + 1, minute + 1):
            column = slice(each % WINDOW_MINUTES, None, WINDOW_MINUTES)
            for table, dumped in ((self._requests, requests), (self._amounts, amounts)):
                table[column] = map(max, table[column], dumped[column])

    def _advance(self, minute: int) -> None:
        """Empty the columns of the minutes that begin now."""
        for begun in range(max(self._minute + 1, minute - WINDOW_MINUTES + 1), minute + 1):
            column = slice(begun % WINDOW_MINUTES, None, WINDOW_MINUTES)
            self._requests[column] = self._amounts[column] = [0] * ROWS
        self._minute = max(self._minute, minute)
