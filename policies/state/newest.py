"""A bounded set of operations of one kind: the newest are kept, the same ones on every replica.

The newest ``kept`` operations depend on neither their order nor their number. So the set is part of the fold
(`policies.fleet.fleet`), and snapshots merge with it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar


class Ordered(Protocol):
    """An operation that compares, its log time first."""

    def __lt__(self, other: Self, /) -> bool:
        """Order by log time first."""


T = TypeVar("T", bound=Ordered)


class Newest(Generic[T]):
    """The set; ``kept`` >= 1, ``revision`` counts changes."""

    def __init__(self, kept: int) -> None:
        self.revision = 0
        self._kept = kept
        self._rows: list[T] = []

    def put(self, op: T) -> None:
        """Add an operation, if it is new and not older than all that are kept."""
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
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._rows))

    def latest(self, count: int) -> list[T]:
        """The newest ``count``, the newest first."""
        return self._rows[: -count - 1 : -1]
