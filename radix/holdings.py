"""What one worker holds, and what it is known to have lost.

Losses are remembered so that an older use that is heard of late does not undo them. There
are four, and each says up to which time, and from which block on, a use no longer counts:

* a *forget* is one watermark: nothing used before it counts;
* a *trim* is a tombstone, the hash of the first block that is gone with a watermark: what
  was used before ends above that block;
* an *end that is gone* is a tombstone too, under the hash of the block mixed with `END_SALT`, which no
  block has: what was said of that boundary before does not count. So it travels as trims do, and who does not
  know of it sees the trim of a block that nobody holds;
* an *eviction* raises the floor, a place in the order of `radix.eviction`: nothing at or below it counts.
"""

from itertools import islice

from radix.blocks import HASH_BYTES, words_of
from radix.eviction import LOWEST, EvictionQueue, Key
from radix.node import Node

TRIM_HORIZON_US = 120_000_000
"""How long a trim is remembered: far longer than an entry of the log can be late."""

END_SALT = 0x9E3779B97F4A7C15
"""Makes of a block's hash that of the boundary behind it: 2**64 divided by the golden ratio, an odd number
with nothing to do with XXH3."""

TRIMS_MAX = 1024
"""Most trims remembered per worker."""


class Holdings:
    """What one worker holds, and what it is known to have lost.

    Attributes:
        used: Log time of last use of each node held, microseconds.
        blocks: Blocks held.
        capacity: Most blocks it may hold; None for no limit of its own.
        queue: Its order of eviction; None without a capacity.
        floor: Highest place in that order that was ever evicted: nothing at or below it comes back.
        forgot_us: Watermark of `PrefixTree.forget`: nothing last used before comes back.
        trimmed: Tombstones of `PrefixTree.trim`: hash of the removed block -> its watermark; and those of
            `PrefixTree.end_gone`.
        trimmed_us: Newest of them, so that an insert that is not late does not look.
    """

    __slots__ = (
        "blocks",
        "capacity",
        "floor",
        "forgot_us",
        "queue",
        "trimmed",
        "trimmed_us",
        "used",
    )

    def __init__(self) -> None:
        self.used: dict[Node, int] = {}
        self.blocks = 0
        self.capacity: int | None = None
        self.queue: EvictionQueue | None = None
        self.floor: Key = LOWEST
        self.forgot_us = 0
        self.trimmed: dict[int, int] = {}
        self.trimmed_us = 0

    @property
    def ends_from_us(self) -> int:
        """Log time before which request ends do not count: their windows are gone."""
        return max(self.forgot_us, self.floor[0] + 1)

    def admitted(self, path: bytes, at_us: int, tree_floor: Key) -> int:
        """How many blocks of a path a use at ``at_us`` still counts for, after all that was removed.

        Args:
            path: Packed hashes.
            at_us: Log time of the use.
            tree_floor: Floor of the whole tree.
        """
        blocks = len(path) // HASH_BYTES
        if at_us > self.forgot_us and at_us > self.trimmed_us and at_us > max(self.floor, tree_floor)[0]:
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
        """Whether what was said at a time of the boundary behind a block still counts."""
        return at_us >= self.trimmed_us or at_us >= self.trimmed.get(block_hash ^ END_SALT, 0)

    def raise_floor(self, floor: Key) -> None:
        """Something was evicted here or, says a snapshot, elsewhere."""
        self.floor = max(self.floor, floor)

    def remember_trim(self, block_hash: int, before_us: int, newest_us: int) -> None:
        """Leave a tombstone, and take away what is beyond the horizon: two of the oldest for each that comes.

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
