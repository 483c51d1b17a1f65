"""Operations on small trees, drawn so that runs part, meet and vanish often."""

from collections.abc import Iterable
from random import Random

from radix import EndGone, Forget, Insert, PrefixTree, TreeOp, Trim, apply, chain_bytes

WORKERS = range(3)


def path(letters: str) -> bytes:
    """A path of one block for each letter."""
    return chain_bytes(letters.encode(), root=1, block_bytes=1)


def empty_tree(blocks_max: int = 1 << 30, capacity: int | None = None) -> PrefixTree:
    """A tree of three workers."""
    tree = PrefixTree(blocks_max=blocks_max)
    for slot in WORKERS:
        tree.set_capacity(slot, capacity)
    return tree


def applied(tree: PrefixTree, ops: Iterable[TreeOp]) -> PrefixTree:
    """The tree after some operations."""
    for op in ops:
        apply(tree, op, int(op.worker))
    return tree


def drawn(random: Random, count: int, *, removals: bool) -> list[TreeOp]:
    """Some operations: paths over two letters, few times, so that ties and overlaps are the rule."""
    ops: list[TreeOp] = []
    for _ in range(count):
        worker, at_us = random.choice("012"), random.randint(1, 12)
        letters = "".join(random.choice("aab") for _ in range(random.randint(1, 6)))
        kind = random.random() if removals else 1.0
        if kind < 0.15:
            ops.append(Trim(worker, path(letters), at_us))
        elif kind < 0.2:
            ops.append(Forget(worker, at_us))
        elif kind < 0.35:
            ops.append(EndGone(worker, path(letters), at_us, random.randint(1, 2)))
        else:
            ops.append(Insert(worker, path(letters), at_us, random.random() < 0.5, random.randint(1, 3)))
    return ops
