"""Blocks get their places from parents and tokens, and keep them while anything is known behind them."""

from radix.residency import BlocksStored
from radix.residency.places import Places
from radix.residency.runs import Rank


def places() -> tuple[Places, Rank]:
    return Places(4, lambda lora, salt: 7), Rank()


def store(handles: list[int], parent: int | None = None, group: int = 0) -> BlocksStored:
    """Blocks of four tokens, each of one token four times: the handle."""
    ids = [handle for handle in handles for _ in range(4)]
    return BlocksStored(handles, parent, ids, 4, group, "full_attention", None, "GPU")


def test_a_sequence_that_leaves_a_run_begins_one_and_one_that_goes_on_does_not() -> None:
    found, rank = places()
    for event in (store([1, 2, 3]), store([4], 3), store([5, 6], 2), store([7], 6)):
        found.stored(rank, event)
    assert {number: (run.start, run.size) for number, run in found.runs.items()} == {1: (0, 4), 2: (2, 3)}
    assert found.runs[1].kids == {2: 2}
    assert found.dirty == found.runs


def test_loose_blocks_are_put_where_another_group_says() -> None:
    found, rank = places()
    found.stored(rank, BlocksStored([2], None, [0] * 12, 4, 1, "sliding_window", 5, "GPU"))
    assert rank.loose == {2: [0]}
    found.stored(rank, store([1, 2, 3]))
    assert rank.loose == {}
    assert found.runs[1].lanes == {0: 0b010, 1: 0b111}


def test_a_place_is_kept_while_something_behind_it_is_held_and_then_given_up_with_its_run() -> None:
    found, rank = places()
    found.stored(rank, store([1, 2, 3]))
    found.stored(rank, store([4], 1))
    found.removed(rank, 0, [1, 3])
    found.shrink(found.runs[1])
    assert rank.places.keys() == {1, 2, 4}
    found.removed(rank, 0, [2])
    found.shrink(found.runs[1])
    assert rank.places.keys() == {1, 4}
    found.removed(rank, 0, [4, 9])
    found.shrink(found.runs[2])
    assert (rank.places, found.runs, found.starts) == ({}, {}, {})


def test_what_is_dropped_leaves_other_ranks_alone() -> None:
    found, rank = places()
    other = Rank()
    found.stored(rank, store([1]))
    found.stored(other, store([1]))
    found.drop(rank)
    assert rank.places == {}
    assert [run.rank for run in found.runs.values()] == [other]
