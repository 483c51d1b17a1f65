"""Runs and the ends inside them."""

import gc
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radix import PrefixTree, chain_bytes
from radix.node import EndColumns, Node, common_blocks


@given(st.text("ab", min_size=1, max_size=9), st.text("ab", max_size=9), st.text("ab", max_size=3))
def test_a_run_shares_what_the_path_has_in_common_with_it(run: str, rest: str, before: str) -> None:
    """The run and the path agree at least in their first block, as where a child was found by it."""
    whole = chain_bytes((before + run).encode(), 1, 1)
    path = chain_bytes((before + run[0] + rest).encode(), 1, 1)
    shared = 1
    while shared < len(run) and (run[0] + rest)[: shared + 1] == run[: shared + 1]:
        shared += 1

    assert common_blocks(whole[len(before) * 8 :], path, len(before)) == min(shared, 1 + len(rest))


def test_the_latest_time_of_an_end_counts_and_old_ends_can_be_dropped() -> None:
    node = Node(None, bytes(32), 4, 1)
    node.note_end(0, 5, 10)
    node.note_end(0, 5, 7)
    node.note_end(0, 8, 9)
    assert node.ends == {0: {5: 10, 8: 9}}

    node.drop_ends(0, below=5, before_us=9)
    assert node.ends == {0: {5: 10, 8: 9}}
    node.drop_ends(0, below=5, before_us=10)
    assert node.ends == {0: {5: 10}}
    node.drop_ends(1, below=0)
    node.drop_ends(0, below=4)
    assert node.ends is None


def test_a_node_knows_its_path_from_the_root() -> None:
    root = Node(None, b"", 0, 0)
    upper = Node(root, b"a" * 8, 0, 1)
    root.adopt(upper)
    lower = Node(upper, b"b" * 16, 1, 1)
    upper.adopt(lower)

    assert lower.path() == b"a" * 8 + b"b" * 16
    assert upper.children_of(1) == [lower]
    upper.disown(lower)
    assert upper.children_of(1) == []


def test_the_garbage_collector_does_not_see_nodes_and_a_tree_that_ends_takes_them_along() -> None:
    """A chain of 2,000 nodes, more than calls may nest, is freed with the tree."""
    tree = PrefixTree()
    path = chain_bytes(bytes(2_000), 1, 1)
    for depth in range(2_000, 0, -1):
        tree.insert(0, path[: depth * 8], 3_000 - depth, end=False)
    leaf = next(iter(tree.holdings[0].used))
    assert tree.nodes == 2_000
    assert not gc.is_tracked(leaf)

    del tree
    assert leaf.parent is None
    assert sys.getrefcount(leaf) == 2  # this variable, and the question


@given(
    st.dictionaries(
        st.integers(0, 5), st.dictionaries(st.integers(1, 9), st.integers(0, 9), min_size=1), min_size=1
    ),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.integers(0, 9),
)
def test_columns_give_the_last_end_that_counts_of_each_worker(
    ends: dict[int, dict[int, int]], depth: int, from_us: list[int], tree_us: int
) -> None:
    columns = EndColumns(ends)
    for slot, at_depth in ends.items():
        for each in at_depth:
            at_depth[each] += slot
            columns.note(slot, each, at_depth[each])
    last = np.zeros(6, dtype=np.int32)

    columns.raise_last(last, depth, np.array(from_us), tree_us)

    assert last.tolist() == [
        max(
            [e for e, us in ends.get(slot, {}).items() if e <= depth and us >= max(from_us[slot], tree_us)],
            default=0,
        )
        for slot in range(6)
    ]
