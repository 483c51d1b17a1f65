"""Rows of `LoadVector`: load of each other replica at each worker, by its own newest word.

    Book             one replica
      cells[slot]      the numbers of its row at a worker, as told; `times`: log time of the vector
      places[slot]     its placements there since its newest row, counted on top of that
    heads[slot, replica]   when its oldest prefill there was placed: the row's, since that is older, if any

A vector replaces the rows that it names, and a full one all; a newer row stays when an older one comes late.
A row *absorbs* what its replica placed there until then. So a replica that dies is one subtraction, with any
number of requests in flight.

Most vectors name a few workers: a call of numpy costs as much as a row in plain Python (1 to 2 us), so numpy
is for those of more than `FEW`.
"""

from collections.abc import Iterator, Sequence
from struct import Struct, error
from typing import ClassVar, cast

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

ROW, _SUMS_OF = Struct("<9I"), Struct("<5I")

NONE = (1 << 32) - 1
"""The greatest number; of a time: 71 minutes ago, or never."""

CELLS_MAX = 1 << 22
"""Rows of all replicas, empty ones included: 256 replicas at 16,384 workers, or 300 MB."""

FEW = 128
"""Rows up to which a vector is taken row by row (`python -m loadtest.bench.log_forms --vectors`)."""

_NEVER = np.inf

Numbers = NDArray[np.float64]
Slots = NDArray[np.intp]
Row = tuple[int, ...]

Increment = tuple[str, int, int, int, int, int]
"""Request id, log time of its placement, 1 if it prefills (else 0), predicted prefill in microseconds, its
uncached tokens (both 0 if it does not), and its context."""


def packed(row: Sequence[int]) -> bytes:
    """Return a row, a number for each of `COLUMNS`, as bytes of a vector."""
    try:
        return ROW.pack(*row)
    except error:
        return ROW.pack(*[min(max(number, 0), NONE) for number in row])


def unpacked(op: LoadVector) -> list[Row]:
    """Return the rows of a vector.

    Raises:
        ValueError: They contradict each other.
    """
    workers = len(op.workers)
    if len(op.numbers) != ROW.size * workers or len(set(op.workers)) != workers:
        raise ValueError("a load vector has one row of numbers for each of its workers")
    rows = list(ROW.iter_unpack(op.numbers))
    for row in rows:
        if row[PREFILL_REQUESTS] > row[INFLIGHT_REQUESTS]:
            raise ValueError("a load vector has more prefills than requests in flight")
    return rows


class Place:
    """One replica at one worker.

    Attributes:
        slot: Slot of the worker; -1 once another worker has it.
        increments: Placements of the replica there since its newest row.
    """

    __slots__ = ("book", "increments", "slot")

    finished: ClassVar[bool] = False
    prefilled_us: ClassVar[int] = 0

    def __init__(self, book: "Book", slot: int) -> None:
        self.book, self.slot = book, slot
        self.increments: list[Increment] = []

    def taken(self, until_us: int | None) -> list[Increment]:
        """Take the increments until a log time away, all for None."""
        gone = self.increments
        if until_us is None:
            self.increments = []
        else:
            gone = [each for each in gone if each[1] <= until_us]
            self.increments = [each for each in self.increments if each[1] > until_us]
        if not self.increments:
            self.book.open.pop(self.slot, None)
        return gone


class Book:
    """Rows and later placements of one replica.

    Attributes:
        newest_us: Log time of its newest vector; -1 for none.
        full_us: Log time of its newest full one.
        until_us: Its placements until then are in a full vector, or void. Never falls.
        last_us: Not before its newest increment.
        open: Places with increments, by slot.
    """

    def __init__(self, replica: str, index: int, slots: int, until_us: int) -> None:
        self.replica, self.index = replica, index
        self.newest_us = self.full_us = self.last_us = -1
        self.until_us = until_us
        self.places: dict[int, Place] = {}
        self.open: dict[int, Place] = {}
        self.cells = np.zeros((0, len(COLUMNS)), "<u4")
        self.times = np.zeros(0)
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Make room for more slots."""
        cells, times = np.zeros((slots, len(COLUMNS)), "<u4"), np.zeros(slots)
        cells[: len(self.cells)], times[: len(self.times)] = self.cells, self.times
        self.cells, self.times = cells, times
        self.cells_at = cells.reshape(-1).view(np.uint8).data
        self.times_at = numbers(times)

    def counted_us(self, slot: int) -> float:
        """Log time until which its placements at a worker are in its row, or void."""
        return max(self.times_at[slot], self.until_us)

    def dumped(self) -> Iterator[LoadVector]:
        """Yield its rows as vectors, the full one first, with slots in place of worker ids."""
        if self.full_us >= 0:
            slots = np.flatnonzero(self.cells.any(axis=1) & (self.times <= self.full_us))
            yield self._dumped(self.full_us, slots, full=True)
        for at_us in np.unique(self.times[self.times > self.full_us]).tolist():
            if at_us > 0:
                yield self._dumped(int(at_us), np.flatnonzero(self.times == at_us), full=False)

    def _dumped(self, at_us: int, slots: Slots, *, full: bool) -> LoadVector:
        told = self.cells[slots].tobytes()
        return LoadVector(self.replica, at_us, tuple(map(str, slots.tolist())), told, full)

    def row(self, slot: int) -> Row:
        """The newest row of a worker."""
        return ROW.unpack_from(self.cells_at, ROW.size * slot)

    def head(self, slot: int) -> tuple[float, int, int]:
        """Placement, predicted prefill and context of its oldest prefill at a worker, of two the longer."""
        row = self.row(slot)
        if row[PREFILL_REQUESTS]:
            placed_us = max(self.times_at[slot] - row[HEAD_US], 0.0)
            return placed_us, row[HEAD_SERVICE_US], row[HEAD_TOKENS]
        place = self.places.get(slot)
        found = [(each[1], -each[3], each[5]) for each in place.increments if each[2]] if place else []
        placed_us, service_us, tokens = min(found, default=(_NEVER, 0, 0))
        return placed_us, -service_us, tokens

    def prefills_since_us(self, slot: int) -> float:
        """Log time before which all that the replica placed at a worker is prefilled, by its newest word."""
        row = self.row(slot)
        if row[PREFILL_REQUESTS]:
            return self.times_at[slot] - row[HEAD_US]
        return max(self.times_at[slot], self.full_us) + 1.0

    def increments(self) -> Iterator[tuple[int, Increment]]:
        """Its placements since its newest rows, with slots."""
        for place in self.open.values():
            for increment in place.increments:
                yield place.slot, increment


class LoadRows:
    """Books of the replicas that send vectors, and the sums over all.

    Attributes:
        books: By replica.
        head_us: Per slot, when the oldest prefill of all books was placed; 0 if there is none.
        head_service_us: Its predicted duration.
    """

    def __init__(self) -> None:
        self.books: dict[str, Book] = {}
        self._by_index: list[Book | None] = []
        self._sums = self._heads = self._services = np.zeros((SUMS, 0))
        self._done_us = self.head_us = self.head_service_us = np.zeros(0)

    def resize(self, sums: Numbers, done_us: Numbers) -> None:
        """Make room for more slots.

        Args:
            sums: Columns to which the sums of all books are added, from now on.
            done_us: Per slot, log time at which the newest prefill was done; likewise kept.
        """
        self._sums, self._done_us = sums, done_us
        self._sums_at, self._done_us_at = [numbers(column) for column in sums], numbers(done_us)
        slots = len(done_us)
        heads = np.zeros((2, slots))
        heads[:, : len(self.head_us)] = self.head_us, self.head_service_us
        self.head_us, self.head_service_us = heads
        self.head_us_at, self.head_service_us_at = numbers(self.head_us), numbers(self.head_service_us)
        for book in self.books.values():
            book.resize(slots)
        self._widen(len(self._by_index))

    def book(self, replica: str, until_us: int) -> Book:
        """Return the book of a replica, a new one if there is none.

        Raises:
            ValueError: There are too many replicas.
        """
        book = self.books.get(replica)
        if book is None:
            if None not in self._by_index:
                width = 2 * len(self._by_index) + 1
                if width * len(self.head_us) > CELLS_MAX:
                    raise ValueError("too many replicas tell their loads")
                self._by_index += [None] * (width - len(self._by_index))
                self._widen(width)
            index = self._by_index.index(None)
            book = self.books[replica] = self._by_index[index] = Book(
                replica, index, len(self.head_us), until_us
            )
        return book

    def put(self, book: Book, op: LoadVector, slots: list[int], rows: list[Row]) -> tuple[set[int], set[int]]:
        """Take the rows of a vector that are newer than those known.

        Args:
            book: Book of its replica.
            op: The vector.
            slots: Slots of its workers.
            rows: Its rows (`unpacked`).

        Returns:
            Slots with another oldest prefill, or another end of one; slots with less than before.
        """
        many = op.full or len(slots) > FEW
        moved, fell = set[int](), set[int]()
        if many:
            self._put_many(book, op, slots, moved, fell)
        else:
            self._put_few(book, op, slots, rows, moved, fell)
        book.newest_us = max(book.newest_us, op.at_us)
        if op.full:
            book.full_us = max(book.full_us, op.at_us)
            book.until_us = max(book.until_us, op.at_us)
            self._absorb(book, op.at_us, moved, fell)
        return moved, fell

    def count(self, book: Book, slot: int, increment: Increment) -> bool:
        """Count a placement of a replica after its newest row; True if it may be the oldest prefill."""
        place = book.places.get(slot) or self.place(book, slot)
        return self.add(place, increment)

    def place(self, book: Book, slot: int) -> Place:
        """Return a new place of a replica."""
        place = book.places[slot] = Place(book, slot)
        return place

    def add(self, place: Place, increment: Increment) -> bool:
        """The same at a place."""
        _, at_us, prefills, service_us, uncached_tokens, context_tokens = increment
        book, slot, sums = place.book, place.slot, self._sums_at
        if not place.increments:
            book.open[slot] = place
        place.increments.append(increment)
        if at_us > book.last_us:
            book.last_us = at_us
        sums[3][slot] += 1
        sums[4][slot] += context_tokens
        if not prefills:
            return False
        sums[0][slot] += service_us
        sums[1][slot] += 1
        sums[2][slot] += uncached_tokens
        key = slot * self._width + book.index
        head_us = self._heads_at[key]
        if at_us > head_us:
            return False
        if at_us == head_us:
            self._find_head(book, slot)
            return True
        self._heads_at[key], self._services_at[key] = at_us, service_us
        first_us = self.head_us_at[slot]
        if 0.0 < first_us < at_us:
            return False
        if at_us == first_us:
            self._find_first(slot)
        else:
            self.head_us_at[slot], self.head_service_us_at[slot] = at_us, service_us
        return True

    def remove(self, replica: str, slot: int, request_id: str) -> Increment | None:
        """Count an increment no longer, and return it; None if there is none of this request."""
        book = self.books.get(replica)
        place = book.places.get(slot) if book is not None else None
        if book is None or place is None:
            return None
        for number, increment in enumerate(place.increments):
            if increment[0] == request_id:
                del place.increments[number]
                if not place.increments:
                    del book.open[slot]
                self._subtract(slot, [increment])
                self._find_head(book, slot)
                return increment
        return None

    def drop(self, book: Book, until_us: int, *, placed: bool = True) -> Slots:
        """Void the rows of a replica until a log time, and if ``placed`` its placements; return the slots."""
        moved = set[int]()
        if placed:
            self._absorb(book, until_us, moved, set())
            book.until_us = max(book.until_us, until_us)
        slots = np.flatnonzero((book.times <= until_us) & (book.cells.any(axis=1)))
        self._sums[:, slots] -= book.cells[slots, :SUMS].T
        book.cells[slots] = 0
        if book.newest_us <= until_us:
            book.times[:] = 0.0
            book.newest_us = book.full_us = -1
            if not book.open:
                del self.books[book.replica]
                self._by_index[book.index] = None
        first = self._heads[slots, book.index] <= self.head_us[slots]
        self._heads[slots, book.index] = _NEVER
        for slot in book.open:
            self._find_head(book, slot)
        self._find_heads(slots[first])
        return np.concatenate([slots, np.fromiter(moved, np.intp, len(moved))])

    def clear(self, slot: int) -> None:
        """Free a slot for another worker."""
        for book in self.books.values():
            book.cells[slot] = book.times[slot] = 0
            book.open.pop(slot, None)
            place = book.places.pop(slot, None)
            if place is not None:
                place.slot = -1
        self._heads[slot] = _NEVER
        self.head_us[slot] = self.head_service_us[slot] = 0.0

    def head_tokens(self, slot: int) -> int:
        """Context of the oldest prefill of all books at a worker."""
        heads = [book.head(slot) for book in self.books.values()]
        return max(heads, key=lambda head: (-head[0], head[1], head[2]))[2]

    # Inside.

    def _widen(self, width: int) -> None:
        """Make room for more books."""
        grown = np.full((2, len(self.head_us), width), _NEVER)
        known = min(self._heads.shape[0], len(self.head_us)), min(self._heads.shape[1], width)
        grown[0, : known[0], : known[1]] = self._heads[: known[0], : known[1]]
        grown[1, : known[0], : known[1]] = self._services[: known[0], : known[1]]
        self._heads, self._services, self._width = *grown, width
        self._heads_at = numbers(self._heads.reshape(-1))
        self._services_at = numbers(self._services.reshape(-1))

    def _put_few(
        self,
        book: Book,
        op: LoadVector,
        slots: list[int],
        rows: list[Row],
        moved: set[int],
        fell: set[int],
    ) -> None:
        at_us, told, full_us, absorbs = op.at_us, op.numbers, book.full_us, op.at_us >= book.last_us
        times, cells, places, done = book.times_at, book.cells_at, book.places, self._done_us_at
        heads, services, width, size = self._heads_at, self._services_at, self._width, ROW.size
        first = self.head_us_at
        all_us, all_prefills, all_uncached, all_requests, all_tokens = self._sums_at
        for number, slot in enumerate(slots):
            service, prefills, uncached, requests, tokens, head_us, head_service, _, done_us = rows[number]
            if done_us < NONE and at_us - done_us > done[slot]:
                done[slot] = at_us - done_us
                moved.add(slot)
            if at_us <= times[slot] or at_us <= full_us:
                continue
            offset = size * slot
            place = places.get(slot)
            if place is not None and place.increments:
                gone = place.taken(None if absorbs else at_us)
                for _, _, prefill, service_us, uncached_tokens, context_tokens in gone:
                    service -= service_us
                    prefills -= prefill
                    uncached -= uncached_tokens
                    requests -= 1
                    tokens -= context_tokens
            was = _SUMS_OF.unpack_from(cells, offset)
            cells[offset : offset + size] = told[size * number : size * (number + 1)]
            times[slot] = at_us
            if was[0] != service:
                all_us[slot] += service - was[0]
            if was[1] != prefills:
                all_prefills[slot] += prefills - was[1]
            if was[2] != uncached:
                all_uncached[slot] += uncached - was[2]
            if was[3] != requests:
                all_requests[slot] += requests - was[3]
            if was[4] != tokens:
                all_tokens[slot] += tokens - was[4]
            if service < was[0] or prefills < was[1] or requests < was[3] or tokens < was[4]:
                fell.add(slot)
            key = slot * width + book.index
            before_us = heads[key]
            if rows[number][PREFILL_REQUESTS]:
                placed_us = max(at_us - head_us, 0.0)
            elif place is None or not place.increments:
                placed_us = _NEVER
            else:
                placed_us, head_service, _ = book.head(slot)
            if before_us != placed_us or services[key] != head_service:
                heads[key], services[key] = placed_us, head_service
                if not all_prefills[slot]:
                    first[slot] = self.head_service_us_at[slot] = 0.0
                    moved.add(slot)
                elif placed_us <= first[slot] or before_us <= first[slot] or not first[slot]:
                    self._find_first(slot)
                    moved.add(slot)

    def _put_many(
        self, book: Book, op: LoadVector, named: list[int], moved: set[int], fell: set[int]
    ) -> None:
        at_us, slots = op.at_us, np.array(named, dtype=np.intp)
        rows = np.frombuffer(op.numbers, "<u4").reshape(len(named), len(COLUMNS))
        done_us = np.where(rows[:, DONE_US] < NONE, float(at_us) - rows[:, DONE_US], 0.0)
        moved.update(slots[done_us > self._done_us[slots]].tolist())
        self._done_us[slots] = np.maximum(self._done_us[slots], done_us)
        if op.full:
            cells = np.zeros_like(book.cells)
            cells[slots] = rows
            slots = np.flatnonzero(cells.any(axis=1) | book.cells.any(axis=1))
            rows = cells[slots]
        if at_us <= book.newest_us:
            fresh = at_us > np.maximum(book.times[slots], book.full_us)
            slots, rows = slots[fresh], rows[fresh]
        before = self._sums[:, slots]
        for slot in book.open.keys() & set(slots.tolist()) if book.open else ():
            self._subtract(slot, book.open[slot].taken(at_us))
        self._sums[:, slots] += rows[:, :SUMS].T.astype(np.float64) - book.cells[slots, :SUMS].T
        fell.update(slots[(self._sums[:, slots] < before).any(axis=0)].tolist())
        book.cells[slots], book.times[slots] = rows, at_us
        prefills = rows[:, PREFILL_REQUESTS] > 0
        placed_us = np.where(prefills, np.maximum(float(at_us) - rows[:, HEAD_US], 0.0), _NEVER)
        self._heads[slots, book.index] = placed_us
        self._services[slots, book.index] = rows[:, HEAD_SERVICE_US]
        for slot in book.open:
            self._find_head(book, slot)
        self._find_heads(slots)
        moved.update(slots.tolist())

    def _absorb(self, book: Book, until_us: int, moved: set[int], fell: set[int]) -> None:
        """Count a replica's placements until a log time no longer by themselves."""
        for slot, place in list(book.open.items()):
            gone = place.taken(until_us)
            if gone:
                self._subtract(slot, gone)
                self._find_head(book, slot)
                moved.add(slot)
                fell.add(slot)

    def _subtract(self, slot: int, gone: list[Increment]) -> None:
        sums = self._sums_at
        for _, _, prefills, service_us, uncached_tokens, context_tokens in gone:
            sums[0][slot] -= service_us
            sums[1][slot] -= prefills
            sums[2][slot] -= uncached_tokens
            sums[3][slot] -= 1
            sums[4][slot] -= context_tokens

    def _find_head(self, book: Book, slot: int) -> None:
        """Search for the oldest prefill of a replica at a worker again."""
        key = slot * self._width + book.index
        self._heads_at[key], self._services_at[key], _ = book.head(slot)
        self._find_first(slot)

    def _find_first(self, slot: int) -> None:
        """Find the oldest prefill of all books at a worker; of two of one moment the longer one."""
        first = slot * self._width
        heads = self._heads_at[first : first + self._width].tolist()
        head_us = min(heads)
        if head_us == _NEVER:
            self.head_us_at[slot] = self.head_service_us_at[slot] = 0.0
            return
        self.head_us_at[slot] = head_us
        if heads.count(head_us) == 1:
            self.head_service_us_at[slot] = self._services_at[first + heads.index(head_us)]
        else:
            self.head_service_us_at[slot] = max(
                self._services_at[first + index] for index, each in enumerate(heads) if each == head_us
            )

    def _find_heads(self, slots: Slots) -> None:
        """The same at many workers."""
        heads = self._heads[slots]
        first = heads.argmin(axis=1)
        first_us = heads[np.arange(len(slots)), first]
        some = first_us < _NEVER
        self.head_us[slots] = np.where(some, first_us, 0.0)
        self.head_service_us[slots] = np.where(some, self._services[slots, first], 0.0)
        alike = heads == first_us[:, None]
        twice = np.flatnonzero((alike.sum(axis=1) > 1) & some)
        if len(twice):
            services = np.where(alike[twice], self._services[slots[twice]], 0.0)
            self.head_service_us[slots[twice]] = services.max(axis=1)


def numbers(column: Numbers) -> "memoryview[float]":
    """A view of a column, to read and change single numbers."""
    return cast("memoryview[float]", column.data)
