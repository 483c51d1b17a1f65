"""Reaches: which one counts, and how many are remembered."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import radix.reaches
from radix import AttentionProfile, EndGone, EndReach, Insert, PrefixTree, apply, chain_bytes
from radix.reaches import WORKERS_MAX, Reaches

WINDOWS = AttentionProfile("sliding_window", window_tokens=128)


def path_of(text: str) -> bytes:
    return chain_bytes(text.encode(), 7, 1)


def reach(worker: str, text: str, at_us: int, blocks: int) -> EndReach:
    return EndReach(worker, path_of(text)[-8:], at_us, blocks)


def safe(tree: PrefixTree, text: str) -> list[int]:
    return tree.match(path_of(text), WINDOWS).safe.tolist()


def held(text: str = "abc") -> PrefixTree:
    """A worker in slot 0 that holds a prompt of which no end is known."""
    tree = PrefixTree()
    apply(tree, Insert("w", path_of(text), 10, end=False), 0)
    return tree


def test_a_prompt_that_parts_where_a_reach_begins_goes_on_behind_it() -> None:
    tree = held()
    apply(tree, reach("w", "abc", 20, 2), 0)

    assert safe(tree, "abcdefg") == [5]
    assert safe(tree, "abcd") == [4]  # never more than the prompt
    assert safe(tree, "abc") == [3]
    assert safe(tree, "abX") == [0]  # parts before


def test_a_reach_counts_only_while_the_block_before_it_is_held() -> None:
    tree = held()
    apply(tree, reach("w", "abc", 20, 2), 0)
    tree.forget(0, 30)

    assert safe(tree, "abcdefg") == [0]
    apply(tree, Insert("w", path_of("abc"), 40, end=False), 0)
    assert safe(tree, "abcdefg") == [0]  # the older reach went with the lost blocks


def test_an_end_that_is_gone_takes_its_reach_along() -> None:
    tree = held()
    apply(tree, reach("w", "abc", 20, 2), 0)
    apply(tree, EndGone("w", path_of("abcde"), 30, 3), 0)
    assert safe(tree, "abcdefg") == [0]

    apply(tree, reach("w", "abc", 29, 2), 0)  # late
    assert safe(tree, "abcdefg") == [0]
    apply(tree, reach("w", "abc", 31, 1), 0)
    assert safe(tree, "abcdefg") == [4]


def test_a_slot_that_is_used_again_has_no_reaches() -> None:
    tree = held()
    apply(tree, reach("w", "abc", 20, 2), 0)
    tree.drop(0)
    apply(tree, Insert("other", path_of("abc"), 30, end=False), 0)

    assert safe(tree, "abcdefg") == [0]
    assert len(tree.reaches) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["a", "ab", "abc"]), st.integers(1, 4), st.integers(0, 5)
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_reaches_commute_repeat_and_agree_with_a_naive_map(
    noted: list[tuple[int, str, int, int]], chance: random.Random
) -> None:
    """The newest of each worker and block counts, the longest of equally new ones."""
    naive: dict[tuple[int, str], tuple[int, int]] = {}
    for slot, text, at_us, blocks in noted:
        naive[slot, text] = max(naive.get((slot, text), (-1, 0)), (at_us, blocks))
    trees = []
    for order in (noted, chance.sample(noted, len(noted)) + noted[:3]):
        tree = PrefixTree()
        for slot in range(3):
            apply(tree, Insert("w", path_of("abc"), 1, end=False), slot)
        for slot, text, at_us, blocks in order:
            apply(tree, reach("w", text, at_us, blocks), slot)
        trees.append([safe(tree, text + "XXXXXXXX") for text in ("a", "ab", "abc")])

    wanted = [
        [len(text) + naive[slot, text][1] if (slot, text) in naive else 0 for slot in range(3)]
        for text in ("a", "ab", "abc")
    ]
    assert trees == [wanted, wanted]


def test_a_reach_behind_no_whole_block_is_refused() -> None:
    tree = held()
    for path in (b"", b"1234567"):
        with pytest.raises(ValueError, match="block"):
            apply(tree, EndReach("w", path, 20, 2), 0)

    assert len(tree.reaches) == 0


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix.reaches, "REACHES_MAX", 3)
    reaches = Reaches()
    for block in (1, 2, 3, 1, 4):
        reaches.note(0, block, 10 + block, 1)

    assert [block for block in range(6) if list(reaches.behind(block))] == [1, 3, 4]


def test_behind_one_block_the_newest_workers_are_remembered() -> None:
    reaches = Reaches()
    for slot in range(WORKERS_MAX + 5):
        reaches.note(slot, 1, 100 + slot, 1)

    assert [slot for slot, _, _ in reaches.behind(1)] == list(range(5, WORKERS_MAX + 5))
