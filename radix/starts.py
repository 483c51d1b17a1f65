"""Common start of all prompts that begin with one block: length, holders, and where it parts."""

import msgspec

from radix.bitmask import bits
from radix.tree import PrefixTree


class SharedStart(msgspec.Struct, frozen=True):
    """Common start of some prompts, as far as any worker holds it.

    Attributes:
        blocks: Length of the part that all of them share, >= 1.
        holders: Slots that hold its first block, in rising order.
        whole_holders: Number of slots that hold all of it.
        branches: Number of ways to go on from it.
    """

    blocks: int
    holders: list[int]
    whole_holders: int
    branches: int


def shared_start(tree: PrefixTree, first_hash: int) -> SharedStart | None:
    """Follow a first block to where prompts part; None if no worker holds it. One step per run."""
    node = (tree.root.children or {}).get(first_hash)
    if node is None:
        return None
    holders = list(bits(node.holders))
    while node.children is not None and len(node.children) == 1:
        (node,) = node.children.values()
    branches = 0 if node.children is None else len(node.children)
    return SharedStart(node.end, holders, node.holders.bit_count(), branches)
