"""Sets of workers as integers: bit ``1 << slot`` is set for every worker in the set.

Python's integers compare, join and subtract sets of a thousand workers in tens of nanoseconds. Numbers per
worker live in numpy arrays; `scatter` is the bridge.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64
"""Bits of one word of a mask."""

WORD_SHIFT = 6
"""log2 of `WORD_BITS`: shifting an array costs a fifth of dividing it."""

FEW_BITS = 4
"""Up to this many bits of a mask are found one by one: 0.2 µs each, a mask in the arrays 0.5 µs."""

FEW_MASKS = 4
"""Up to this many masks are unpacked whole: 3 µs each. More share some 20 µs."""


MANY_BITS = 32
"""More bits than this are found all at once: 20 to 60 µs a mask, one by one 0.5 µs each."""


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    if mask.bit_count() > MANY_BITS:
        packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
        yield from np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
        return
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def scatter(values: NDArray[np.int32], parts: Iterable[tuple[int, int]]) -> None:
    """Set ``values[slot] = number`` for every slot of some disjoint masks with a number each, in place."""
    slots: list[int] = []
    single: list[int] = []
    wide: list[tuple[int, int]] = []
    for mask, number in parts:
        if mask.bit_count() > FEW_BITS:
            wide.append((mask, number))
            continue
        while mask:
            slot = mask.bit_length() - 1
            slots.append(slot)
            single.append(number)
            mask ^= 1 << slot
    if slots:
        values[slots] = single
    if len(wide) > FEW_MASKS:
        _scatter_words(values, wide)
        return
    for mask, number in wide:
        packed = np.frombuffer(mask.to_bytes((len(values) + 7) // 8, "little"), dtype=np.uint8)
        values[np.unpackbits(packed, count=len(values), bitorder="little").view(np.bool_)] = number


def _scatter_words(values: NDArray[np.int32], wide: Sequence[tuple[int, int]]) -> None:
    numbers = np.asarray([number for _, number in wide], dtype=np.int32)
    words = (len(values) + WORD_BITS - 1) // WORD_BITS
    packed = b"".join([mask.to_bytes(words * 8, "little") for mask, _ in wide])
    used = np.flatnonzero(np.frombuffer(packed, dtype=np.uint64))
    octets = np.frombuffer(packed, dtype=np.uint8).reshape(-1, 8)[used]
    found = np.flatnonzero(np.unpackbits(octets, bitorder="little").view(np.bool_))
    row, column = np.divmod(used, words)
    word = found >> WORD_SHIFT
    values[(column * WORD_BITS)[word] + (found & WORD_BITS - 1)] = numbers[row][word]
