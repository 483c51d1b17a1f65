"""Order of eviction when a bound is reached.

Blocks are ordered by ``(last used, deeper first, hash)``; the lowest goes first. The order is total and equal
on every replica. A block is never used later than the one before it and is deeper, so descendants go before
their ancestors and the rest is a set of prefixes.

The k highest elements of a growing set do not depend on the order of arrival, and an element refused once is
refused for good unless it is used again. So the highest place ever evicted, the *floor*, tells all: what is
at or below it was, or would have been, evicted.

The heap is lazy. It has an entry for at least every *leaf* of a worker (a node it holds, with no child that
it holds too), and no entry is higher than the place of its node:

* times only rise and runs are cut at their end, so an entry can only be too low: it is corrected when it
  surfaces, and dropped if it then equals its successor;
* a run that is extended goes lower: it gets one more entry;
* a node whose last child left becomes a leaf: it gets an entry then.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radix.node import Node

Key = tuple[int, int, int]
"""Place of a block in the order: last use in log microseconds, minus its depth, its hash."""

LOWEST: Key = (-1, 0, 0)
"""Below every block."""

HIGHEST: Key = (1 << 63, 0, 0)
"""Above every block."""

SLACK_ENTRIES = 64
"""Stale entries that do not pay for a rebuild."""


class EvictionQueue:
    """Lazy heap of the nodes of one worker, or of all workers.

    Entries are flat: a tuple within for the place would cost 112 bytes more a node.

    Args:
        used_of: Time of last use of a node by a worker; None if the worker does not hold it.
    """

    __slots__ = ("_heap", "_used_of")

    def __init__(self, used_of: "Callable[[Node, int], int | None]") -> None:
        self._used_of = used_of
        self._heap: list[tuple[int, int, int, int, Node]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: "Node", slot: int, used_us: int) -> None:
        """Add an entry for a node that a worker holds."""
        heappush(self._heap, (*node.key(used_us), slot, node))

    def rebuild(self, held: "Iterable[tuple[Node, int, int]]") -> None:
        """Start again with one entry for each (node, slot, time of last use)."""
        self._heap = [(*node.key(used_us), slot, node) for node, slot, used_us in held]
        heapify(self._heap)

    def crowded(self, pairs: int) -> bool:
        """True if most entries are stale, with this many pairs of node and worker alive."""
        return len(self._heap) > 2 * pairs + SLACK_ENTRIES

    def lowest(self) -> "tuple[Key, int, Node] | None":
        """Place, slot and node of the pair whose last block goes first; None if there is none."""
        heap, used_of = self._heap, self._used_of
        while heap:
            entry = heap[0]
            slot, node = entry[3:]
            used_us = used_of(node, slot)
            if used_us is None:
                heappop(heap)
                continue
            key = node.key(used_us)
            if key != entry[:3]:
                heapreplace(heap, (*key, slot, node))
            elif entry in heap[1:3]:
                heappop(heap)
            else:
                return key, slot, node
        return None

    def runner_up(self) -> Key:
        """Upper bound of the next pair's place, after `lowest` found one."""
        heap = self._heap
        if len(heap) > 2:
            return min(heap[1], heap[2])[:3]
        return heap[1][:3] if len(heap) > 1 else HIGHEST


def blocks_at_or_below(node: "Node", key: Key, limit: Key) -> int:
    """Return how many blocks at the end of a run go before ``limit``, >= 1: the last one, at ``key``."""
    if key[0] < limit[0]:
        return node.size
    deeper = limit[1] - key[1]
    return min(node.size, max(1, deeper))


def evict(
    queue: EvictionQueue,
    floor: Key,
    over: "Callable[[Node], int]",
    cut: "Callable[[Node, int, int], None]",
    *,
    to_floor: bool,
) -> Key:
    """Cut the lowest blocks of a queue while there are too many.

    Args:
        queue: The order.
        floor: Highest place ever evicted.
        over: Returns the number of blocks too many, of those at the end of a node.
        cut: Takes a number of blocks at the end of a node from the worker in a slot.
        to_floor: Cut places at or below the floor, too: some exist only if it was raised otherwise.

    Returns:
        The new floor.
    """
    while (lowest := queue.lowest()) is not None:
        key, slot, node = lowest
        size = over(node)
        if size > 1:
            size = min(size, blocks_at_or_below(node, key, queue.runner_up()))
        if to_floor and key <= floor:
            size = max(size, blocks_at_or_below(node, key, floor))
        if not size:
            break
        if size > 1:
            first = 1 - key[1] - size
            key = (key[0], -first, node.hash_at(first))
        floor = max(floor, key)
        cut(node, slot, size)
        if not to_floor and not over(node):
            break
    return floor
