"""Writing a tree that goes on changing, as a fuzzy checkpoint (ARIES, Mohan et al. 1992, section 5.4).

The walk goes down the tree one run at a time. Between two steps the tree may change: operations commute and
repeat harmlessly, and the reader of a snapshot also applies every operation that came after the walk began.
Changes meanwhile may be written or not, as long as the rows are consistent:

* A child is found again by its first hash, below the node that was its parent when that was written. If it
  was split, that is its upper part; if it is gone, or elsewhere because its parent is gone, an operation has
  removed it.
* A written parent cannot be written again. So a child that was used since is written with its parent's time,
  and a holder that the parent did not have then is left out.
* A worker may be dropped, and its slot given to another: the walk looks into the worker's own `Holdings`,
  which are empty from then on, and never into its successor's.

Undisturbed, the walk gives the canonical form (`radix.snapshot`).
"""

from array import array
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from radix.bitmask import bits
from radix.blocks import HASH_BYTES
from radix.holdings import TRIM_HORIZON_US
from radix.node import Node
from radix.snapshot import PAGE_BYTES, TreeMarks, TreePage

if TYPE_CHECKING:
    from radix.holdings import Holdings
    from radix.tree import PrefixTree

SORTED_MAX = 512
"""Most children sorted at once (50 µs)."""

Used = dict[int, int]
"""Time of last use by worker, in the order of the workers."""


def walk(tree: "PrefixTree", slots: Sequence[int]) -> Generator[TreePage | None, None, TreeMarks]:
    """Write the holdings of some workers (`PrefixTree.dump_steps`)."""
    tree.walks += 1
    try:
        return (yield from _rows(tree, slots))
    finally:
        tree.walks -= 1


def _rows(tree: "PrefixTree", slots: Sequence[int]) -> Generator[TreePage | None, None, TreeMarks]:
    workers = [tree.holdings_of(slot) for slot in slots]
    page = _Page()
    # From the root down: a node, its row and holders, and the children that are left.
    levels: list[tuple[Node, int, Used | None, Iterator[int]]] = []
    source = _Source(tree, {slot: (index, workers[index]) for index, slot in enumerate(slots)})
    children = yield from _in_order(tree.root)
    levels.append((tree.root, -1, None, children))
    while levels:
        node, parent, above, children = levels[-1]
        first_hash = next(children, None)
        if first_hash is None:
            levels.pop()
            continue
        child = node.children.get(first_hash) if node.children else None
        if child is None:
            continue
        used = source.used(child, above)
        if not used:
            continue
        last = page.add(source, parent, child, used)
        children = yield from _in_order(last)
        levels.append((last, page.row, used, children))
        yield page.close() if page.size_bytes >= PAGE_BYTES else None
    for index, holdings in enumerate(workers):
        trims_from_us = tree.newest_us - TRIM_HORIZON_US
        for block_hash, before_us in sorted(holdings.trimmed.items()):
            if before_us >= trims_from_us:
                page.trim(index, block_hash, before_us)
        yield page.close() if page.size_bytes >= PAGE_BYTES else None
    if page.size_bytes:
        yield page.close()
    return TreeMarks(
        tree.newest_us, tree.floor, [(holdings.forgot_us, holdings.floor) for holdings in workers]
    )


def _in_order(node: Node) -> Generator[None, None, Iterator[int]]:
    """First hashes of a node's children, ascending; of very many, only a part is sorted at a time."""
    if node.children is None:
        return iter(())
    if len(node.children) <= SORTED_MAX:
        return iter(sorted(node.children))
    hashes = list(node.children)
    parts: list[list[int]] = [[] for _ in range(2 * len(hashes) // SORTED_MAX)]
    for first in range(0, len(hashes), SORTED_MAX):
        for first_hash in hashes[first : first + SORTED_MAX]:
            parts[first_hash * len(parts) >> 64].append(first_hash)
        yield None
    return chain.from_iterable(map(sorted, parts))


class _Source:
    __slots__ = ("_by_slot", "_tree", "_wanted")

    def __init__(self, tree: "PrefixTree", by_slot: dict[int, "tuple[int, Holdings]"]) -> None:
        self._tree = tree
        self._by_slot = by_slot
        self._wanted = sum(1 << slot for slot in by_slot)

    def used(self, node: Node, above: Used | None) -> Used:
        """Holders of a node with their times, as far as those above it allow; None allows all."""
        pairs: list[tuple[int, int]] = []
        for slot in bits(node.holders & self._wanted):
            worker, holdings = self._by_slot[slot]
            at_us = holdings.used.get(node)
            if at_us is None:
                continue
            if above is not None:
                allowed_us = above.get(worker)
                if allowed_us is None:
                    continue
                at_us = min(at_us, allowed_us)
            pairs.append((worker, at_us))
        return dict(sorted(pairs)) if len(pairs) > 1 else dict(pairs)

    def ends(self, node: Node, used: Used) -> Iterator[tuple[int, int, int]]:
        """Worker, depth and time of the request ends in a node that count, not later than its use."""
        ends = node.ends or {}
        for slot in ends.keys() & self._by_slot.keys():
            worker, holdings = self._by_slot[slot]
            from_us, until_us = max(holdings.ends_from_us, self._tree.floor[0] + 1), used.get(worker, -1)
            for depth, at_us in ends[slot].items():
                if from_us <= at_us <= until_us:
                    yield worker, depth, at_us

    def only_child(self, node: Node) -> Node | None:
        """The child of a node, if the workers hold exactly one."""
        only: Node | None = None
        for child in node.children.values() if node.children else ():
            if child.holders & self._wanted:
                if only is not None:
                    return None
                only = child
        return only


class _Page:
    def __init__(self) -> None:
        self.row = -1
        """Number of the last row, over all pages."""
        self._begin()

    def _begin(self) -> None:
        self.size_bytes = 0
        self._rows = 0
        self._parents, self._sizes, self._counts, self._holders = (
            array("i"),
            array("I"),
            array("I"),
            array("I"),
        )
        self._used_us, self._ends, self._trims = array("q"), array("q"), array("Q")
        self._owners = array("Q")
        self._runs: list[bytes] = []

    def add(self, source: _Source, parent: int, node: Node, used: Used) -> Node:
        """Write a node and those below it while nothing divides them; return the last of these nodes."""
        start, noted = node.start, []
        while True:
            self._runs.append(node.run)
            if node.ends is not None:
                noted += [(worker, depth - start, at_us) for worker, depth, at_us in source.ends(node, used)]
            below = source.only_child(node)
            if below is None or below.owner != node.owner or source.used(below, used) != used:
                break
            node = below
        size = node.end - start
        self._parents.append(parent)
        self._sizes.append(size)
        self._counts.append(len(used))
        self._holders.extend(used)
        self._used_us.extend(used.values())
        self._owners.append(node.owner)
        for end in sorted(noted):
            self._ends.extend((self._rows, *end))
        self.row += 1
        self._rows += 1
        self.size_bytes += size * HASH_BYTES + 12 + 12 * len(used) + 32 * len(noted)
        return node

    def trim(self, *tombstone: int) -> None:
        self._trims.extend(tombstone)
        self.size_bytes += 24

    def close(self) -> TreePage:
        page = TreePage(
            self._parents.tobytes(),
            self._sizes.tobytes(),
            b"".join(self._runs),
            self._counts.tobytes(),
            self._holders.tobytes(),
            self._used_us.tobytes(),
            self._ends.tobytes(),
            self._trims.tobytes(),
            self._owners.tobytes() if any(self._owners) else b"",
        )
        self._begin()
        return page
