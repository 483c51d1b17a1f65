"""Runs of an engine's blocks, and the tree's blocks across them."""

from array import array

import pytest

from radix import chain_token_ids
from radix.residency.runs import Rank, Run, ranges


def run(
    start: int = 0, first: int = 0, above: int = 7, parent: Run | None = None, tokens: bool = False
) -> Run:
    return Run(
        1, Rank(), parent, start, first, above, bytearray(), {}, tokens=bytearray() if tokens else None
    )


def packed(ids: range) -> bytes:
    return array("I", ids).tobytes()


@pytest.mark.parametrize("tree_size", [2, 4, 6, 16])
def test_wherever_it_grows_its_hashes_are_those_of_the_whole(tree_size: int) -> None:
    """Engine blocks of 4 tokens."""
    grown = run(tokens=4 % tree_size > 0)
    for begin, end in ((0, 4), (4, 12), (12, 32)):
        grown.grow(packed(range(begin, end)), (end - begin) // 4, tree_size)
    whole = chain_token_ids(range(32), 7, tree_size)
    assert (grown.size, bytes(grown.keys)) == (8, whole)
    assert grown.path(len(whole) // 8) == whole
    assert grown.hash_before(0) == 7


def test_a_path_goes_through_the_runs_above_as_far_as_they_are_followed() -> None:
    above = run()
    above.grow(packed(range(16)), 4, 4)
    below = run(2, 2, above.hash_before(2), above)
    below.grow(packed(range(100, 108)), 2, 4)
    whole = chain_token_ids([*range(8), *range(100, 108)], 7, 4)
    assert below.path(4) == whole
    assert below.path(1) == whole[:8]
    assert below.hash_before(2) == above.hash_before(2)


def test_a_run_is_kept_up_to_what_is_held_or_left_behind() -> None:
    kept = run()
    kept.grow(packed(range(32)), 8, 4)
    assert kept.top() == 0
    kept.lanes = {0: 0b11, 1: 0b100}
    assert kept.top() == 3
    kept.kids, kept.fork = {5: 6}, 7
    assert (kept.top(), kept.fork) == (6, 6)


def test_depths_in_a_row_are_one_range() -> None:
    assert ranges([5, 1, 2, 9, 4]) == [(2, 2), (5, 2), (9, 1)]
    assert ranges([]) == []
