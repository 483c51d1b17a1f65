"""Consistent hashing: the storage node of a key.

    0 ──a──b──a──c──b──c──a── 2**64        each node has many points on the ring; a key belongs to the
           ^ key                           first node at or after it that is in the ring

A node that leaves gives each of its arcs to the next node; on return it gets them back. With v points
("virtual nodes") per node the largest share is about ``1 + 3/sqrt(v)`` of the mean.
"""

from bisect import bisect_left
from collections.abc import Collection

from xxhash import xxh3_64_intdigest


class HashRing:
    """A ring over nodes 0 to ``nodes - 1`` > 0 with ``virtual_nodes`` > 0 points each."""

    def __init__(self, nodes: int, virtual_nodes: int = 128) -> None:
        points = sorted(
            (xxh3_64_intdigest(f"{node}/{point}".encode()), node)
            for node in range(nodes)
            for point in range(virtual_nodes)
        )
        self._points = [point for point, _ in points]
        self._nodes = [node for _, node in points]

    def owner(self, key: bytes, absent: Collection[int] = ()) -> int | None:
        """The node of a key, skipping nodes that are absent; None if all are."""
        first = bisect_left(self._points, xxh3_64_intdigest(key))
        count = len(self._nodes)
        for step in range(count):
            node = self._nodes[(first + step) % count]
            if node not in absent:
                return node
        return None
