"""`Residency.reconcile` brings any tree to the truth, in bounded steps."""

from random import Random

from fakes.naive_residency import NaiveEngines, NaiveGroup
from hypothesis import given
from hypothesis import strategies as st

from radix import AttentionProfile, EndGone, Insert, PrefixTree, TreeOp, Trim, apply, chain_token_ids
from radix.invariants import check
from radix.residency import Residency

ENDS = AttentionProfile("linear")
FULL = NaiveGroup(0, "full_attention")
GROUPS = [[FULL], [NaiveGroup(0, "sliding_window", 9), NaiveGroup(1, "full_attention")]]
TEXTS = [
    stem + "".join(words)
    for stem in ("", "aaaaaaab")
    for words in (("aaaa",), ("aabb", "bbbb"), ("aabb", "aaab"), ("bbbb", "aaaa", "aaaa"))
]


def path(text: str, size: int) -> bytes:
    return chain_token_ids([ord(letter) for letter in text], 7, size)


def followed(random: Random, groups: list[NaiveGroup], size: int, tree_size: int) -> Residency:
    """Contents of engines after some stores and removals, without a tree."""
    engines, residency = NaiveEngines(size, tree_size), Residency(tree_size, lambda lora, salt: 7)
    for _ in range(random.randint(1, 8)):
        text, rank = random.choice(TEXTS), random.randrange(2)
        for group in groups:
            residency.apply(rank, [engines.store(rank, group, "GPU", text, 0)])
        if random.random() < 0.5:
            lost = engines.prefixes(random.choice(TEXTS))[random.randrange(3) :]
            residency.apply(rank, [engines.remove(rank, random.choice(groups), "GPU", lost)])
    return residency


def wrong(random: Random, size: int, at_us: int) -> TreeOp:
    """An operation on a worker, true or not."""
    told = path(random.choice(TEXTS), size)
    cut = told[: 8 * random.randint(1, len(told) // 8)]
    return random.choice(
        (
            Insert("w", cut, at_us, end=random.random() < 0.5, ends=random.randint(1, 2)),
            Trim("w", cut, at_us),
            EndGone("w", cut, at_us),
        )
    )


def beliefs(tree: PrefixTree, size: int, *, ends: bool) -> list[tuple[int, int]]:
    """Match, and deepest end, of every text."""
    matches = [tree.match(path(text + "abba", size), ENDS) for text in TEXTS]
    return [
        (int(match.matched[0]), int(match.safe[0]) if ends else 0) if match.slots else (0, 0)
        for match in matches
    ]


@given(
    st.randoms(use_true_random=False),
    st.sampled_from(GROUPS),
    st.sampled_from([(4, 4), (4, 2), (2, 4)]),
    st.sampled_from((1, 40, 4096)),
)
def test_any_tree_comes_to_believe_what_is_held(
    random: Random, groups: list[NaiveGroup], sizes: tuple[int, int], blocks_max: int
) -> None:
    residency, tree, size = followed(random, groups, *sizes), PrefixTree(block_tokens=sizes[1]), sizes[1]
    for op in residency.changes("w", 10):
        apply(tree, op, 0)
    for _ in range(random.randint(1, 8)):
        apply(tree, wrong(random, size, random.randint(1, 20)), 0)
    quiet = at_us = 0
    while quiet < 100:
        at_us += 1
        assert at_us < 2000, "never"
        ops = residency.reconcile(tree, 0, "w", 30 + at_us, before_us=30 + at_us, blocks_max=blocks_max)
        quiet = 0 if ops else quiet + 1
        for op in ops:
            apply(tree, op, 0)
        check(tree)
    right = PrefixTree(block_tokens=size)
    residency.retell()
    for op in residency.changes("w", 5000):
        apply(right, op, 0)
    ends = residency.ends_known
    assert beliefs(tree, size, ends=ends) == beliefs(right, size, ends=ends)
    assert tree.held_blocks(0) == right.held_blocks(0)


def residency_of(text: str) -> Residency:
    engines, residency = NaiveEngines(4, 4), Residency(4, lambda lora, salt: 7)
    for group in GROUPS[1]:
        residency.apply(0, [engines.store(0, group, "GPU", text, 0)])
    return residency


def test_what_was_used_after_the_guard_time_is_spared() -> None:
    """A prompt of three blocks was placed at 50; the engine has one of them, and no end behind the third."""
    residency, tree = residency_of("aaaa"), PrefixTree(block_tokens=4)
    for op in residency.changes("w", 10):
        apply(tree, op, 0)
    tree.insert(0, path("aaaabbbbcccc", 4), 50, end=True)
    assert residency.reconcile(tree, 0, "w", 60, before_us=50) == []
    assert residency.reconcile(tree, 0, "w", 60, before_us=51) == [
        EndGone("w", path("aaaabbbbcccc", 4), 51),
        Trim("w", path("aaaabbbb", 4), 51),
    ]


def test_below_what_is_spared_the_rest_is_trimmed() -> None:
    """The engine has nothing; the first block was used at 50, the second at 5."""
    residency, tree = Residency(4, lambda lora, salt: 7), PrefixTree(block_tokens=4)
    tree.insert(0, path("aaaabbbb", 4), 5, end=False)
    tree.insert(0, path("aaaa", 4), 50, end=False)
    assert residency.reconcile(tree, 0, "w", 60, before_us=20) == [Trim("w", path("aaaabbbb", 4), 20)]


def test_ends_of_an_engine_that_tells_none_are_left_to_history() -> None:
    engines, residency = NaiveEngines(4, 4), Residency(4, lambda lora, salt: 7)
    residency.apply(0, [engines.store(0, NaiveGroup(None, None), "GPU", "aaaabbbb", 0)])
    residency.changes("w", 1)
    tree = PrefixTree(block_tokens=4)
    tree.insert(0, path("aaaabbbb", 4), 5, end=True)
    assert residency.reconcile(tree, 0, "w", 60, before_us=50) == []


def test_what_a_full_tree_evicted_does_not_come_back() -> None:
    residency, tree = residency_of("aaaabbbb"), PrefixTree(block_tokens=4, blocks_max=3)
    residency.changes("w", 1)
    tree.insert(1, path("bbbbaaaa", 4), 5, end=False)
    assert residency.reconcile(tree, 0, "w", 60, before_us=50) == []
    tree.trim(1, path("bbbbaaaa", 4), 6)
    assert residency.reconcile(tree, 0, "w", 60, before_us=50) == [
        Insert("w", path("aaaabbbb", 4), 60, end=False),
        Insert("w", path("aaaabbbb", 4), 60, end=True, ends=2),
    ]


def test_what_went_while_the_comparison_paused_is_passed_over() -> None:
    """One block a call: the tree has two runs; one is trimmed and the engine's only run goes in between."""
    residency, tree = residency_of("aaaa"), PrefixTree(block_tokens=4)
    residency.changes("w", 1)
    for text in ("bbbb", "aabb"):
        tree.insert(0, path(text, 4), 5, end=False)
    first = residency.reconcile(tree, 0, "w", 60, before_us=50, blocks_max=1)
    assert first == [Trim("w", path("aabb", 4), 50)]
    tree.trim(0, path("bbbb", 4), 50)
    residency.lost(0)
    residency.changes("w", 61)
    assert residency.reconcile(tree, 0, "w", 62, before_us=50) == []
