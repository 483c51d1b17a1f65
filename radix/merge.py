"""Reading a snapshot into a tree that goes on changing.

A snapshot is merged with the operations applied before it arrived and between its steps. In order:

    watermarks and floors   so that no row brings back what they removed
    rows, parents first     each worker's use of a run is inserted below the run above it
    tombstones              last: before, every row would have to be compared with them

A row is inserted below the place where its parent's run ended. If that place is gone, its removal left a
watermark, a floor or a tombstone newer than the row's use, which therefore no longer counts. So it is enough
to check that a worker still holds the blocks above, and as recently as the row says. (Runs are not joined
meanwhile: that removes a node, too.)
"""

from array import array
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from radix.blocks import HASH_BYTES, words_of
from radix.eviction import LOWEST
from radix.holdings import END_SALT, Holdings
from radix.node import Node
from radix.snapshot import Rows, TreePage

if TYPE_CHECKING:
    from radix.tree import PrefixTree

PLACES_SHIFT = 12
"""Places are kept by 4,096."""


def merge(tree: "PrefixTree", rows: Rows, slots: Sequence[int]) -> Generator[float, None, None]:
    """Merge a snapshot into a tree (`PrefixTree.load_steps`)."""
    tree.walks += 1
    try:
        yield from _steps(tree, rows, slots)
    finally:
        tree.walks -= 1


def _steps(tree: "PrefixTree", rows: Rows, slots: Sequence[int]) -> Generator[float, None, None]:
    marks = rows.snapshot.marks
    tree.see(marks.newest_us)
    workers = [tree.holdings_of(slot) for slot in slots]
    for slot, (forgot_us, floor) in zip(slots, marks.workers, strict=True):
        tree.forget(slot, forgot_us)
        tree.raise_floor(slot, floor)
        if tree.holdings[slot].queue is not None:
            tree.evict_from(slot)
        yield 0.0
    tree.floor = max(tree.floor, marks.floor)
    if tree.floor > LOWEST or tree.blocks + rows.blocks > tree.blocks_max:
        # Now, while there is little to put in order.
        tree.evict_from_all()
    merger = _Merger(tree, slots, workers)
    for page in rows.snapshot.pages:
        for _ in merger.rows(page):
            yield merger.merged / rows.count
    for page in rows.snapshot.pages:
        for _ in merger.trims(page):
            yield 1.0


class _Merger:
    """Places in the tree where the ``merged`` rows so far ended."""

    def __init__(self, tree: "PrefixTree", slots: Sequence[int], workers: Sequence[Holdings]) -> None:
        self._tree = tree
        self._slots = slots
        self._workers = workers
        # Per row: a node that held its last block, if any does; the depth of that block; its hash.
        # (In dictionaries, since the garbage collector does not look into those that have nodes only;
        # in many, since one stops everything for 6 ms when it outgrows 175,000.)
        self._places: list[dict[int, Node]] = []
        self._depths = array("q")
        self._lasts = bytearray()
        self.merged = 0

    def rows(self, page: TreePage) -> Generator[None, None, None]:
        sizes, counts = (np.frombuffer(column, dtype="<u4").tolist() for column in (page.sizes, page.holders))
        parents = np.frombuffer(page.parents, dtype="<i4").tolist()
        workers = np.frombuffer(page.slots, dtype="<u4").tolist()
        used_us = np.frombuffer(page.used_us, dtype="<i8").tolist()
        owners = np.frombuffer(page.owners, dtype="<u8").tolist() or [0] * len(sizes)
        ends: dict[int, list[tuple[int, int, int]]] = {}
        for row, worker, size, at_us in np.frombuffer(page.ends, dtype="<i8").reshape(-1, 4).tolist():
            ends.setdefault(row, []).append((worker, size, at_us))
        byte = pair = 0
        for row, (parent, size, count, owner) in enumerate(zip(parents, sizes, counts, owners, strict=True)):
            run = page.hashes[byte : byte + size * HASH_BYTES]
            byte += size * HASH_BYTES
            above, start = self._above(parent)
            place: Node | None = None
            if above is not None:
                for worker, at_us in zip(
                    workers[pair : pair + count], used_us[pair : pair + count], strict=True
                ):
                    place = self._use(above, run, worker, at_us, owner) or place
                for worker, ended, at_us in ends.get(row, ()):
                    node = self._use(above, run[: ended * HASH_BYTES], worker, at_us, owner)
                    last = int.from_bytes(run[(ended - 1) * HASH_BYTES : ended * HASH_BYTES], "little")
                    if node is not None and self._workers[worker].end_counts(last, at_us):
                        node.note_end(self._slots[worker], start + ended, at_us)
                for worker in workers[pair : pair + count]:
                    self._tree.bound(self._slots[worker])
            pair += count
            if self.merged >> PLACES_SHIFT == len(self._places):
                self._places.append({})
            if place is not None:
                self._places[-1][self.merged] = place
            self._depths.append(start + size)
            self._lasts += run[-HASH_BYTES:]
            self.merged += 1
            yield

    def _above(self, row: int) -> tuple[Node | None, int]:
        """The node that now ends where a row's run ended, and that depth; None if it is gone."""
        if row < 0:
            return self._tree.root, 0
        places = self._places[row >> PLACES_SHIFT]
        node, depth = places.get(row), self._depths[row]
        if node is None:
            return None, depth
        while node.start >= depth and node.parent is not None:
            node = node.parent  # it was split: its end is the lower part
        at = (depth - node.start) * HASH_BYTES
        last = self._lasts[row * HASH_BYTES : (row + 1) * HASH_BYTES]
        if node.parent is None or node.end < depth or node.run[at - HASH_BYTES : at] != last:
            return None, depth
        if node.end > depth:
            node = self._tree.split(node, depth - node.start)
        places[row] = node
        return node, depth

    def _use(self, above: Node, run: bytes, worker: int, at_us: int, owner: int) -> Node | None:
        """Insert a use as far as it counts; return the node of the run's last block if it counts that far."""
        tree, slot, holdings = self._tree, self._slots[worker], self._workers[worker]
        if tree.holdings[slot] is not holdings:
            return None  # the worker was dropped, and its slot may be another's
        if above is not tree.root and holdings.used.get(above, -1) < at_us:
            return None
        admitted = len(run)
        if at_us < max(holdings.ends_from_us, tree.floor[0] + 1, holdings.trimmed_us):
            path = above.path() + run
            admitted = holdings.admitted(path, at_us, tree.floor) * HASH_BYTES - len(path) + len(run)
            if admitted <= 0:
                return None
        node = tree.hold(above, run[:admitted], slot, at_us, extend=False, owner=owner)
        return node if admitted == len(run) else None

    def trims(self, page: TreePage) -> Generator[None, None, None]:
        """Apply tombstones of a page. They have no path, so a worker's runs are searched."""
        fresh: dict[int, dict[int, int]] = {}
        for worker, block_hash, before_us in np.frombuffer(page.trims, dtype="<u8").reshape(-1, 3).tolist():
            holdings = self._workers[worker]
            if self._tree.holdings[self._slots[worker]] is holdings:
                holdings.remember_trim(block_hash, before_us, self._tree.newest_us)
                fresh.setdefault(worker, {})[block_hash] = before_us
        for worker, trimmed in fresh.items():
            # With the depth at which each begins now: a run that is split meanwhile goes on above.
            held = [(node, node.start) for node in self._workers[worker].used]
            for node, start in held:
                if self._tree.holdings[self._slots[worker]] is not self._workers[worker]:
                    break
                self._trim_run(node, start, self._slots[worker], trimmed)
                yield

    def _trim_run(self, node: Node, start: int, slot: int, trimmed: dict[int, int]) -> None:
        """Trim the rest of a run: a node, and those above it that were a part of it."""
        while node.parent is not None and node.start >= start:
            parent, first, hashes = node.parent, node.start, words_of(node.run)
            for depth in tuple((node.ends or {}).get(slot, ())):
                before_us = trimmed.get(node.hash_at(depth) ^ END_SALT)
                if before_us is not None:
                    node.drop_ends(slot, depth - 1, before_us, depth)
            if not trimmed.keys().isdisjoint(hashes):
                path = node.path()
                for index, block_hash in enumerate(hashes):
                    if block_hash in trimmed:
                        self._tree.trim(slot, path[: (first + index + 1) * HASH_BYTES], trimmed[block_hash])
            node = parent
