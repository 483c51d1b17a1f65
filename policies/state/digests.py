"""Digests of registers: replicas with the same values have the same digest, in any order of the log.

A value (*word*) is identified by its subject, its log time and its writer: no replica publishes two values
of one subject at one log time. The digest is the sum of the values' hashes, so a new value costs one addition
and one subtraction. Two versions that read different fields of a value compute the same digest.

Replicas compare digests some tenths of a second after they were computed (`router.shared.agreement`), and
values change meanwhile. So each digest also remembers the sums that it had since it was last read.
"""

from collections import deque
from collections.abc import Iterable

import xxhash

Word = tuple[str, int, str]
"""A value by its subject, log time and writer."""

PASSED_MAX = 256
"""Sums remembered between two reads: two seconds of a fleet that publishes 100 values a second."""

_MASK = (1 << 64) - 1


def digest_of(words: Iterable[Word]) -> int:
    """Return the digest of some words, 64 bits."""
    return sum(map(_hash, words)) & _MASK


class Digest:
    """The digest of words that change one by one.

    Attributes:
        value: The digest now.
    """

    __slots__ = ("_passed", "value")

    def __init__(self) -> None:
        self.value = 0
        self._passed: deque[int] = deque(maxlen=PASSED_MAX)

    def replace(self, old: Word | None, new: Word | None) -> None:
        """Replace a value by another one; None for no value."""
        value = self.value
        if old is not None:
            value -= _hash(old)
        if new is not None:
            value += _hash(new)
        self._passed.append(self.value)
        self.value = value & _MASK

    def passed(self) -> list[int]:
        """Return the sums since the last call, the present one last."""
        if not self._passed:
            return [self.value]
        values = [*self._passed, self.value]
        self._passed.clear()
        return values


def _hash(word: Word) -> int:
    subject, at_us, replica = word
    return xxhash.xxh3_64_intdigest(f"{subject}\0{at_us}\0{replica}".encode())
