"""A node of the prefix tree: a run of blocks that nothing has divided so far.

Its holders are a bitmask on the node; the time of each holder's last use is in that holder's own map
(`radix.holdings`). So a walk reads one integer per segment for any number of workers, all blocks of a worker
are found without a search, and a node costs no dictionary of its own.

The garbage collector does not see nodes: with hundreds of thousands of them each full pass would stop the
process for 100 ms (``gc.collect`` on a million blocks in runs of 4). Nothing collects a cycle of nodes, so
code that takes a node out of the tree clears its ``parent``.
"""

from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from radix.blocks import HASH_BYTES, unpack_hash
from radix.bounds import SHARED
from radix.eviction import Key

DEPTH_BITS = 32
"""Bits of a depth in the key of an end."""


def joint_owner(one: int, other: int) -> int:
    """Owner of blocks that two owners brought: the same in any order, and however often."""
    return one if not other or one == other else other if not one else SHARED


class EndColumns:
    """The ends in a node as columns, for nodes in which many workers have one.

    Attributes:
        keys: Slot and depth of each, ascending.
        at_us: Log time of each.
    """

    __slots__ = ("_depths", "_slots", "at_us", "keys")

    def __init__(self, ends: dict[int, dict[int, int]]) -> None:
        rows = [
            (slot << DEPTH_BITS | depth, at_us)
            for slot, at_depth in ends.items()
            for depth, at_us in at_depth.items()
        ]
        self.keys, self.at_us = np.array(sorted(rows), dtype=np.int64).T.copy()
        self._slots = self.keys >> DEPTH_BITS
        self._depths = (self.keys & (1 << DEPTH_BITS) - 1).astype(np.int32)

    def note(self, slot: int, depth: int, at_us: int) -> None:
        """Add an end, or change its log time."""
        key = slot << DEPTH_BITS | depth
        at = int(self.keys.searchsorted(key))
        if at < len(self.keys) and self.keys.item(at) == key:
            self.at_us[at] = at_us
            return
        self.keys = np.insert(self.keys, at, key)
        self.at_us = np.insert(self.at_us, at, at_us)
        self._slots = np.insert(self._slots, at, slot)
        self._depths = np.insert(self._depths, at, depth)

    def drop(self, slot: int, remaining: Collection[int]) -> None:
        """Remove a worker's ends but the remaining depths."""
        stays = self._slots != slot
        if remaining:
            stays |= np.isin(self._depths, np.array(list(remaining)))
        self.keys, self.at_us = self.keys[stays], self.at_us[stays]
        self._slots, self._depths = self._slots[stays], self._depths[stays]

    def raise_last(
        self, last: NDArray[np.int32], depth: int, from_us: NDArray[np.int64], tree_us: int
    ) -> None:
        """Raise each worker's last end, in blocks by slot, to its last one in the node down to ``depth``.

        Ends older than ``from_us`` of their worker, or than ``tree_us``, do not count.
        """
        counts = (self._depths <= depth) & (self.at_us >= np.maximum(from_us[self._slots], tree_us))
        np.maximum.at(last, self._slots[counts], self._depths[counts])


class Node(msgspec.Struct, eq=False, gc=False):
    """A run of blocks held by the same workers, each with one time of last use.

    Attributes:
        parent: The node above; None for the root and for a node that left the tree.
        run: Packed hashes; empty for the root only.
        start: Depth of the first block: the number of blocks before it.
        holders: Bit ``1 << slot`` is set for every worker that holds the whole run.
        children: By first hash; None until there is one.
        ends: Per slot the depths where requests ended, with the latest log time; None until there is one.
        end_columns: The same as columns, made on demand.
        owner: Owner that brought the blocks (`PrefixTree.insert`): 0 if unknown, `SHARED` if several did.
    """

    parent: "Node | None"
    run: bytes
    start: int
    holders: int
    children: "dict[int, Node] | None" = None
    ends: dict[int, dict[int, int]] | None = None
    end_columns: EndColumns | None = None
    owner: int = 0

    def __lt__(self, other: "Node") -> bool:
        """Any order: entries of a queue with one place may have nodes that left the tree."""
        return id(self) < id(other)

    @property
    def size(self) -> int:
        """Blocks in the run."""
        return len(self.run) // HASH_BYTES

    @property
    def end(self) -> int:
        """Depth after the last block."""
        return self.start + len(self.run) // HASH_BYTES

    def hash_at(self, depth: int) -> int:
        """Hash of the block that ends at ``depth``, start < depth <= end."""
        index = (depth - self.start) * HASH_BYTES
        return int.from_bytes(self.run[index - HASH_BYTES : index], "little")

    def path(self) -> bytes:
        """All hashes from the root to the end of the run."""
        runs: list[bytes] = []
        node: Node | None = self
        while node is not None:
            runs.append(node.run)
            node = node.parent
        return b"".join(reversed(runs))

    def key(self, used_us: int) -> Key:
        """Place of the last block in the order of eviction."""
        run = self.run
        size = len(run)
        return used_us, -self.start - size // HASH_BYTES, unpack_hash(run, size - HASH_BYTES)[0]

    def children_of(self, bit: int) -> "list[Node]":
        """Children that one worker, given as its bit, holds."""
        if self.children is None:
            return []
        return [child for child in self.children.values() if child.holders & bit]

    def adopt(self, child: "Node") -> None:
        """Hang a child below this node, under its first hash."""
        if self.children is None:
            self.children = {}
        self.children[child.hash_at(child.start + 1)] = child
        child.parent = self

    def disown(self, child: "Node") -> None:
        """Take a child out of the tree."""
        children = self.children or {}
        del children[child.hash_at(child.start + 1)]
        if not children:
            self.children = None
        child.parent = None

    def note_end(self, slot: int, depth: int, at_us: int) -> None:
        """Remember that a request of this worker ended at ``depth``."""
        if self.ends is None:
            self.ends = {}
        ends = self.ends.setdefault(slot, {})
        noted_us = ends.get(depth, -1)
        if noted_us < at_us:
            ends[depth] = at_us
            if self.end_columns is not None:
                self.end_columns.note(slot, depth, at_us)

    def divide_ends(self, upper: "Node") -> None:
        """Move the ends in the first part of the run to the node that took that part over."""
        ends, self.ends, self.end_columns = self.ends, None, None
        for slot, at_depth in (ends or {}).items():
            for depth, at_us in at_depth.items():
                (upper if depth <= upper.end else self).note_end(slot, depth, at_us)

    def drop_ends(
        self, slot: int, below: int, before_us: int | None = None, until: int | None = None
    ) -> None:
        """Drop a worker's ends deeper than ``below``, if noted before ``before_us``, down to ``until``."""
        if self.ends is None or slot not in self.ends:
            return
        remaining = {
            depth: at_us
            for depth, at_us in self.ends[slot].items()
            if depth <= below
            or (before_us is not None and at_us >= before_us)
            or (until is not None and depth > until)
        }
        if len(remaining) == len(self.ends[slot]):
            return
        if self.end_columns is not None:
            self.end_columns.drop(slot, remaining)
        if remaining:
            self.ends[slot] = remaining
            return
        del self.ends[slot]
        if not self.ends:
            self.ends = self.end_columns = None


def common_blocks(run: bytes, path: bytes, first: int) -> int:
    """Return how many blocks a run shares with a path from block ``first`` on, >= 1 as the first is shared.

    Whole runs are compared at C speed. Else the parting is found by bisection: hashes are chained, so one
    equal hash proves everything before it equal.
    """
    start = first * HASH_BYTES
    if path.startswith(run, start):
        return len(run) // HASH_BYTES
    low, high = 1, min(len(run), len(path) - start) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        index = middle * HASH_BYTES
        if run[index - HASH_BYTES : index] == path[start + index - HASH_BYTES : start + index]:
            low = middle
        else:
            high = middle - 1
    return low
