"""Work that waits before a key, and requests behind it, without adding all up for every query.

A table, sorted by place and key, is made on demand and used until a sixteenth of the tickets have changed: an
answer costs a bisection, a change a few microseconds at most, and a prediction about a queue of 1,000 is off
by some 60 requests at worst. A queue of fewer than 16 is always exact.

A *place* is the owner's: `Tickets` keeps one table for each lane, with a single place, and one table of the
workers, whose places are slots.
"""

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.state.waiting_lines import Ticket

CHANGES_PER_TICKET = 1 / 16
"""Changes for each ticket after which the table is rebuilt."""

SMALL = 256
"""Up to this many tickets Python sorts sooner than numpy; the table is the same."""


class WorkAhead:
    """Tickets by place and key.

    Attributes:
        tokens: Their uncached tokens.
        service_us: Their predicted prefill, microseconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tokens = 0
        self.service_us = 0
        self._tickets: dict[str, tuple[int, Ticket]] = {}
        self._changes = 0
        self._first: dict[int, tuple[int, int]] = {}
        """By place: begin and end of its rows."""
        self._keys_us: list[int] = []
        self._before_us: list[int] = [0]
        self._columns: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats] | None = None

    def put(self, ticket: Ticket, place: int = 0) -> None:
        """Add a ticket."""
        self._tickets[ticket.request_id] = place, ticket
        self._count(ticket, 1)

    def drop(self, ticket: Ticket) -> None:
        """Remove a ticket."""
        del self._tickets[ticket.request_id]
        self._count(ticket, -1)

    def before_us(self, key_us: int, place: int = 0) -> int:
        """Predicted prefill of tickets with a lesser key, microseconds."""
        return self.around(key_us, place)[0]

    def around(self, key_us: int, place: int = 0) -> tuple[int, int]:
        """Predicted prefill of tickets with a lesser key, microseconds; and the number with a greater one."""
        self._refresh()
        first, end = self._first.get(place, (0, 0))
        if first == end:
            return 0, 0
        keys_us, before_us = self._keys_us, self._before_us
        lesser = bisect_left(keys_us, key_us, first, end)
        return before_us[lesser] - before_us[first], end - bisect_right(keys_us, key_us, lesser, end)

    def around_all(self, places: NDArray[np.intp], keys_us: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """The same of many places, each with a key of its own."""
        self._refresh()
        if not self._keys_us:
            nothing = np.zeros(len(places))
            return nothing, nothing
        if self._columns is None:
            self._columns = self._as_columns()
        ranked_us, composite, bounds, before_us = self._columns
        width, rows = len(ranked_us) + 1, len(bounds) - 1
        present = places < rows
        at = np.where(present, places, 0)
        first, end = bounds[at], np.where(present, bounds[at + 1], bounds[at])
        lesser = composite.searchsorted(at * width + ranked_us.searchsorted(keys_us))
        greater = composite.searchsorted(at * width + ranked_us.searchsorted(keys_us, "right"))
        lesser, greater = np.clip(lesser, first, end), np.clip(greater, first, end)
        return before_us[lesser] - before_us[first], (end - greater).astype(np.float64)

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.count += sign
        self.tokens += sign * ticket.uncached_tokens
        self.service_us += sign * ticket.service_us
        self._changes += 1

    def _refresh(self) -> None:
        if self._changes > CHANGES_PER_TICKET * self.count:
            self._sum_up()

    def _sum_up(self) -> None:
        if len(self._tickets) <= SMALL:
            rows = sorted(
                [(place, ticket.key_us, ticket.service_us) for place, ticket in self._tickets.values()]
            )
            places, self._keys_us, service_us = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        else:
            table = np.array(
                [(place, ticket.key_us, ticket.service_us) for place, ticket in self._tickets.values()],
                dtype=np.int64,
            )
            table = table[np.lexsort((table[:, 1], table[:, 0]))]
            places, self._keys_us, service_us = (table[:, column].tolist() for column in range(3))
        before_us = [0]
        for each_us in service_us:
            before_us.append(before_us[-1] + each_us)
        self._before_us = before_us
        self._first = {}
        for row, place in enumerate(places):
            self._first[place] = self._first.get(place, (row, row))[0], row + 1
        self._changes, self._columns = 0, None

    def _as_columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
        """Return the table for `around_all`.

        All keys in order; for each row its place and the rank of its key, as one number; the first row of
        each place; and the sums of work before each row.
        """
        keys_us = np.array(self._keys_us, dtype=np.int64)
        counts = np.zeros(max(self._first) + 1, dtype=np.int64)
        for place, (first, end) in self._first.items():
            counts[place] = end - first
        bounds = np.concatenate(([0], counts.cumsum()))
        ranked_us = np.sort(keys_us)
        places = np.repeat(np.arange(len(counts)), counts)
        composite = places * (len(keys_us) + 1) + ranked_us.searchsorted(keys_us)
        return ranked_us, composite, bounds, np.array(self._before_us, dtype=np.float64)
