"""The benchmark of the tree measures its figures, on a small scale."""

from loadtest.bench import tree as bench
from radix import chain_bytes
from radix.invariants import check


def test_staggered_workers_make_a_segment_each_and_level_ones_a_single_one() -> None:
    path = chain_bytes(bytes(40), 1, 1)

    assert bench._shared_tree(path, 10, staggered=True).nodes == 10
    assert bench._shared_tree(path, 10, staggered=False).nodes == 1


def test_a_filled_tree_holds_that_many_blocks_in_runs_of_that_length() -> None:
    """The system prompt and four sessions of 16 blocks."""
    tree = bench.PrefixTree()
    bench._fill(tree, 64, 16, workers=2)

    check(tree)
    assert (tree.blocks, tree.nodes) == (8 + 4 * 16, 5)


def test_match_and_insert_are_measured_in_microseconds_of_cpu() -> None:
    match_us, insert_us = bench._match_and_insert_us(chain_bytes(bytes(40), 1, 1), 10, staggered=True)

    assert match_us >= 0
    assert insert_us >= 0


def test_bodies_of_all_sizes_and_kinds_are_parsed() -> None:
    assert len(bench.bodies()) == 17
    assert bench.parsing_us(*bench.bodies()["chat plain 1 KB"], repeats=1) > 0
