"""Laws of a prefix tree, for tests: the check looks at every node and every pair."""

from radix.bitmask import bits
from radix.blocks import HASH_BYTES
from radix.bounds import SHARED
from radix.node import EndColumns, Node
from radix.tree import PrefixTree


def check(tree: PrefixTree) -> None:
    """Assert the laws of `radix.tree` and that every count is right."""
    blocks = nodes = pairs = 0
    held = [0] * tree.slots
    owned: list[dict[int, int]] = [{} for _ in held]
    stack: list[Node] = [tree.root]
    while stack:
        node = stack.pop()
        for first_hash, child in (node.children or {}).items():
            assert child.parent is node, "a child knows its parent"
            assert child.hash_at(child.start + 1) == first_hash, "a child is found by its first hash"
            assert child.start == node.end, "runs follow each other without a gap"
            stack.append(child)
        if node is tree.root:
            continue
        if node.end_columns is not None:
            fresh = EndColumns(node.ends or {})
            assert (node.end_columns.keys == fresh.keys).all(), "columns of ends have the ends"
            assert (node.end_columns.at_us == fresh.at_us).all(), "columns of ends have their times"
        assert node.run, "no run is empty"
        assert len(node.run) % HASH_BYTES == 0, "a run is whole hashes"
        assert node.holders, "a node without holders is gone"
        assert node.children != {}, "no empty dictionary of children"
        blocks += node.size
        nodes += 1
        pairs += node.holders.bit_count()
        parent = node.parent
        assert parent is not None
        for slot in bits(node.holders):
            used = tree.holdings[slot].used
            held[slot] += node.size
            if 0 < node.owner < SHARED:
                owned[slot][node.owner] = owned[slot].get(node.owner, 0) + node.size
            assert used[node] <= tree.newest_us, "no use is newer than the newest time seen"
            if parent is not tree.root:
                assert used[parent] >= used[node], "an ancestor is held and used no earlier"
        for slot, ends in (node.ends or {}).items():
            assert ends, "no empty dictionary of ends"
            for depth, at_us in ends.items():
                assert node.holders >> slot & 1, "ends are held"
                assert node.start < depth <= node.end, "an end is inside its run"
                assert at_us <= tree.holdings[slot].used[node], "a block was used when a request ended there"
    assert (blocks, nodes, pairs) == (tree.blocks, tree.nodes, tree.pairs), "totals"
    assert blocks <= tree.blocks_max, "the tree's bound"
    assert pairs == sum(len(holdings.used) for holdings in tree.holdings), "a worker holds only what is here"
    for slot, holdings in enumerate(tree.holdings):
        assert tree.ends_from_us[slot] == holdings.ends_from_us, (
            "the column of what ends must not be older than"
        )
        assert held[slot] == holdings.blocks, "a worker's total"
        assert owned[slot] == holdings.owned, "a worker's blocks by owner"
        assert holdings.capacity is None or holdings.blocks <= holdings.capacity, "a worker's bound"
        assert (holdings.capacity is None) == (holdings.queue is None), "a queue for a bound"
        assert all(used_us >= holdings.forgot_us for used_us in holdings.used.values()), (
            "the forgotten is gone"
        )
