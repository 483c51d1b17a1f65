"""Snapshots: canonical, merged, and not believed blindly."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import (
    Forget,
    Insert,
    PrefixTree,
    TreeMarks,
    TreeOp,
    TreePage,
    TreeSnapshot,
    Trim,
    apply,
    chain_bytes,
)
from radix.bounds import SHARED
from radix.invariants import check
from radix.snapshot import PAGE_BYTES

WORKERS = range(3)


def path(letters: str) -> bytes:
    return chain_bytes(letters.encode(), root=1, block_bytes=1)


def tree_of(ops: list[TreeOp], blocks_max: int = 1 << 30, capacity: int | None = None) -> PrefixTree:
    tree = PrefixTree(blocks_max=blocks_max)
    for slot in WORKERS:
        tree.set_capacity(slot, capacity)
    for op in ops:
        apply(tree, op, int(op.worker))
    return tree


slots = st.sampled_from("012")
texts = st.text("ab", min_size=1, max_size=6).map(path)
times = st.integers(1, 20)
inserts = st.builds(Insert, slots, texts, times, st.booleans())
removals = st.builds(Trim, slots, texts, times) | st.builds(Forget, slots, times)


@given(st.lists(inserts | removals, max_size=20), st.lists(inserts | removals, max_size=20))
def test_merging_a_snapshot_is_the_same_as_applying_what_it_was_made_of(
    here: list[TreeOp], there: list[TreeOp]
) -> None:
    tree = tree_of(here)
    tree.load(tree_of(there).dump(WORKERS), WORKERS)

    check(tree)
    assert tree.dump(WORKERS) == tree_of(here + there).dump(WORKERS)


@given(st.lists(inserts, max_size=20), st.lists(inserts, max_size=20), st.integers(0, 6))
def test_merging_keeps_to_a_workers_bound(here: list[TreeOp], there: list[TreeOp], capacity: int) -> None:
    tree = tree_of(here, capacity=capacity)
    tree.load(tree_of(there, capacity=capacity).dump(WORKERS), WORKERS)

    check(tree)
    assert tree.dump(WORKERS) == tree_of(here + there, capacity=capacity).dump(WORKERS)


@given(st.lists(inserts, max_size=20), st.lists(inserts, max_size=20), st.integers(1, 6))
def test_merging_keeps_to_the_bound_of_the_whole_tree(
    here: list[TreeOp], there: list[TreeOp], blocks_max: int
) -> None:
    tree = tree_of(here, blocks_max)
    tree.load(tree_of(there, blocks_max).dump(WORKERS), WORKERS)

    check(tree)
    assert tree.dump(WORKERS) == tree_of(here + there, blocks_max).dump(WORKERS)


@given(st.lists(inserts | removals, max_size=20))
def test_a_snapshot_survives_msgpack_and_other_slot_numbers(ops: list[TreeOp]) -> None:
    tree = tree_of(ops)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(tree.dump(WORKERS)), type=TreeSnapshot)
    moved = PrefixTree()
    moved.load(wire, [5, 0, 2])

    check(moved)
    assert moved.dump([5, 0, 2]) == tree.dump(WORKERS)


def test_a_snapshot_of_some_workers_leaves_the_others_out() -> None:
    tree = tree_of([Insert("0", path("ab"), 1), Insert("1", path("abc"), 2), Insert("1", path("ax"), 3)])

    fresh = PrefixTree()
    fresh.load(tree.dump([0]), [0])

    assert (fresh.blocks, fresh.nodes, fresh.slots) == (2, 1, 1)
    assert fresh.dump([0]) == tree_of([Insert("0", path("ab"), 1), Insert("1", path("y"), 3)]).dump([0])


SOUND = tree_of([Insert("0", path("ab"), 1), Insert("1", path("abc"), 2), Trim("1", path("z"), 2)]).dump(
    WORKERS
)


def test_pages_hold_whole_rows_and_refer_to_rows_of_others() -> None:
    """Runs of 1024 blocks, 8 KiB each, below one that all share: 32 of them fill a page."""
    shared = chain_bytes(bytes(8), 1, 1)
    tree = PrefixTree()
    for number in range(70):
        tree.insert(number % 3, shared + chain_bytes(bytes(1024), number + 2, 1), 1 + number, end=True)

    snapshot = tree.dump(WORKERS)
    fresh = PrefixTree()
    fresh.load(snapshot, WORKERS)

    assert len(snapshot.pages) == 3
    assert all(len(page.hashes) <= PAGE_BYTES + 8 * 1024 for page in snapshot.pages)
    check(fresh)
    assert fresh.dump(WORKERS) == snapshot


def changed(marks: dict[str, object] | None = None, **columns: bytes) -> TreeSnapshot:
    """The sound snapshot, with something else in it."""
    page = msgspec.structs.replace(SOUND.pages[0], **columns)
    return TreeSnapshot(msgspec.structs.replace(SOUND.marks, **(marks or {})), [page])


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def integers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_the_sound_snapshot_has_two_rows_and_three_holders() -> None:
    """The changes below are thus wrong for the reason given there."""
    page = SOUND.pages[0]
    assert (page.sizes, page.holders, page.slots) == (integers(2, 1), integers(2, 1), integers(0, 1, 1))
    assert page.ends == words(0, 0, 2, 1, 1, 1, 1, 2)
    assert changed() == SOUND


@pytest.mark.parametrize(
    "snapshot",
    [
        changed({"workers": SOUND.marks.workers[:2]}),
        changed({"newest_us": -1}),
        changed({"newest_us": 1}),
        changed({"workers": [(1 << 62, (0, 0, 0))] * 3}),
        changed({"floor": (3, 0, 0)}),
        changed(hashes=SOUND.pages[0].hashes[:-8]),
        changed(hashes=SOUND.pages[0].hashes[:-1]),
        changed(parents=b"\xff\xff\xff\x7f" * 2),
        changed(parents=b"\xff\xff\xff\xff\x01\x00\x00\x00"),
        changed(slots=integers(9, 9, 9)),
        changed(slots=integers(1, 0, 1)),
        changed(slots=integers(0, 1, 2)),
        changed(holders=integers(3, 0)),
        changed(sizes=bytes(8)),
        changed(used_us=b"\xff" * 24),
        changed(used_us=words(1, 1, 2)),
        changed(used_us=words(1, 3, 2)),
        changed(ends=SOUND.pages[0].ends[:-1]),
        changed(ends=words(2, 0, 1, 1)),
        changed(ends=words(0, 3, 1, 1)),
        changed(ends=words(0, 0, 3, 1)),
        changed(ends=words(0, 0, 0, 1)),
        changed(ends=words(0, 0, 1, 2)),
        changed(ends=words(1, 0, 1, 1)),
        changed(trims=words(3, 1, 1)),
        changed(trims=words(1, 1, 3)),
        changed(owners=words(1)),
        changed(owners=words(1, SHARED + 1)),
        TreeSnapshot(TreeMarks(2, (-1, 0, 0), []), []),
        TreeSnapshot(
            SOUND.marks,
            [TreePage(integers(0), integers(1), words(7), integers(1), integers(0), words(1), b"", b"")],
        ),
    ],
)
def test_what_is_no_snapshot_is_refused_and_changes_nothing(snapshot: TreeSnapshot) -> None:
    tree = tree_of([Insert("2", path("q"), 1)])
    before = tree.dump(WORKERS)

    with pytest.raises(ValueError, match="not a snapshot of a prefix tree"):
        tree.load(snapshot, WORKERS)

    assert tree.dump(WORKERS) == before
    tree.load(SOUND, WORKERS)
    assert tree.match(path("abc")).matched.tolist() == [2, 3, 0]


def test_what_was_trimmed_elsewhere_is_trimmed_here() -> None:
    """Two tombstones in one run, of which one is older than the use of its block."""
    tree = tree_of([Insert("0", path("abcd"), 5), Insert("0", path("ax"), 5)])
    trimmed = tree_of([Trim("0", path("abc"), 6), Trim("0", path("ab"), 5), Trim("1", path("a"), 6)])

    tree.load(trimmed.dump(WORKERS), WORKERS)

    check(tree)
    assert tree.match(path("abcd")).matched[0] == 2
    assert tree.match(path("ax")).matched[0] == 2


def test_equal_columns_are_equal_snapshots() -> None:
    """Split and whole: the run abcd is divided while x is there, and canonical again after."""
    whole = tree_of([Insert("0", path("abcd"), 5)])
    divided = tree_of([Insert("0", path("abx"), 1), Insert("0", path("abcd"), 5)])
    divided.trim(0, path("abx"), 2)
    whole.trim(0, path("abx"), 2)

    assert divided.nodes == 2
    assert divided.dump(WORKERS) == whole.dump(WORKERS)
    assert isinstance(whole.dump(WORKERS), TreeSnapshot)
