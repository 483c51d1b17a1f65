"""Bounded registers: of each key the newest word counts, of all keys the newest are kept.

    put(op) ── newer than what is known of its key ──> kept ── too many keys ──> the oldest goes, for good

Which words are kept follows from the set of all that were ever said, whatever their order and however often
each came: the newest word of each key, and of these the newest ``kept``. So registers are part of the fold
(`policies.fleet.fleet`), and no stream of new names can fill the memory of a replica. A key whose word was
dropped comes back with a newer word only.
"""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

KEPT_MAX = 1000
"""Models, worker classes and the like that a fleet may have; beyond it the newest are kept."""


class Word(Protocol):
    """An operation that says something at a time."""

    @property
    def at_us(self) -> int:
        """Log time."""

    @property
    def replica(self) -> str:
        """Who said it."""


T = TypeVar("T", bound=Word)


class Registers(Generic[T]):
    """The registers of one kind of operation.

    Args:
        key_of: What an operation is about.
        kept: How many keys are kept, at least 1.
    """

    __slots__ = ("_floor", "_kept", "_key_of", "_known")

    def __init__(self, key_of: Callable[[T], str], kept: int = KEPT_MAX) -> None:
        self._key_of = key_of
        self._kept = kept
        self._known: dict[str, T] = {}
        self._floor = (-1, "", "")
        """Version of the newest word that was dropped: what is older of an unknown key was dropped, too."""

    def put(self, op: T) -> bool:
        """Take in a word; False if a newer one is known, or if it is older than all that are kept."""
        key = self._key_of(op)
        known = self._known.get(key)
        if known is not None:
            if (op.at_us, op.replica) <= (known.at_us, known.replica):
                return False
        elif (op.at_us, op.replica, key) <= self._floor:
            return False
        self._known[key] = op
        if len(self._known) > self._kept:
            oldest = min((word.at_us, word.replica, name) for name, word in self._known.items())
            del self._known[oldest[2]]
            self._floor = max(self._floor, oldest)
            return oldest[2] != key
        return True

    def get(self, key: str) -> T | None:
        """The newest word about a key; None if there is none."""
        return self._known.get(key)

    def discard(self, key: str) -> None:
        """Forget a key."""
        self._known.pop(key, None)

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._known)

    def __iter__(self) -> Iterator[T]:
        """All words, in order of their keys; a copy, which does not change while it is walked."""
        return iter([self._known[key] for key in sorted(self._known)])
