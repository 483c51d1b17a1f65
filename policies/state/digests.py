"""Digests of registers: two replicas that know the same words have the same digest, whatever the order was.

A word is identified by its subject, its log time and its writer: no replica says two words at one log time.
The digest of some words is the sum of their hashes: a new word costs one addition and one subtraction. Two
versions that know different fields of a word have the same digest.

Replicas compare digests some tenths of a second after they were made (`router.shared.agreement`). Meanwhile
words were said. So each digest also remembers the values that it passed through since it was last asked.
"""

from collections import deque
from collections.abc import Iterable

import xxhash

Word = tuple[str, int, str]
"""Subject, log time and replica."""

PASSED_MAX = 256
"""Values remembered between two questions: of a fleet that says 100 words a second, those of two seconds."""

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
        """Follow that a word took the place of another one; None for no word."""
        value = self.value
        if old is not None:
            value -= _hash(old)
        if new is not None:
            value += _hash(new)
        self._passed.append(self.value)
        self.value = value & _MASK

    def passed(self) -> list[int]:
        """Return the values since this was last asked, the present one last."""
        values = [*self._passed, self.value]
        self._passed.clear()
        return values


def _hash(word: Word) -> int:
    subject, at_us, replica = word
    return xxhash.xxh3_64_intdigest(f"{subject}\0{at_us}\0{replica}".encode())
