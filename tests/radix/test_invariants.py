"""The checker notices each broken invariant."""

from collections.abc import Callable

import pytest

from radix import PrefixTree, chain_bytes
from radix.invariants import check


def tree() -> PrefixTree:
    made = PrefixTree()
    made.insert(0, chain_bytes(b"abcd", 1, 1), 5, end=True)
    made.insert(0, chain_bytes(b"abx", 1, 1), 6, end=False)
    return made


def lose_a_block(broken: PrefixTree) -> None:
    broken.blocks -= 1


def use_a_child_after_its_parent(broken: PrefixTree) -> None:
    deepest = max(broken.holdings[0].used, key=lambda node: node.start)
    broken.holdings[0].used[deepest] = broken.newest_us = 99


def hold_more_than_allowed(broken: PrefixTree) -> None:
    broken.set_capacity(0, 10)
    broken.holdings[0].capacity = 1


@pytest.mark.parametrize("damage", [lose_a_block, use_a_child_after_its_parent, hold_more_than_allowed])
def test_a_damaged_tree_is_found_out(damage: Callable[[PrefixTree], None]) -> None:
    broken = tree()
    check(broken)
    damage(broken)
    with pytest.raises(AssertionError):
        check(broken)
