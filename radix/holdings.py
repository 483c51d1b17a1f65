"""The blocks that one worker holds, and those it is known to have lost.

Losses are remembered so that an older use that arrives late does not undo them:

* a *forget* is one watermark: uses before it do not count;
* a *trim* is a tombstone, the hash of the first block that is gone with a watermark: an older use ends above
  that block;
* an *end that is gone* is a tombstone too, under the block's hash mixed with `END_SALT`, which no block has:
  older reports of that boundary do not count. It travels as trims do, and a reader that does not know it sees
  the trim of a block that no worker holds;
* an *eviction* raises the floor, a place in the order of `radix.eviction`: uses at or below it do not count.
"""

from itertools import islice

from radix.blocks import HASH_BYTES, words_of
from radix.bounds import SHARED
from radix.eviction import LOWEST, EvictionQueue, Key
from radix.node import Node

TRIM_HORIZON_US = 120_000_000
"""Time for which a trim is remembered: far longer than an entry of the log can be late."""

END_SALT = 0x9E3779B97F4A7C15
"""Turns a block's hash into that of the boundary behind it: 2**64 / golden ratio, odd, unrelated to XXH3."""

TRIMS_MAX = 1024
"""Most trims remembered per worker."""


class Holdings:
    """The nodes that one worker holds, and its losses.

    Attributes:
        used: Log time of last use of each node held, microseconds.
        owned: Blocks by the only owner who brought them (`radix.bounds.SHARED`).
        capacity: Most blocks it may hold; None for no limit of its own.
        queue: Its order of eviction; None without a capacity.
        floor: Highest place ever evicted; nothing at or below it comes back.
        forgot_us: Watermark of `PrefixTree.forget`.
        trimmed: Tombstones of `PrefixTree.trim` and `PrefixTree.end_gone`: hash -> watermark.
        trimmed_us: Newest of them, so that an insert that is not late does not look.
    """

    __slots__ = (
        "blocks",
        "capacity",
        "floor",
        "forgot_us",
        "owned",
        "queue",
        "trimmed",
        "trimmed_us",
        "used",
    )

    def __init__(self) -> None:
        self.used: dict[Node, int] = {}
        self.blocks = 0
        self.owned: dict[int, int] = {}
        self.capacity: int | None = None
        self.queue: EvictionQueue | None = None
        self.floor: Key = LOWEST
        self.forgot_us = 0
        self.trimmed: dict[int, int] = {}
        self.trimmed_us = 0

    def count(self, blocks: int, owner: int) -> None:
        """Count blocks of an owner that came, or, below 0, that went."""
        self.blocks += blocks
        if owner:
            self.charge(blocks, owner)

    def charge(self, blocks: int, owner: int) -> None:
        """Count blocks that became an owner's, or, below 0, are no longer; `SHARED` ones have no owner."""
        if not owner or owner == SHARED:
            return
        owned = self.owned.get(owner, 0) + blocks
        if owned:
            self.owned[owner] = owned
        else:
            del self.owned[owner]

    @property
    def ends_from_us(self) -> int:
        """Log time before which request ends do not count: their windows are gone."""
        return max(self.forgot_us, self.floor[0] + 1)

    def admitted(self, path: bytes, at_us: int, tree_floor: Key) -> int:
        """Return how many blocks of a path a use at ``at_us`` counts for, after all removals."""
        blocks = len(path) // HASH_BYTES
        newly = at_us > self.forgot_us and at_us > self.trimmed_us
        if newly and at_us > self.floor[0] and at_us > tree_floor[0]:
            return blocks  # nothing was removed since
        if at_us < self.forgot_us:
            return 0
        for floor in (self.floor, tree_floor):
            if at_us > floor[0]:
                continue
            if at_us < floor[0]:
                return 0
            depth = -floor[1]
            if blocks >= depth:
                blocks = depth if words_of(path)[depth - 1] > floor[2] else depth - 1
        if at_us < self.trimmed_us:
            words = words_of(path)
            if not self.trimmed.keys().isdisjoint(words):
                for depth in range(blocks):
                    if self.trimmed.get(words[depth], 0) > at_us:
                        return depth
        return blocks

    def end_counts(self, block_hash: int, at_us: int) -> bool:
        """True if a report at ``at_us`` of the boundary behind a block still counts."""
        return at_us >= self.trimmed_us or at_us >= self.trimmed.get(block_hash ^ END_SALT, 0)

    def remember_trim(self, block_hash: int, before_us: int, newest_us: int) -> None:
        """Leave a tombstone, and remove two of the oldest if they are beyond the horizon.

        If there are too many within it, the older half goes.
        """
        if before_us <= max(self.trimmed.get(block_hash, 0), self.forgot_us):
            return
        self.trimmed.pop(block_hash, None)  # so that those remembered last are last
        self.trimmed[block_hash] = before_us
        self.trimmed_us = max(self.trimmed_us, before_us)
        for oldest in tuple(islice(self.trimmed, 2)):
            if self.trimmed[oldest] < newest_us - TRIM_HORIZON_US:
                del self.trimmed[oldest]
        if len(self.trimmed) > TRIMS_MAX:
            from_us = sorted(self.trimmed.values())[TRIMS_MAX // 2]
            self.trimmed = {key: at_us for key, at_us in self.trimmed.items() if at_us >= from_us}
