"""Runs of blocks and the pieces that they consist of (see `loadtest.engine.kv.runs`)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from loadtest.engine.kv.tree import HASH_BYTES

Span = tuple[int, int]
"""First block and end of some neighbouring blocks."""


class Tier(IntEnum):
    """Place of a piece."""

    ABSENT = 0
    MEMORY = 1
    DISK = 2


@dataclass(slots=True, eq=False)
class Piece:
    """Neighbouring blocks of a run with one last use, in one tier."""

    run: "Run"
    start: int
    end: int
    tier: Tier = Tier.ABSENT
    used_s: float = 0.0
    windows: list[Span] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    order: int = 0
    """Number of its newest entry in a queue of `RunStore`; 0 if it has none."""


@dataclass(slots=True, eq=False)
class Run:
    """Blocks that nothing branches from, in a tree of such runs; its pieces cover it."""

    parent: "Run | None"
    blocks: bytes
    start: int
    children: dict[bytes, "Run"] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    space: bytes = b""
    """Name of the tree, at its root."""

    @property
    def end(self) -> int:
        """The block after its last."""
        return self.start + len(self.blocks) // HASH_BYTES

    def piece_at(self, block: int) -> int:
        """Index of the piece that contains a block."""
        return bisect_right(self.pieces, block, key=lambda piece: piece.start) - 1


def clip(windows: Sequence[Span], start: int, end: int) -> list[Span]:
    """The parts of spans within a range."""
    return [(max(a, start), min(b, end)) for a, b in windows if a < end and b > start]


def length_of(windows: list[Span]) -> int:
    """Blocks of disjoint spans."""
    return sum(end - start for start, end in windows)


def join(windows: list[Span], others: list[Span]) -> list[Span]:
    """The union of two lists of spans, sorted and disjoint."""
    joined: list[Span] = []
    for start, end in sorted(windows + others):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def append(spans: list[Span], others: list[Span]) -> None:
    """Add sorted spans that begin where the first ones end, or later."""
    if spans and others and spans[-1][1] == others[0][0]:
        spans[-1] = (spans[-1][0], others[0][1])
        others = others[1:]
    spans += others


def window_end(windows: list[Span], start: int, reach: int, window_blocks: int) -> int:
    """Last boundary up to ``reach`` that a reader with sliding windows can use; ``start`` if there is none.

    The ``window_blocks`` blocks before it must have data (in the sorted ``windows``) and be read as well;
    fewer suffice if they begin at the sequence's first block.
    """
    if window_blocks == 0:
        return reach
    low = high = -1
    for first, last in reversed(windows):
        first, last = max(first, start), min(last, reach)
        if first >= last:
            continue
        if last == low:
            low = first
        else:
            low, high = first, last
        if high - low >= window_blocks or low == 0:
            return high
    return start
