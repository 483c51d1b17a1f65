"""Common starts of prompts: of all that begin with one block, and of those that share a prompt's start."""

from typing import NamedTuple

import msgspec

from radix.bitmask import bits
from radix.blocks import HASH_BYTES, words_of
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


class CommonStart(NamedTuple):
    """Part of a prompt from which others go on, too: its blocks, the hash of the last one, its holders.

    ``holders`` is a bitmask of slots (`radix.bitmask`).
    """

    blocks: int
    last_hash: int
    holders: int


def common_start(tree: PrefixTree, path: bytes, branches_min: int) -> CommonStart | None:
    """Longest start of a path from which ``branches_min`` runs go on; None without one. One step per run."""
    words = words_of(path)
    node, depth, found = tree.root, 0, None
    while depth < len(words):
        child = node.children.get(words[depth]) if node.children else None
        if child is None or not path.startswith(child.run, depth * HASH_BYTES):
            break
        node, depth = child, child.end
        if node.children is not None and len(node.children) >= branches_min:
            found = node
    return None if found is None else CommonStart(found.end, words[found.end - 1], found.holders)
