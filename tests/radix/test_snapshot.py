"""Snapshots: canonical, merged, and not believed blindly."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import Forget, Insert, PrefixTree, TreeOp, TreeSnapshot, Trim, apply, chain_bytes
from radix.invariants import check

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
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(tree.dump(WORKERS)))
    moved = PrefixTree()
    moved.load(wire, [5, 0, 2])

    check(moved)
    assert moved.dump([5, 0, 2]) == tree.dump(WORKERS)


def test_a_snapshot_of_some_workers_leaves_the_others_out() -> None:
    tree = tree_of([Insert("0", path("ab"), 1), Insert("1", path("abc"), 2), Insert("1", path("ax"), 3)])

    fresh = PrefixTree()
    fresh.load(tree.dump([0]), [0])

    assert (fresh.blocks, fresh.nodes, fresh.slots) == (2, 1, 1)


SOUND = tree_of([Insert("0", path("ab"), 1), Insert("1", path("abc"), 2), Trim("1", path("z"), 2)]).dump(
    WORKERS
)


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        [1, 2, 3],
        msgspec.structs.replace(SOUND, workers=SOUND.workers[:2]),
        msgspec.structs.replace(SOUND, hashes=SOUND.hashes[:-8]),
        msgspec.structs.replace(SOUND, hashes=SOUND.hashes[:-1]),
        msgspec.structs.replace(SOUND, parents=b"\xff\xff\xff\x7f" * 2),
        msgspec.structs.replace(SOUND, slots=b"\x09\x00\x00\x00" * 3),
        msgspec.structs.replace(SOUND, sizes=bytes(8)),
        msgspec.structs.replace(SOUND, used_us=b"\xff" * 24),
        msgspec.structs.replace(SOUND, ends=SOUND.ends[:-1]),
        msgspec.structs.replace(SOUND, ends=(0).to_bytes(8, "little") * 2 + b"\x63" + bytes(15)),
        msgspec.structs.replace(SOUND, ends=b"\x01" + bytes(15) + b"\x03" + bytes(7) + b"\x01" + bytes(7)),
        msgspec.structs.replace(SOUND, slots=b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"),
        msgspec.structs.replace(SOUND, newest_us=-1),
        msgspec.structs.replace(SOUND, workers=[(1 << 62, (0, 0, 0))] * 3),
    ],
)
def test_what_is_no_snapshot_is_refused_and_changes_nothing(snapshot: object) -> None:
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
