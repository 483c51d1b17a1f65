"""What all prompts have in common that begin with one block: how long, held by whom, where it parts."""

import msgspec

from radix.bitmask import bits
from radix.tree import PrefixTree


class SharedStart(msgspec.Struct, frozen=True):
    """The common start of some prompts, as far as anybody holds it.

    Attributes:
        blocks: Length of what all of them share, in blocks, >= 1.
        holders: Slots of those who hold its first block, in rising order.
        whole_holders: How many of them hold all of it.
        branches: In how many ways they go on; 0 if none goes on.
    """

    blocks: int
    holders: list[int]
    whole_holders: int
    branches: int


def shared_start(tree: PrefixTree, first_hash: int) -> SharedStart | None:
    """Follow a first block to where prompts part; None if nobody holds it. One step per run."""
    node = (tree.root.children or {}).get(first_hash)
    if node is None:
        return None
    holders = list(bits(node.holders))
    while node.children is not None and len(node.children) == 1:
        (node,) = node.children.values()
    branches = 0 if node.children is None else len(node.children)
    return SharedStart(node.end, holders, node.holders.bit_count(), branches)
