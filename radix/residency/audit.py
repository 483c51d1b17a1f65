"""Compares the tree's belief about a worker with the blocks of its engines, a little at a time.

Both follow the same events, yet they drift: a request was placed and given up before its prefill, a bound on
the tree evicted blocks that the engine still has, a replica reported something out of date. So the owner of a
worker's events compares both, over and over:

    every run of the tree    blocks that the engine lacks are trimmed, ends that it cannot go on from are gone
    every run of the engine  blocks that the tree lacks are inserted if there is room: the oldest blocks,
                             evicted from a full tree, must not come back as its newest

Uses and reports in the tree at or after a guard time are spared: a prefill may be under way.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from radix.blocks import HASH_BYTES
from radix.node import Node
from radix.ops import EndGone, Insert, TreeOp, Trim
from radix.residency.runs import Run, ranges

if TYPE_CHECKING:
    from radix.residency.residency import Residency
    from radix.tree import PrefixTree

AUDIT_BLOCKS = 4096
"""Blocks compared in one call: 0.4 to 1.7 ms (``python -m loadtest.bench.kv_events --residency``)."""


class Audit:
    """Position of the comparison."""

    def __init__(self, residency: "Residency") -> None:
        self._residency = residency
        self._nodes: list[Node] = []
        self._runs: list[Run] = []

    def step(
        self, tree: "PrefixTree", slot: int, worker: str, at_us: int, before_us: int, blocks_max: int
    ) -> list[TreeOp]:
        """Compare some runs; see `Residency.reconcile`."""
        ops: list[TreeOp] = []
        if not self._nodes and not self._runs:
            self._nodes = list(tree.holdings_of(slot).used)
            self._runs = list(self._residency.runs.values())
        while blocks_max > 0 and (self._nodes or self._runs):
            if self._nodes:
                node = self._nodes.pop()
                blocks_max -= node.end
                ops += self._excess(tree, slot, node, worker, before_us)
            else:
                run = self._runs.pop()
                blocks_max -= run.reported
                ops += self._missing(tree, slot, run, worker, at_us)
        return ops

    def _excess(
        self, tree: "PrefixTree", slot: int, node: Node, worker: str, before_us: int
    ) -> Iterable[TreeOp]:
        used = tree.holdings[slot].used
        used_us = used.get(node)
        if used_us is None:
            return
        path = node.path()
        if self._residency.ends_known and node.ends is not None:
            gone = [
                depth
                for depth, at_us in node.ends.get(slot, {}).items()
                if at_us < before_us and not self._residency.has_end(node.hash_at(depth))
            ]
            for last, count in ranges(gone):
                yield EndGone(worker, path[: last * HASH_BYTES], before_us, count)
        if used_us < before_us:
            held = self._residency.held_blocks(path)
            parent = node.parent
            spared = parent is not None and used.get(parent, before_us) >= before_us
            if node.start <= held < node.end or (held < node.start and spared):
                yield Trim(worker, path[: (max(held, node.start) + 1) * HASH_BYTES], before_us)

    def _missing(self, tree: "PrefixTree", slot: int, run: Run, worker: str, at_us: int) -> Iterable[TreeOp]:
        if run.number not in self._residency.runs or run.reported == run.first:
            return
        path = run.path(run.reported)
        believed, ended = _believed(tree, slot, path)
        if tree.blocks + run.reported - believed > tree.blocks_max:
            return
        if believed < run.reported:
            yield Insert(worker, path, at_us, end=False)
        for last, count in ranges(self._residency.ends_of(run) - ended):
            yield Insert(worker, path[: last * HASH_BYTES], at_us, end=True, ends=count)


def _believed(tree: "PrefixTree", slot: int, path: bytes) -> tuple[int, set[int]]:
    """Blocks of a path that the tree believes a worker to hold, and depths of its ends."""
    from_us = max(tree.holdings[slot].ends_from_us, tree.floor[0] + 1)
    depth, ended = 0, set[int]()
    for node, depth in tree.held_along(slot, path):
        ends = (node.ends or {}).get(slot, {})
        ended.update(end for end, at_us in ends.items() if end <= depth and at_us >= from_us)
    return depth, ended
