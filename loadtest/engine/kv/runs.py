"""Content of one storage node: KV blocks as objects of their own, kept as runs.

Storage is not a prefix cache: each block has its own last use, so the head of a long session may be evicted
while its tail is kept. A prompt of 800K tokens would be 12,500 dictionary entries; here it is a few *pieces*:

    root ──[ run: 5,000 blocks                        ]──┬──[ run: 300 blocks ]
           | piece: in memory | absent | on disk      |  └──[ run: 40 blocks  ]
           |                ww|        |           www|       w = sliding-window data

* A *run* is blocks without a branch; runs form a tree. Hashes are chained, so a look-up compares one per run.
* A *piece* is neighbouring blocks of a run with one last use, in one tier. Using a range makes it one piece,
  so a path has few, for any number of turns that wrote them.
* Sliding-window layers keep data for few blocks only: spans within present pieces, evicted with them.
* Blocks lost inside a piece (the memory that held them failed) are its *holes*, until written again.
* Least recently used pieces go first, memory to disk, disk to nowhere; of a piece its tail first, since
  nothing can be read behind a gap. A piece not used for ``ttl_s`` is absent.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.engine.kv.pieces import Piece, Run, Span, Tier, append, clip, join, length_of
from loadtest.engine.kv.tree import HASH_BYTES

_Entry = tuple[float, int, int, Piece]
"""Entry of a queue: last use, deepest block first, number of the entry, piece."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that a write added, and those whose sliding-window data it added."""

    blocks: int
    window_blocks: int


class RunStore:
    """The blocks of one storage node.

    Args:
        disk_bytes: 0 for no disk.
        block_bytes: Full-attention data of a block.
        window_block_bytes: Sliding-window (or linear-state) data of a block.
        ttl_s: Lifetime of a block after its last use; None for no end.
    """

    def __init__(
        self,
        memory_bytes: int,
        disk_bytes: int,
        block_bytes: int,
        window_block_bytes: int = 0,
        ttl_s: float | None = None,
    ) -> None:
        self.memory_bytes_max = memory_bytes
        self.disk_bytes_max = disk_bytes
        self._block_bytes = block_bytes
        self._window_block_bytes = window_block_bytes
        self._ttl_s = ttl_s
        self._roots: dict[bytes, Run] = {}
        self._held = {Tier.MEMORY: 0, Tier.DISK: 0}
        self._queues: dict[Tier, list[_Entry]] = {Tier.MEMORY: [], Tier.DISK: []}
        self._queue_limits = {Tier.MEMORY: 64, Tier.DISK: 64}
        self._orders = 0
        self.evicted_bytes = 0
        self.demoted_bytes = 0
        self.expired_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory, at most ``memory_bytes_max``."""
        return self._held[Tier.MEMORY]

    @property
    def disk_bytes(self) -> int:
        """Bytes held on disk, at most ``disk_bytes_max``."""
        return self._held[Tier.DISK]

    def reach(
        self, space: bytes, blocks: bytes, start: int, end: int, now_s: float
    ) -> tuple[int, list[Span]]:
        """Return how far a sequence is present without a gap, at most to ``end``, and its window spans.

        The first result is ``start`` if nothing is present. Spans are in order and may begin earlier and end
        later. Blocks of different ``space`` are never the same. Expired pieces are dropped.
        """
        self._expire(now_s)
        reach = start
        windows: list[Span] = []
        for run, common in self._walk(space, blocks, end):
            if common <= start:
                continue
            for piece in run.pieces[run.piece_at(max(start, run.start)) :]:
                if piece.tier is Tier.ABSENT:
                    return reach, windows
                windows += piece.windows
                hole = bisect_left(piece.holes, start)
                if hole < len(piece.holes) and piece.holes[hole] < common:
                    return piece.holes[hole], windows
                reach = min(piece.end, common)
                if piece.end >= common:
                    break
        return reach, windows

    def store(
        self, space: bytes, blocks: bytes, start: int, end: int, windows: Sequence[Span], now_s: float
    ) -> Stored:
        """Hold a span of a sequence, with the sliding-window data of some spans in it."""
        self._expire(now_s)
        self._grow(space, blocks, end)
        stored = self._use(space, blocks, start, end, now_s, fill=True, windows=windows)
        self._shrink()
        return stored

    def read(self, space: bytes, blocks: bytes, start: int, end: int, now_s: float) -> int:
        """Use blocks and bring those on disk to memory; return the bytes from disk."""
        self._expire(now_s)
        before = self.disk_bytes
        self._use(space, blocks, start, end, now_s, promote=True)
        from_disk = before - self.disk_bytes
        self._shrink()
        return from_disk

    def touch(self, space: bytes, blocks: bytes, start: int, end: int, now_s: float) -> None:
        """Make the present blocks the most recently used, in their tier."""
        self._expire(now_s)
        self._use(space, blocks, start, end, now_s)

    def lose(self, lost: Callable[[bytes], list[int]]) -> None:
        """Drop the blocks that the failed memory of a store without disk held.

        ``lost`` returns the positions, in order, of the lost ones among packed hashes.
        """
        assert self.disk_bytes_max == 0
        runs = list(self._roots.values())
        while runs:
            run = runs.pop()
            runs += run.children.values()
            gone = [run.start + offset for offset in lost(run.blocks)]
            for piece in run.pieces:
                if piece.tier is not Tier.ABSENT:
                    self._held[piece.tier] -= self._size(piece)
                    holes = gone[bisect_left(gone, piece.start) : bisect_left(gone, piece.end)]
                    piece.holes = sorted({*piece.holes, *holes})
                    for hole in holes:
                        piece.windows = clip(piece.windows, 0, hole) + clip(
                            piece.windows, hole + 1, piece.end
                        )
                    self._held[piece.tier] += self._size(piece)

    def resize(self, memory_bytes: int) -> None:
        """Change the room in memory, evicting what no longer fits."""
        self.memory_bytes_max = memory_bytes
        self._shrink()

    def clear(self) -> None:
        """Lose everything."""
        self._roots.clear()
        for tier in self._held:
            self._held[tier] = 0
            self._queues[tier].clear()

    def _walk(self, space: bytes, blocks: bytes, end: int) -> list[tuple[Run, int]]:
        """The runs that begin as the sequence does, each with the block at which it leaves the sequence."""
        path: list[tuple[Run, int]] = []
        run = self._roots.get(space)
        position = 0
        while run is not None and position < end:
            child = run.children.get(blocks[position * HASH_BYTES : (position + 1) * HASH_BYTES])
            if child is None:
                break
            after = child.end
            if after <= end and child.blocks.endswith(blocks[(after - 1) * HASH_BYTES : after * HASH_BYTES]):
                path.append((child, after))
                position = after
                run = child
                continue
            path.append((child, position + self._common(child, blocks, min(after, end))))
            break
        return path

    @staticmethod
    def _common(run: Run, blocks: bytes, end: int) -> int:
        """Blocks that a run and the sequence share; the first is known to be shared."""
        low, high = 1, end - run.start
        while low < high:
            middle = (low + high + 1) // 2
            last = (run.start + middle - 1) * HASH_BYTES
            if run.blocks.startswith(blocks[last : last + HASH_BYTES], (middle - 1) * HASH_BYTES):
                low = middle
            else:
                high = middle - 1
        return low

    def _grow(self, space: bytes, blocks: bytes, end: int) -> None:
        """Make the tree reach block ``end`` of a sequence, with absent pieces."""
        path = self._walk(space, blocks, end)
        if path:
            run, reach = path[-1]
        else:
            run, reach = self._roots.setdefault(space, Run(None, b"", 0, space=space)), 0
        if reach == end:
            return
        added = blocks[reach * HASH_BYTES : end * HASH_BYTES]
        if reach < run.end:
            run = self._split(run, reach)
        elif run.parent is not None and not run.children:
            run.blocks += added
            if run.pieces[-1].tier is Tier.ABSENT:
                run.pieces[-1].end = end
            else:
                run.pieces.append(Piece(run, reach, end))
            return
        child = Run(run, added, reach)
        child.pieces.append(Piece(child, reach, end))
        run.children[added[:HASH_BYTES]] = child

    def _split(self, run: Run, block: int) -> Run:
        """Cut a run in two; the upper one is new."""
        parent = run.parent
        assert parent is not None
        at = self._cut(run, block)
        offset = (block - run.start) * HASH_BYTES
        upper = Run(parent, run.blocks[:offset], run.start, pieces=run.pieces[:at])
        for piece in upper.pieces:
            piece.run = upper
        parent.children[upper.blocks[:HASH_BYTES]] = upper
        run.parent, run.blocks, run.start, run.pieces = upper, run.blocks[offset:], block, run.pieces[at:]
        upper.children[run.blocks[:HASH_BYTES]] = run
        return upper

    def _cut(self, run: Run, block: int) -> int:
        """Make a piece begin at a block of the run (or at its end); the piece's index."""
        if block == run.end:
            return len(run.pieces)
        at = run.piece_at(block)
        piece = run.pieces[at]
        if piece.start == block:
            return at
        hole = bisect_left(piece.holes, block)
        tail = Piece(
            run,
            block,
            piece.end,
            piece.tier,
            piece.used_s,
            clip(piece.windows, block, piece.end),
            piece.holes[hole:],
        )
        piece.end = block
        piece.windows = clip(piece.windows, piece.start, block)
        del piece.holes[hole:]
        run.pieces.insert(at + 1, tail)
        self._enqueue(tail)
        return at + 1

    def _use(
        self,
        space: bytes,
        blocks: bytes,
        start: int,
        end: int,
        now_s: float,
        *,
        fill: bool = False,
        promote: bool = False,
        windows: Sequence[Span] = (),
    ) -> Stored:
        """Make a range the most recently used; fill its gaps, or bring it to memory, if told so."""
        added = windows_added = 0
        for run, common in self._walk(space, blocks, end):
            if common <= start:
                continue
            first = self._cut(run, max(start, run.start))
            last = self._cut(run, common)
            merged: list[Piece] = []
            for piece in run.pieces[first:last]:
                size = self._size(piece)
                tier = piece.tier
                if tier is Tier.ABSENT:
                    if not fill:
                        merged.append(piece)
                        continue
                    added += piece.end - piece.start
                    tier = Tier.MEMORY
                elif promote:
                    tier = Tier.MEMORY
                if piece.tier is not Tier.ABSENT:
                    self._held[piece.tier] -= size
                if fill:
                    added += len(piece.holes)
                    piece.holes = []
                if windows and windows[-1][1] > piece.start:
                    before = length_of(piece.windows)
                    piece.windows = join(piece.windows, clip(windows, piece.start, piece.end))
                    windows_added += length_of(piece.windows) - before
                piece.tier = tier
                piece.used_s = now_s
                self._held[tier] += self._size(piece)
                if merged and merged[-1].tier is tier:
                    merged[-1].end = piece.end
                    append(merged[-1].windows, piece.windows)
                    merged[-1].holes += piece.holes
                    piece.order = 0
                else:
                    merged.append(piece)
            run.pieces[first:last] = merged
            for piece in merged:
                self._enqueue(piece)
        return Stored(added, windows_added)

    def _size(self, piece: Piece) -> int:
        blocks = piece.end - piece.start - len(piece.holes)
        return blocks * self._block_bytes + length_of(piece.windows) * self._window_block_bytes

    def _enqueue(self, piece: Piece) -> None:
        """Note a piece's last use; its older entries no longer count."""
        if piece.tier is Tier.ABSENT:
            piece.order = 0
            return
        self._orders += 1
        piece.order = self._orders
        queue = self._queues[piece.tier]
        heapq.heappush(queue, (piece.used_s, -piece.start, piece.order, piece))
        if len(queue) > self._queue_limits[piece.tier]:
            current = [entry for entry in queue if self._current(entry, piece.tier)]
            heapq.heapify(current)
            self._queues[piece.tier] = current
            self._queue_limits[piece.tier] = 2 * len(current) + 64

    @staticmethod
    def _current(entry: _Entry, tier: Tier) -> bool:
        _, _, order, piece = entry
        return piece.order == order and piece.tier is tier

    def _oldest(self, tier: Tier) -> Piece | None:
        queue = self._queues[tier]
        while queue and not self._current(queue[0], tier):
            heapq.heappop(queue)
        return queue[0][3] if queue else None

    def _expire(self, now_s: float) -> None:
        if self._ttl_s is None:
            return
        for tier in self._held:
            while (piece := self._oldest(tier)) is not None and piece.used_s + self._ttl_s < now_s:
                self.expired_bytes += self._size(piece)
                self._drop(piece)

    def _shrink(self) -> None:
        """Demote and evict until both tiers are within their room."""
        for tier, room in ((Tier.MEMORY, self.memory_bytes_max), (Tier.DISK, self.disk_bytes_max)):
            while (over := self._held[tier] - room) > 0:
                piece = self._oldest(tier)
                assert piece is not None
                length = max(1, over // (self._block_bytes + self._window_block_bytes))
                if length < piece.end - piece.start:
                    self._cut(piece.run, piece.end - length)
                    piece = piece.run.pieces[piece.run.piece_at(piece.end)]
                size = self._size(piece)
                if tier is Tier.MEMORY and self.disk_bytes_max > 0:
                    self._held[tier] -= size
                    self._held[Tier.DISK] += size
                    self.demoted_bytes += size
                    piece.tier = Tier.DISK
                    self._merge(piece)
                    self._enqueue(piece)
                else:
                    self.evicted_bytes += size
                    self._drop(piece)

    @staticmethod
    def _merge(piece: Piece) -> None:
        """Take in the next piece if nothing tells it from this one: evicting by pieces leaves no crumbs."""
        pieces = piece.run.pieces
        at = piece.run.piece_at(piece.end) if piece.end < piece.run.end else len(pieces)
        if at == len(pieces):
            return
        following = pieces[at]
        if following.tier is piece.tier and (piece.tier is Tier.ABSENT or following.used_s == piece.used_s):
            piece.end = following.end
            append(piece.windows, following.windows)
            piece.holes += following.holes
            following.order = 0
            del pieces[at]

    def _drop(self, piece: Piece) -> None:
        """Make a piece absent, and cut off the ends of the tree that hold nothing."""
        self._held[piece.tier] -= self._size(piece)
        piece.tier = Tier.ABSENT
        piece.order = 0
        piece.windows = []
        piece.holes = []
        self._merge(piece)
        run: Run | None = piece.run
        while run is not None and not run.children:
            while run.pieces and run.pieces[-1].tier is Tier.ABSENT:
                run.pieces.pop()
            left_bytes = (run.pieces[-1].end - run.start) * HASH_BYTES if run.pieces else 0
            first = run.blocks[:HASH_BYTES]
            run.blocks = run.blocks[:left_bytes]
            if left_bytes:
                return
            parent = run.parent
            if parent is None:
                del self._roots[run.space]
            else:
                del parent.children[first]
            run = parent
