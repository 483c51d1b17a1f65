"""The prefix tree as columns, so that a million blocks are written and read in well under a second.

Nodes come parents first, and in a canonical form: children sorted by their first hash, runs that
nothing divides joined. So equal states give equal bytes, which is also how the tests compare
trees. Workers are positions in the sequence that the snapshot was taken with.

A snapshot is merged, not loaded over what is there: it may be older than the operations
that were applied before it arrived.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from radix.bitmask import bits
from radix.blocks import HASH_BYTES, words_of
from radix.eviction import LOWEST, Key
from radix.holdings import TRIM_HORIZON_US
from radix.node import Node

if TYPE_CHECKING:
    from radix.tree import PrefixTree


class TreeSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What some workers hold.

    Attributes:
        newest_us: Latest log time the tree had seen.
        floor: Highest place evicted by the bound on the whole tree (`radix.eviction`).
        workers: Per worker: forget watermark, place evicted by its own bound.
        parents: Per node the position of its parent, -1 for the root (``i32``).
        sizes: Per node its number of blocks (``u32``).
        hashes: The runs of all nodes, one after the other (``u64``).
        holders: Per node its number of holders (``u32``).
        slots: The holders of all nodes, one after the other (``u32``).
        used_us: Time of last use, for each of ``slots`` (``i64``).
        ends: Request ends: node, worker, depth, log time (``i64`` x 4).
        trims: Tombstones: worker, hash, watermark (``u64`` x 3).
    """

    newest_us: int
    floor: Key
    workers: list[tuple[int, Key]]
    parents: bytes
    sizes: bytes
    hashes: bytes
    holders: bytes
    slots: bytes
    used_us: bytes
    ends: bytes
    trims: bytes


def take_snapshot(tree: "PrefixTree", slots: Sequence[int]) -> TreeSnapshot:
    """Write what some workers hold (`PrefixTree.dump`)."""
    position = {slot: index for index, slot in enumerate(slots)}
    workers = [tree.holdings_of(slot) for slot in slots]
    from_us = {slot: max(tree.holdings[slot].ends_from_us, tree.floor[0] + 1) for slot in slots}
    wanted = sum(1 << slot for slot in position)
    parents, sizes, counts, holders = array("i"), array("I"), array("I"), array("I")
    used_us, ends, trims = array("q"), array("q"), array("Q")
    runs: list[bytes] = []

    def pairs_of(node: Node) -> list[tuple[int, int]]:
        return sorted(
            (position[slot], tree.holdings[slot].used[node]) for slot in bits(node.holders & wanted)
        )

    def children_of(node: Node) -> list[Node]:
        children = node.children_of(wanted)
        return sorted(children, key=_first_hash, reverse=True) if len(children) > 1 else children

    stack = [(child, -1) for child in children_of(tree.root)]
    while stack:
        node, parent = stack.pop()
        index, size, pairs = len(parents), 0, pairs_of(node)
        noted: list[tuple[int, int, int]] = []
        while True:
            runs.append(node.run)
            size += node.size
            for slot, at_depth in (node.ends or {}).items():
                if slot in position:
                    noted += [
                        (position[slot], depth, at_us)
                        for depth, at_us in at_depth.items()
                        if at_us >= from_us[slot]
                    ]
            children = children_of(node)
            if len(children) != 1 or pairs_of(children[0]) != pairs:
                break
            node = children[0]
        parents.append(parent)
        sizes.append(size)
        counts.append(len(pairs))
        holders.extend([worker for worker, _ in pairs])
        used_us.extend([at_us for _, at_us in pairs])
        for end in sorted(noted):
            ends.extend((index, *end))
        stack.extend((child, index) for child in children)
    trims_from_us = tree.newest_us - TRIM_HORIZON_US
    for index, holdings in enumerate(workers):
        for block_hash, before_us in sorted(holdings.trimmed.items()):
            if before_us >= trims_from_us:
                trims.extend((index, block_hash, before_us))
    return TreeSnapshot(
        tree.newest_us,
        tree.floor,
        [(holdings.forgot_us, holdings.floor) for holdings in workers],
        parents.tobytes(),
        sizes.tobytes(),
        b"".join(runs),
        counts.tobytes(),
        holders.tobytes(),
        used_us.tobytes(),
        ends.tobytes(),
        trims.tobytes(),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """A snapshot's columns as rows, checked.

    Attributes:
        nodes: Position of the parent, run, depth of its first block.
        holders: Per node the time of last use by worker.
        ends: Per node (worker, depth, time); nodes without are left out.
        trims: Worker, hash, watermark.
    """

    nodes: list[tuple[int, bytes, int]]
    holders: list[dict[int, int]]
    ends: dict[int, list[tuple[int, int, int]]]
    trims: list[tuple[int, int, int]]

    def path(self, index: int) -> bytes:
        """All hashes from the root to the end of a node."""
        runs: list[bytes] = []
        while index >= 0:
            index, run, _ = self.nodes[index]
            runs.append(run)
        return b"".join(reversed(runs))


def merge_snapshot(tree: "PrefixTree", snapshot: object, slots: Sequence[int]) -> None:
    """Merge a snapshot into a tree (`PrefixTree.load`)."""
    try:
        columns = msgspec.convert(snapshot, TreeSnapshot)
        rows = _rows(columns, len(slots))
        tree.see(columns.newest_us)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"not a snapshot of a prefix tree: {error}") from error
    workers = [tree.holdings_of(slot) for slot in slots]
    warm = [bool(holdings.blocks) for holdings in workers]
    _merge_holdings(tree, rows, slots)
    for slot, holdings, (forgot_us, floor) in zip(slots, workers, columns.workers, strict=True):
        tree.forget(slot, forgot_us)
        holdings.raise_floor(floor)
    _merge_trims(tree, rows, slots, warm)
    tree.floor = max(tree.floor, columns.floor)
    for slot, holdings in zip(slots, workers, strict=True):
        if holdings.queue is not None:
            tree.evict_from(slot)
    if tree.floor > LOWEST or tree.blocks > tree.blocks_max:
        tree.evict_from_all()


def _merge_holdings(tree: "PrefixTree", rows: _Rows, slots: Sequence[int]) -> None:
    """Insert what the workers hold, from the root down, each run below its parent's place in this tree."""
    # A use at or after this time is not late for the worker: nothing that was removed concerns it.
    late_us = [
        max(holdings.ends_from_us, tree.floor[0] + 1, holdings.trimmed_us)
        for holdings in (tree.holdings_of(slot) for slot in slots)
    ]
    places: list[Node | None] = []  # Where each row's run ends in this tree; None if nobody holds it here.
    for index, (parent, run, start) in enumerate(rows.nodes):
        above = tree.root if parent < 0 else places[parent]
        size = len(run) // HASH_BYTES
        uses = [(worker, start + size, at_us, False) for worker, at_us in rows.holders[index].items()]
        uses += [(worker, depth, at_us, True) for worker, depth, at_us in rows.ends.get(index, ())]
        place: Node | None = None
        for worker, depth, at_us, end in uses:
            admitted = depth
            slot = slots[worker]
            if at_us < late_us[worker]:
                path = rows.path(index)[: depth * HASH_BYTES]
                admitted = tree.holdings[slot].admitted(path, at_us, tree.floor)
            if admitted <= start:
                continue
            assert above is not None
            node = tree.hold(above, run[: (admitted - start) * HASH_BYTES], slot, at_us, extend=False)
            if end and admitted == depth:
                node.note_end(slot, depth, at_us)
            if admitted == start + size:
                place = node if node.end == admitted else tree.split(node, admitted - node.start)
        places.append(place)


def _merge_trims(tree: "PrefixTree", rows: _Rows, slots: Sequence[int], warm: Sequence[bool]) -> None:
    """Trim what was trimmed elsewhere. Tombstones have no path, so a worker's blocks are searched once."""
    fresh: dict[int, dict[int, int]] = {}
    for worker, block_hash, before_us in rows.trims:
        holdings = tree.holdings[slots[worker]]
        known = holdings.trimmed.get(block_hash, 0)
        holdings.remember_trim(block_hash, before_us, tree.newest_us)
        if before_us > known and warm[worker]:
            fresh.setdefault(slots[worker], {})[block_hash] = before_us
    for slot, trimmed in fresh.items():
        found: list[tuple[bytes, int]] = []
        for node in tree.holdings[slot].used:
            hashes = words_of(node.run)
            if trimmed.keys().isdisjoint(hashes):
                continue
            path = node.path()
            found += [
                (path[: (node.start + index + 1) * HASH_BYTES], trimmed[block_hash])
                for index, block_hash in enumerate(hashes)
                if block_hash in trimmed
            ]
        for path, before_us in found:
            tree.trim(slot, path, before_us)


def _rows(columns: TreeSnapshot, workers: int) -> _Rows:
    """Check a snapshot's columns and cut them into rows.

    Raises:
        ValueError: They contradict each other, or name a worker that does not exist.
    """
    parents = np.frombuffer(columns.parents, dtype="<i4")
    sizes = np.frombuffer(columns.sizes, dtype="<u4")
    counts = np.frombuffer(columns.holders, dtype="<u4")
    holders = np.frombuffer(columns.slots, dtype="<u4")
    used_us = np.frombuffer(columns.used_us, dtype="<i8")
    ends = np.frombuffer(columns.ends, dtype="<i8").reshape(-1, 4)
    trims = np.frombuffer(columns.trims, dtype="<u8").reshape(-1, 3)
    nodes = len(parents)
    watermarks = [(forgot_us, floor[0] + 1) for forgot_us, floor in columns.workers]
    times = (used_us, ends[:, 3], trims[:, 2], np.asarray(watermarks), np.asarray([columns.floor[0] + 1]))
    sound = (
        len(columns.workers) == workers
        and len(sizes) == len(counts) == nodes
        and len(holders) == len(used_us) == int(counts.sum())
        and len(columns.hashes) == int(sizes.sum()) * HASH_BYTES
        and bool((sizes > 0).all() and (counts > 0).all())
        and bool((parents >= -1).all() and (parents < np.arange(nodes)).all())
        and all(bool((column < workers).all()) for column in (holders, ends[:, 1], trims[:, 0]))
        and bool((ends >= 0).all() and (ends[:, 0] < nodes).all())
        and all(bool(((column >= 0) & (column <= columns.newest_us + 1)).all()) for column in times)
    )
    if not sound:
        raise ValueError("its columns contradict each other")
    rows = _Rows([], [], {}, [(int(worker), int(key), int(at_us)) for worker, key, at_us in trims])
    pairs = list(zip(holders.tolist(), used_us.tolist(), strict=True))
    byte = pair = 0
    depths: list[int] = []
    for parent, size, count in zip(parents.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        used = dict(pairs[pair : pair + count])
        if parent >= 0:
            above = rows.holders[parent]
            if any(above.get(worker, -1) < at_us for worker, at_us in used.items()):
                raise ValueError("a run is held, or was used, without the one above it")
        start = depths[parent] if parent >= 0 else 0
        rows.nodes.append((parent, columns.hashes[byte : byte + size * HASH_BYTES], start))
        rows.holders.append(used)
        depths.append(start + size)
        byte += size * HASH_BYTES
        pair += count
    for index, worker, depth, at_us in ends.tolist():
        if not rows.nodes[index][2] < depth <= depths[index] or at_us > rows.holders[index].get(worker, -1):
            raise ValueError("a request ended outside of what its worker holds")
        rows.ends.setdefault(index, []).append((worker, depth, at_us))
    return rows


def _first_hash(node: Node) -> int:
    return node.hash_at(node.start + 1)
