"""The common start of prompts."""

from radix import CommonStart, PrefixTree, SharedStart, chain_bytes, common_start, shared_start
from radix.blocks import words_of


def path(letters: str) -> bytes:
    return chain_bytes(letters.encode(), root=1, block_bytes=1)


def first(letters: str) -> int:
    return int.from_bytes(path(letters)[:8], "little")


def test_it_ends_where_prompts_part() -> None:
    tree = PrefixTree()
    tree.insert(0, path("aabxx"), 5, end=False)
    tree.insert(2, path("aabyy"), 7, end=False)
    tree.insert(0, path("c"), 9, end=False)

    assert shared_start(tree, first("a")) == SharedStart(3, [0, 2], 2, 2)


def test_a_worker_that_holds_less_does_not_end_it() -> None:
    """Worker 1 holds two blocks of five; the runs divide there, and the prompts do not part."""
    tree = PrefixTree()
    tree.insert(0, path("aabxx"), 5, end=False)
    tree.insert(1, path("aa"), 5, end=False)

    assert shared_start(tree, first("a")) == SharedStart(5, [0, 1], 1, 0)


def test_of_what_nobody_holds_nothing_is_known() -> None:
    assert shared_start(PrefixTree(), first("a")) is None


def test_the_common_start_of_a_prompt_ends_where_many_others_part_from_it() -> None:
    """Three prompts part after b, and two of them after c: a deeper start needs as many ways on."""
    tree = PrefixTree()
    for slot, text in enumerate(("abcx", "abcy", "abd", "abe")):
        tree.insert(slot, path(text), 1, end=False)

    start = common_start(tree, path("abcz"), branches_min=3)
    assert start == CommonStart(2, words_of(path("ab"))[-1], 0b1111)
    assert common_start(tree, path("abcz"), branches_min=2) == CommonStart(3, words_of(path("abc"))[-1], 0b11)
    assert common_start(tree, path("abcz"), branches_min=4) is None
    assert common_start(tree, path("a"), branches_min=2) is None
    assert common_start(tree, path("q"), branches_min=1) is None
