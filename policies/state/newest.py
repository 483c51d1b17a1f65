"""A bounded set of operations of one kind, of which the newest are kept: a log that every replica has alike.

Which operations are the newest ``kept`` of all that were ever said depends on neither their order nor how
often they came. So it is part of the fold (`policies.fleet.fleet`), and what a snapshot has of it merges with
what a replica knows.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar


class Ordered(Protocol):
    """An operation that compares, its log time first."""

    def __lt__(self, other: Self, /) -> bool:
        """Whether it comes before another one."""


T = TypeVar("T", bound=Ordered)


class Newest(Generic[T]):
    """The set.

    Args:
        kept: How many are kept, at least 1.

    Attributes:
        revision: Counts changes.
    """

    def __init__(self, kept: int) -> None:
        self.revision = 0
        self._kept = kept
        self._rows: list[T] = []

    def put(self, op: T) -> None:
        """Take one in, if it is new and not older than all that are kept."""
        rows = self._rows
        place = bisect_left(rows, op)
        if place < len(rows) and rows[place] == op:
            return
        if len(rows) >= self._kept:
            if place == 0:
                return
            del rows[0]
            place -= 1
        rows.insert(place, op)
        self.revision += 1

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        """All that are kept, the oldest first; a copy, which does not change while it is walked."""
        return iter(tuple(self._rows))

    def latest(self, count: int) -> list[T]:
        """So many, the newest first."""
        return self._rows[: -count - 1 : -1]
