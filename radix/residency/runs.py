"""Places of an engine's blocks: runs of blocks that follow each other.

A run is a stretch of blocks of one sequence. A sequence that leaves it begins a run of its own, and the run
it leaves is not divided:

    run 0   [0 1 2 3 4 5 6]         parent of 1 and 2
    run 1        [3 4 5]            starts at 3: its blocks follow block 2 of run 0
    run 2              [5 6]        starts at 5

So a block keeps its place, the number of a run and one in it. The facts about all blocks of a run are a few
integers with a bit for each: the lanes that hold them (`radix.residency.groups`), and the boundaries from
which the engine can go on.

The tree's blocks lie across: a run has the hashes of those that are complete at one of its own blocks. Where
the tree's blocks are larger than the engine's (or neither divides the other), a run may leave another inside
of one, and keeps the tokens since the last complete one.

A removed block leaves a *ghost* while something behind it is held: the engine may store it again, and all
behind it is reached again. At the end of a run nothing is kept.
"""

from collections.abc import Iterable

import msgspec

from radix.blocks import HASH_BYTES, chain_bytes
from radix.residency.engine_events import Handle

RUN_BLOCKS_MAX = 1024
"""Longest run, engine blocks: a lane's bits of a whole run are copied when one changes (128 bytes)."""

UNREACHED = -1
"""Reach of a run whose first block is not reached."""

TOKEN_BYTES = 4


class Rank:
    """Reports of one data-parallel rank.

    Attributes:
        places: Place of each handle: number of the run, shifted by `PLACE_SHIFT`, and number in it.
        loose: Lanes of each handle without a place; a lane twice if the engine has two such blocks.
        again: Further blocks with the same handle in the same lane, beside the first.
    """

    __slots__ = ("again", "loose", "places")

    def __init__(self) -> None:
        self.places: dict[Handle, int] = {}
        self.loose: dict[Handle, list[int]] = {}
        self.again: dict[tuple[Handle, int], int] = {}


PLACE_SHIFT = 16
PLACE_MASK = (1 << PLACE_SHIFT) - 1


class Run(msgspec.Struct, eq=False, gc=False):
    """A stretch of blocks of a sequence. Depths are counted from the beginning of the sequence.

    Attributes:
        parent: The run that it leaves; None at the beginning of a sequence.
        start: Engine blocks before it.
        first: Tree blocks that are complete before it.
        above: Hash of the last of these; the root's if there is none.
        keys: Hashes of the tree blocks that its blocks complete, packed.
        lanes: By lane the blocks held, as bits.
        kids: Runs that leave it, with their starts.
        ghosts: Handles of blocks that no lane holds, by number.
        tokens: Tokens since `first` was complete, packed; None where they are not needed.
        size: Engine blocks.
        fork: At least the deepest of the kids' starts.
        reach: Engine blocks usable in a row from the beginning of the sequence to at most the end of the run;
            `UNREACHED` if not even its start.
        reported: Tree blocks reported to the tree; ``first`` if none of its own.
        valid: Boundaries from which the engine can go on: bit i behind block i.
        chains: Bits that the runs that leave it need, if the engine has tiers: `boundaries.chained`.
        low: First block that changed since the last report to the tree.
        high: Last one.
        shed: Blocks that the engine needs to get further were removed since the last report.
    """

    number: int
    rank: Rank
    parent: "Run | None"
    start: int
    first: int
    above: int
    keys: bytearray
    lanes: dict[int, int]
    kids: dict[int, int] | None = None
    ghosts: dict[int, Handle] | None = None
    tokens: bytearray | None = None
    size: int = 0
    fork: int = 0
    reach: int = UNREACHED
    reported: int = 0
    valid: int = 0
    chains: tuple[int, ...] = ()
    low: int = RUN_BLOCKS_MAX
    high: int = -1
    shed: bool = False

    def changed(self, low: int, high: int) -> None:
        """Note that blocks have changed."""
        if low < self.low:
            self.low = low
        if high > self.high:
            self.high = high

    def path(self, depth: int) -> bytes:
        """Hashes of the first tree blocks of the sequence."""
        parts: list[bytes] = []
        run: Run | None = self
        while run is not None and depth:
            if depth > run.first:
                parts.append(bytes(run.keys[: (depth - run.first) * HASH_BYTES]))
                depth = run.first
            run = run.parent
        return b"".join(reversed(parts))

    def hash_before(self, depth: int) -> int:
        """Hash of the tree block that ends at ``depth``, first <= depth; the root's at 0."""
        at = (depth - self.first) * HASH_BYTES
        return int.from_bytes(self.keys[at - HASH_BYTES : at], "little") if at else self.above

    def top(self) -> int:
        """Blocks up to the last that is held or that a run leaves behind."""
        top = max((bits.bit_length() for bits in self.lanes.values()), default=0)
        if self.kids and self.fork > self.start + top:
            self.fork = max(self.kids.values())
            top = max(top, self.fork - self.start)
        return top

    def grow(self, tokens: bytes, count: int, block_tokens: int) -> None:
        """Add blocks at the end, with their tokens; for tree blocks of ``block_tokens``."""
        data = tokens
        if self.tokens is not None:
            self.tokens += tokens
            data = bytes(self.tokens[len(self.keys) // HASH_BYTES * block_tokens * TOKEN_BYTES :])
        last = int.from_bytes(self.keys[-HASH_BYTES:], "little") if self.keys else self.above
        self.keys += chain_bytes(data, last, block_tokens * TOKEN_BYTES)
        self.size += count


def ranges(depths: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive depths: the last of each range, and its length."""
    ranges: list[tuple[int, int]] = []
    for depth in sorted(depths):
        if ranges and ranges[-1][0] == depth - 1:
            ranges[-1] = depth, ranges[-1][1] + 1
        else:
            ranges.append((depth, 1))
    return ranges
