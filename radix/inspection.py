"""The laws of the tree, looked at in steps while it goes on changing (`radix.invariants` looks at once).

    runs     every run that is in the tree when its turn comes, with its children, in one step
    workers  of each worker: its total against the runs that it holds, if those are not too many for a step
    totals   of the whole tree, if it has not too many runs for a step

What is looked at in one step is consistent, since nothing changes within a step. A run that left the tree
before its turn is passed by. So nothing is found that is not wrong.
"""

from collections.abc import Generator

import msgspec

from radix.bitmask import bits
from radix.node import Node
from radix.tree import PrefixTree

FINDINGS_MAX = 20
"""What is wrong once is mostly wrong everywhere."""

HELD_MAX = 20_000
"""Runs of one worker that are added up in one step, some two milliseconds."""

TOTALS_MAX = 5_000
"""Runs of a tree that are counted in one step, likewise."""


CHILDREN_MAX = 500
"""Of one run, looked at in one step."""


class Inspection(msgspec.Struct):
    """What was looked at, and what was found.

    Attributes:
        runs: Runs that were looked at.
        workers: Workers whose totals were.
        workers_passed: Workers with too many runs for one step.
        totals: Whether those of the tree were.
        findings: What is wrong, in words; the first `FINDINGS_MAX`.
        wrong: How much is.
    """

    runs: int = 0
    workers: int = 0
    workers_passed: int = 0
    totals: bool = False
    findings: list[str] = []
    wrong: int = 0

    def expect(self, holds: bool, law: str) -> None:
        """Note it if a law does not hold."""
        if not holds:
            self.wrong += 1
            if len(self.findings) < FINDINGS_MAX:
                self.findings.append(law)


def inspect_tree(tree: PrefixTree, inspection: Inspection) -> Generator[None, None, None]:
    """Look at a tree.

    Args:
        tree: The tree, which may change between steps.
        inspection: Is filled as it goes.
    """
    stack = [tree.root]
    while stack:
        node = stack.pop()
        if node is not tree.root:
            if node.parent is None:
                continue  # it left
            inspection.runs += 1
            _run(tree, node, inspection)
        for number, (first_hash, child) in enumerate(list((node.children or {}).items()), 1):
            if not number % CHILDREN_MAX:
                yield
            if (node.children or {}).get(first_hash) is not child:
                continue  # it left, or was divided
            where = f"a run at depth {child.start}"
            inspection.expect(child.parent is node, f"{where} does not know the run above it")
            inspection.expect(
                bool(child.run) and child.hash_at(child.start + 1) == first_hash,
                f"{where} is not found by its first hash",
            )
            inspection.expect(child.start == node.end, f"{where} does not follow the run above it")
            stack.append(child)
        yield
    for slot, holdings in enumerate(tree.holdings):
        if len(holdings.used) > HELD_MAX:
            inspection.workers_passed += 1
            continue
        held = sum([node.size for node in holdings.used])
        inspection.workers += 1
        inspection.expect(
            held == holdings.blocks, f"worker {slot} holds {held} blocks and counts {holdings.blocks}"
        )
        inspection.expect(
            holdings.capacity is None or holdings.blocks <= holdings.capacity,
            f"worker {slot} holds {holdings.blocks} blocks, more than its {holdings.capacity}",
        )
        yield
    inspection.expect(
        tree.pairs == sum([len(holdings.used) for holdings in tree.holdings]),
        "the runs that workers hold do not add up",
    )
    inspection.expect(tree.blocks <= tree.blocks_max, "the tree is larger than its bound")
    if tree.nodes <= TOTALS_MAX:
        inspection.totals = True
        blocks, nodes = _counted(tree)
        inspection.expect(
            (blocks, nodes) == (tree.blocks, tree.nodes),
            f"{blocks} blocks in {nodes} runs, counted as {tree.blocks} in {tree.nodes}",
        )


def _counted(tree: PrefixTree) -> tuple[int, int]:
    """Blocks and runs of a small tree."""
    blocks, nodes, stack = 0, -1, [tree.root]
    while stack:
        node = stack.pop()
        blocks += node.size
        nodes += 1
        if node.children:
            stack += node.children.values()
    return blocks, nodes


def _run(tree: PrefixTree, node: Node, inspection: Inspection) -> None:
    """Look at one run that is in the tree."""
    parent, where = node.parent, f"a run at depth {node.start}"
    assert parent is not None
    inspection.expect(node.holders != 0, f"{where} is held by nobody")
    inspection.expect(
        parent is tree.root or node.holders & ~parent.holders == 0,
        f"{where} is held by a worker that does not hold the run above it",
    )
    for slot in bits(node.holders):
        used = tree.holdings[slot].used
        used_us = used.get(node)
        if used_us is None:
            inspection.expect(False, f"{where} is not among those of worker {slot}")  # noqa: FBT003
        elif parent is not tree.root:
            inspection.expect(
                used.get(parent, -1) >= used_us, f"{where} was used by worker {slot} after the one above it"
            )
