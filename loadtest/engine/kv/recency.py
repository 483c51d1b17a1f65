"""Order of eviction: the least recently used node first.

A heap whose entries are checked when they come up: a node that was used again, grew or left the tree has a
newer entry or none. Of nodes used by one operation the one nearer to the root is older.
"""

import heapq
from collections.abc import Callable

from loadtest.engine.kv.tree import Node

_Entry = tuple[int, int, int, Node]


class Recency:
    """Nodes by last use; ``is_current`` says if a node still matches an entry of that age."""

    def __init__(self, is_current: Callable[[int, Node], bool]) -> None:
        self._is_current = is_current
        self._entries: list[_Entry] = []
        self._limit = 64
        self._added = 0

    def add(self, used: int, node: Node) -> None:
        """Enter a node, last used by operation ``used``; again after each use, cut or join."""
        self._added += 1
        heapq.heappush(self._entries, (used, node.start, self._added, node))
        if len(self._entries) > self._limit:
            # Stale entries go, so the heap stays within a constant factor of the nodes in it.
            self._entries = [entry for entry in self._entries if self._valid(entry)]
            heapq.heapify(self._entries)
            self._limit = 2 * len(self._entries) + 64

    def peek(self) -> Node | None:
        """The oldest node, which stays in."""
        while self._entries and not self._valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0][3] if self._entries else None

    def pop(self) -> Node:
        """Take the oldest node out; there must be one."""
        node = self.take()
        assert node is not None
        return node

    def take(self) -> Node | None:
        """Take the oldest node out, if there is one."""
        while self._entries:
            entry = heapq.heappop(self._entries)
            if self._valid(entry):
                return entry[3]
        return None

    def _valid(self, entry: _Entry) -> bool:
        used, start, _, node = entry
        return node.start == start and self._is_current(used, node)
