"""What all prompts share that begin alike."""

from radix import PrefixTree, SharedStart, chain_bytes, shared_start


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
