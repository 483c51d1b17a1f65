"""A tree that changes while a snapshot is merged into it ends as if everything had been applied to it."""

from collections.abc import Generator
from random import Random

from fakes.tree_script import WORKERS, applied, drawn, empty_tree, path
from hypothesis import given
from hypothesis import strategies as st

from radix import Insert, PrefixTree, Rows, TreeOp, Trim, check_steps, finished
from radix.holdings import TRIMS_MAX
from radix.invariants import check

randoms = st.randoms(use_true_random=False)


def checked(*ops: TreeOp, **bounds: int) -> Rows:
    """The snapshot of a tree after some operations."""
    return finished(check_steps(applied(empty_tree(**bounds), ops).dump(WORKERS), len(WORKERS)))


def merged(tree: PrefixTree, rows: Rows, random: Random, *, removals: bool) -> list[TreeOp]:
    """Merge while operations come in between; the operations."""
    later: list[TreeOp] = []
    for progress in tree.load_steps(rows, WORKERS):
        assert 0 <= progress <= 1
        check(tree)
        ops = drawn(random, random.choice((0, 0, 1, 3)), removals=removals)
        applied(tree, ops)
        check(tree)
        later += ops
    check(tree)
    return later


@given(randoms)
def test_whatever_happens_while_a_snapshot_is_merged_nothing_is_lost_and_nothing_comes_back(
    random: Random,
) -> None:
    here, there = (drawn(random, 20, removals=True) for _ in range(2))
    tree = applied(empty_tree(), here)
    later = merged(tree, checked(*there), random, removals=True)

    assert tree.dump(WORKERS) == applied(empty_tree(), here + there + later).dump(WORKERS)


@given(randoms, st.integers(1, 12), st.booleans())
def test_a_bound_is_kept_to_at_every_step(random: Random, bound: int, each: bool) -> None:
    """Inserts commute with a bound of each worker, and with one of the whole tree, but not with both."""
    bounds = {"capacity": bound} if each else {"blocks_max": bound}
    here, there = (drawn(random, 20, removals=False) for _ in range(2))
    tree = applied(empty_tree(**bounds), here)
    later = merged(tree, checked(*there, **bounds), random, removals=False)

    assert tree.dump(WORKERS) == applied(empty_tree(**bounds), here + there + later).dump(WORKERS)


def begun(*ops: TreeOp, until_blocks: int) -> tuple[PrefixTree, Generator[float, None, None]]:
    """A tree into which a snapshot of these operations is merged up to a number of blocks."""
    tree = empty_tree()
    steps = tree.load_steps(checked(*ops), WORKERS)
    while tree.blocks < until_blocks:
        next(steps)
    return tree, steps


def test_a_run_that_was_cut_and_grew_again_is_not_taken_for_the_one_that_was_merged() -> None:
    """The rows are ab, and below it c and d. Between them ab becomes ax, which is as long."""
    tree, steps = begun(Insert("0", path("abc"), 5), Insert("0", path("abd"), 5), until_blocks=2)
    applied(tree, [Trim("0", path("ab"), 6), Insert("0", path("a"), 7), Insert("0", path("ax"), 7)])
    finished(steps)

    check(tree)
    assert tree.match(path("ax")).matched[0] == tree.blocks == 2


def test_a_run_that_grew_and_was_split_is_found_again() -> None:
    """The rows are ab, and below it c and d. Between them ab becomes abxy, then is split again."""
    tree, steps = begun(Insert("0", path("abc"), 5), Insert("0", path("abd"), 5), until_blocks=2)
    applied(tree, [Insert("0", path("abxy"), 5), Insert("1", path("ab"), 5)])
    assert tree.nodes == 2
    finished(steps)

    check(tree)
    assert [tree.match(path(text)).matched[0] for text in ("abc", "abd", "abxy")] == [3, 3, 4]


def test_what_was_removed_stays_away_even_when_its_tombstone_was_forgotten() -> None:
    """A worker remembers `TRIMS_MAX` trims. Between the rows ab and c it forgets one."""
    tree, steps = begun(Insert("0", path("abc"), 5), Insert("0", path("abd"), 5), until_blocks=2)
    tree.trim(0, path("ab"), 6)
    for number in range(TRIMS_MAX):
        tree.trim(0, number.to_bytes(8, "little"), 7)
    finished(steps)

    check(tree)
    assert tree.blocks == 1


def test_a_run_that_is_split_while_tombstones_are_looked_for_is_searched_in_both_parts() -> None:
    there = checked(Insert("1", path("q"), 5), Trim("0", path("a"), 6))
    tree = applied(empty_tree(), [Insert("0", path("zz"), 5), Insert("0", path("abcd"), 5)])
    steps = tree.load_steps(there, WORKERS)
    while path("a")[:8] not in {key.to_bytes(8, "little") for key in tree.holdings[0].trimmed}:
        next(steps)
    applied(tree, [Insert("1", path("abx"), 5)])
    finished(steps)

    check(tree)
    assert tree.match(path("abcd")).matched[:2].tolist() == [0, 2]


def test_a_worker_that_is_dropped_meanwhile_leaves_its_slot_clean() -> None:
    """One of the two rows is merged before, the other one and the tombstone would come after."""
    ops = [Insert("0", path("ab"), 5), Insert("0", path("xy"), 5), Trim("0", path("q"), 5)]
    tree, steps = begun(*ops, until_blocks=2)
    tree.drop(0)
    finished(steps)

    check(tree)
    assert tree.blocks == 0
    assert not tree.holdings[0].trimmed
