"""The inspection finds what is wrong, and nothing that is not, however the tree changes meanwhile."""

from collections.abc import Callable
from random import Random

import pytest
from fakes.tree_script import applied, drawn, empty_tree
from hypothesis import given
from hypothesis import strategies as st

from radix import Inspection, PrefixTree, apply, chain_bytes, inspect_tree
from radix.inspection import CHILDREN_MAX, FINDINGS_MAX


def inspected(tree: PrefixTree) -> Inspection:
    inspection = Inspection()
    for _ in inspect_tree(tree, inspection):
        pass
    return inspection


def tree() -> PrefixTree:
    made = PrefixTree()
    made.insert(0, chain_bytes(b"abcd", 1, 1), 5, end=False)
    made.insert(0, chain_bytes(b"abx", 1, 1), 6, end=False)
    made.insert(1, chain_bytes(b"ab", 1, 1), 6, end=False)
    return made


def lose_a_block(broken: PrefixTree) -> None:
    broken.blocks -= 1


def use_a_child_after_its_parent(broken: PrefixTree) -> None:
    deepest = max(broken.holdings[0].used, key=lambda node: node.start)
    broken.holdings[0].used[deepest] = 99


def hold_more_than_allowed(broken: PrefixTree) -> None:
    broken.holdings[0].capacity = 1


def hold_what_is_not_there(broken: PrefixTree) -> None:
    broken.holdings[1].blocks += 1


def forget_a_holder(broken: PrefixTree) -> None:
    del broken.holdings[1].used[next(iter(broken.holdings[1].used))]


def hold_a_child_only(broken: PrefixTree) -> None:
    deepest = max(broken.holdings[0].used, key=lambda node: node.start)
    deepest.holders |= 4
    broken.holdings_of(2).used[deepest] = 1


def lose_a_parent(broken: PrefixTree) -> None:
    assert broken.root.children is not None
    (first,) = broken.root.children.values()
    assert first.children is not None
    next(iter(first.children.values())).parent = broken.root


def hang_a_run_elsewhere(broken: PrefixTree) -> None:
    assert broken.root.children is not None
    (first,) = broken.root.children.values()
    first.start = 3


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_block,
        use_a_child_after_its_parent,
        hold_more_than_allowed,
        hold_what_is_not_there,
        forget_a_holder,
        hold_a_child_only,
        lose_a_parent,
        hang_a_run_elsewhere,
    ],
)
def test_a_damaged_tree_is_found_out(damage: Callable[[PrefixTree], None]) -> None:
    broken = tree()
    whole = inspected(broken)
    assert (whole.wrong, whole.runs, whole.workers, whole.totals) == (0, 3, 2, True)
    damage(broken)
    found = inspected(broken)
    assert found.wrong == len(found.findings) > 0


def test_what_is_wrong_everywhere_is_counted_and_told_a_few_times() -> None:
    broken = PrefixTree()
    for number in range(2 * FINDINGS_MAX):
        broken.insert(0, chain_bytes(bytes([number]), 1, 1), 5, end=False)
    for node in list(broken.holdings[0].used):
        node.start = 7
    found = inspected(broken)
    assert found.wrong >= 2 * FINDINGS_MAX
    assert len(found.findings) == FINDINGS_MAX


def test_no_step_looks_at_all_children_of_a_root_with_many() -> None:
    wide = PrefixTree()
    for number in range(3 * CHILDREN_MAX):
        wide.insert(0, chain_bytes(number.to_bytes(2, "big"), 1, 2), 5, end=False)
    inspection = Inspection()
    steps = inspect_tree(wide, inspection)
    next(steps)
    next(steps)
    assert inspection.runs == 0
    for _ in steps:
        pass
    assert (inspection.runs, inspection.wrong) == (3 * CHILDREN_MAX, 0)


@given(st.integers(0, 2**32), st.sampled_from((None, 8)))
def test_a_tree_that_changes_meanwhile_is_never_called_broken(seed: int, capacity: int | None) -> None:
    random = Random(seed)
    changing = applied(empty_tree(capacity=capacity), drawn(random, 30, removals=True))
    inspection = Inspection()
    for _ in inspect_tree(changing, inspection):
        for op in drawn(random, random.randint(0, 2), removals=True):
            apply(changing, op, int(op.worker))
    assert inspection.findings == []
