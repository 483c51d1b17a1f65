"""A tree that changes while it is written, and everything after the start replayed: the same tree."""

from random import Random

from fakes.tree_script import WORKERS, applied, drawn, empty_tree, path
from hypothesis import given
from hypothesis import strategies as st

from radix import Insert, PrefixTree, TreeMarks, TreeOp, TreePage, TreeSnapshot, chain_bytes
from radix.invariants import check
from radix.walk import SORTED_MAX

randoms = st.randoms(use_true_random=False)


def walked(tree: PrefixTree, random: Random, *, removals: bool) -> tuple[TreeSnapshot, list[TreeOp]]:
    """Write a tree while operations come in between; the snapshot, and the operations."""
    steps, pages, later = tree.dump_steps(WORKERS), list[TreePage](), list[TreeOp]()
    while True:
        try:
            page = next(steps)
        except StopIteration as end:
            marks: TreeMarks = end.value
            return TreeSnapshot(marks, pages), later
        if page is not None:
            pages.append(page)
        ops = drawn(random, random.choice((0, 0, 1, 3)), removals=removals)
        applied(tree, ops)
        check(tree)
        later += ops


@given(randoms)
def test_whatever_happens_while_a_tree_is_written_a_replay_makes_it_whole(random: Random) -> None:
    tree = applied(empty_tree(), drawn(random, 20, removals=True))
    snapshot, later = walked(tree, random, removals=True)

    again = empty_tree()
    again.load(snapshot, WORKERS)
    check(again)
    assert applied(again, later).dump(WORKERS) == tree.dump(WORKERS)


@given(randoms, st.integers(1, 12), st.booleans())
def test_so_does_a_tree_with_a_bound(random: Random, bound: int, each: bool) -> None:
    """Inserts commute with a bound of each worker, and with one of the whole tree, but not with both."""
    bounds = {"capacity": bound} if each else {"blocks_max": bound}
    before = drawn(random, 20, removals=False)
    tree = applied(empty_tree(**bounds), before)
    snapshot, later = walked(tree, random, removals=False)

    again = empty_tree(**bounds)
    again.load(snapshot, WORKERS)
    check(again)
    assert applied(again, later).dump(WORKERS) == tree.dump(WORKERS)


def test_a_slot_that_is_given_to_another_worker_is_not_mistaken_for_the_first() -> None:
    tree = applied(empty_tree(), [Insert("0", path("ab"), 5), Insert("0", path("ax"), 5)])
    steps = tree.dump_steps(WORKERS)
    next(steps)
    tree.drop(0)
    applied(tree, [Insert("0", path("ax"), 7), Insert("0", path("aby"), 7)])
    pages = [page for page in steps if page is not None]

    rows = len(pages[0].parents) // 4
    assert rows == 1  # "a", which was written before the first worker went


def test_many_children_come_in_order_without_being_sorted_at_once() -> None:
    """Twice the number that is sorted in one go; a snapshot loaded elsewhere has them in that order."""
    tree = PrefixTree()
    for number in range(2 * SORTED_MAX):
        tree.insert(0, path("a") + chain_bytes(b"x", number + 1, 1), 5, end=False)
    snapshot = tree.dump([0])
    copy = PrefixTree()
    copy.load(snapshot, [0])

    hashes = [snapshot.pages[0].hashes[at : at + 8] for at in range(8, len(snapshot.pages[0].hashes), 8)]
    firsts = [int.from_bytes(block_hash, "little") for block_hash in hashes]
    assert firsts == sorted(firsts)
    assert len(firsts) == 2 * SORTED_MAX
    assert copy.dump([0]) == snapshot
