"""Block hashes from the ids of a trace.

In every trace an id stands for its block *and everything before it* within one scope: the whole file
(Mooncake) or one session (agentic traces). So it is not chained again but mixed with the 64-bit root of its
scope, a bijection: two ids of one scope never collide.
"""

import numpy as np
from numpy.typing import NDArray

from radix import root_hash

HASH_BYTES = 8
"""Size of one block hash in packed hashes."""

Hashes = NDArray[np.uint64]

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


def scope_root(*parts: object) -> int:
    """The root of a scope, from what names it."""
    return root_hash(0, *(str(part).encode() for part in parts))


def hashes_of(root: int | Hashes, ids: Hashes) -> Hashes:
    """Mix ids of whole prefixes with the 64-bit root of their scope, or one root each.

    It is the finaliser of SplitMix64, one to one for each root.
    """
    mixed = ids * _GOLDEN + np.atleast_1d(np.asarray(root, dtype=np.uint64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


class FreshBlocks:
    """Blocks that occur only once, such as answers that are not repeated."""

    def __init__(self, *scope: object) -> None:
        self._root = scope_root("fresh", *scope)
        self._next = 0

    def take(self, blocks: int) -> bytes:
        """Packed hashes of a number of new blocks."""
        first, self._next = self._next, self._next + blocks
        return hashes_of(self._root, np.arange(first, self._next, dtype=np.uint64)).tobytes()


def answer_blocks(tokens: int, output_tokens: int, block_tokens: int) -> int:
    """Blocks that an answer completes; its last token is sampled but never computed."""
    return (tokens + output_tokens - 1) // block_tokens - tokens // block_tokens
