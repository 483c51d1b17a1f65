"""`Residency` beside an engine that is replayed block by block, and its view of single events."""

import pytest
from fakes.naive_residency import NaiveEngines, NaiveGroup
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from radix import AttentionProfile, EndGone, Forget, Insert, PrefixTree, Trim, apply, chain_token_ids
from radix.invariants import check
from radix.residency import BlocksRemoved, BlocksStored, CacheCleared, EngineEvent, Residency
from radix.residency.groups import LANES_MAX
from radix.residency.runs import RUN_BLOCKS_MAX

ROOT = 7
ENDS = AttentionProfile("linear")
"""Reads the deepest end within the match."""

FULL = NaiveGroup(0, "full_attention")
SETS = {
    "no groups": [NaiveGroup(None, None)],
    "full": [FULL],
    "full and window": [FULL, NaiveGroup(1, "sliding_window", 9)],
    "windows first": [
        NaiveGroup(0, "sliding_window", 9),
        NaiveGroup(1, "sliding_window", 3),
        NaiveGroup(2, "mla_attention"),
    ],
    "state": [FULL, NaiveGroup(1, "mamba")],
    "window only": [NaiveGroup(0, "sliding_window", 9)],
    "two full and a state": [FULL, NaiveGroup(1, "full_attention"), NaiveGroup(2, "mamba")],
}
SIZES = [(4, 4), (4, 8), (4, 2), (4, 6), (2, 8), (8, 4)]
RANKS = (0, 1)
WORDS = ("aaaa", "aaab", "aabb", "bbbb")
texts = st.builds(
    lambda shared, own: shared + "".join(own),
    st.sampled_from(("", "", "aaaaaaab", "aaaaaaabbbbb", "aaaaaaabbbbbaaaa")),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
)
"""Few of them, so that removed blocks were often stored."""


def path(text: str, tree_size: int) -> bytes:
    return chain_token_ids([ord(letter) for letter in text], ROOT, tree_size)


class ResidencyBesideEngines(RuleBasedStateMachine):
    """For any events of engines, the tree behind the residency believes the truth, no more and no less."""

    def __init__(self) -> None:
        super().__init__()
        self.at_us = 0
        self.asked = {"a"}

    @initialize(groups=st.sampled_from(sorted(SETS)), sizes=st.sampled_from(SIZES), ranks=st.integers(1, 2))
    def start(self, groups: str, sizes: tuple[int, int], ranks: int) -> None:
        self.groups = SETS[groups]
        self.engines = NaiveEngines(*sizes)
        self.residency = Residency(sizes[1], lambda lora, salt: ROOT)
        self.tree = PrefixTree(block_tokens=sizes[1])
        self.ranks = ranks

    def draw(self, which: int) -> tuple[int, NaiveGroup, str]:
        """A rank, a group and a medium."""
        return (
            which % self.ranks,
            self.groups[which // 2 % len(self.groups)],
            ("GPU", "GPU", "CPU")[which // 6 % 3],
        )

    @rule(which=st.integers(0, 17), text=texts, skip=st.integers(0, 3))
    def store(self, which: int, text: str, skip: int) -> None:
        rank, group, medium = self.draw(which)
        self.asked.add(text)
        skip = min(skip, len(text) // self.engines.size - 1)
        if skip >= 0:
            self.residency.apply(rank, [self.engines.store(rank, group, medium, text, skip)])

    @rule(
        rank=st.integers(0, 1), text=texts, skip=st.integers(0, 2), kept=st.lists(st.booleans(), min_size=8)
    )
    def step(self, rank: int, text: str, skip: int, kept: list[bool]) -> None:
        """All groups store the same span; those with windows keep some blocks only."""
        self.asked.add(text)
        skip = min(skip, len(text) // self.engines.size - 1)
        if skip < 0:
            return
        events = [
            self.engines.store(
                rank % self.ranks, group, "GPU", text, skip, kept if group.need(self.engines.size) else None
            )
            for group in self.groups
        ]
        self.residency.apply(rank % self.ranks, events)

    @rule(which=st.integers(0, 17), text=texts, kept=st.lists(st.booleans(), min_size=8))
    def offload(self, which: int, text: str, kept: list[bool]) -> None:
        rank, group, _ = self.draw(which)
        prefixes = [p for p, keep in zip(self.engines.prefixes(text), kept, strict=False) if keep]
        self.residency.apply(rank, [self.engines.offload(rank, group, "CPU", prefixes)])

    @rule(which=st.integers(0, 17), text=texts, first=st.integers(0, 5), every=st.booleans())
    def remove(self, which: int, text: str, first: int, every: bool) -> None:
        """From some block on, the deepest first, one event each."""
        rank, group, medium = self.draw(which)
        for prefix in reversed(self.engines.prefixes(text)[first:]):
            event = self.engines.remove(rank, None if every else group, medium, [prefix])
            self.residency.apply(rank, [event])

    @rule(which=st.integers(0, 17), text=texts)
    def remove_one(self, which: int, text: str) -> None:
        rank, group, medium = self.draw(which)
        event = self.engines.remove(rank, group, medium, self.engines.prefixes(text)[-1:])
        self.residency.apply(rank, [event])

    @rule(rank=st.integers(0, 1))
    def clear(self, rank: int) -> None:
        self.residency.apply(rank % self.ranks, [self.engines.clear(rank % self.ranks)])

    @rule(rank=st.integers(0, 1))
    def lose(self, rank: int) -> None:
        self.engines.lose(rank % self.ranks)
        self.residency.lost(rank % self.ranks)

    @rule()
    def tell(self) -> None:
        self.at_us += 1
        for op in self.residency.changes("w", self.at_us):
            assert not isinstance(op, Forget) or op.before_us >= self.at_us
            apply(self.tree, op, 0)
        check(self.tree)
        self.engines.settle()
        self.agrees()
        assert self.residency.changes("w", self.at_us + 1) == []

    def agrees(self) -> None:
        engines, truth = self.engines, self.engines.truth()
        ends = any(group.need(engines.size) for group in engines.met)
        for text in self.asked | engines.texts():
            for asked in (text, text + "abba"):
                packed = path(asked, engines.tree_size)
                match = self.tree.match(packed, ENDS)
                matched = match.matched[0] if match.slots else 0
                assert matched == truth.matched(asked), asked
                assert self.residency.held_blocks(packed) == matched, asked
                if ends:
                    assert (match.safe[0] if match.slots else 0) == truth.safe(asked), asked

    @invariant()
    def keeps_no_more_than_is_held(self) -> None:
        if hasattr(self, "engines"):
            assert self.residency.blocks <= sum(len(of.known) for of in self.engines.ranks.values())

    def teardown(self) -> None:
        if hasattr(self, "engines"):
            self.tell()


TestResidencyBesideEngines = ResidencyBesideEngines.TestCase
TestResidencyBesideEngines.settings = settings(stateful_step_count=20)


# Single cases. A text is cut into blocks of four letters; handles are the prefixes themselves, as bytes.


def stored(text: str, parent: str = "", **fields: object) -> BlocksStored:
    """The blocks of a text behind a parent, from a full group."""
    handles = [text[:stop].encode() for stop in range(len(parent) + 4, len(text) + 1, 4)]
    ids = [ord(letter) for letter in text[len(parent) :]]
    event = BlocksStored(handles, parent.encode() or None, ids, 4, 0, "full_attention", None, "GPU")
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def removed(*texts: str, group: int | None = 0, medium: str | None = "GPU") -> BlocksRemoved:
    return BlocksRemoved([text.encode() for text in texts], group, medium)


def residency(*events: EngineEvent, tree_size: int = 4, handles_max: int = 1000) -> Residency:
    """A residency after some events, which the tree has."""
    roots = {("", ""): ROOT, ("lora", ""): 8, ("", "salt"): 9, ("lora", "salt"): 10}
    made = Residency(tree_size, lambda lora, salt: roots.get((lora, salt)), handles_max=handles_max)
    made.apply(0, events)
    made.changes("w", 1)
    return made


def test_a_chain_that_grew_is_one_insert_and_of_one_that_shrank_only_the_first_block_is_trimmed() -> None:
    followed = residency()
    followed.apply(0, [stored("aaaabbbb"), stored("aaaabbbbcccc", "aaaabbbb")])
    assert followed.changes("w", 2) == [Insert("w", path("aaaabbbbcccc", 4), 2, end=False)]
    followed.apply(0, [removed("aaaabbbbcccc"), removed("aaaabbbb")])
    assert followed.changes("w", 3) == [Trim("w", path("aaaabbbb", 4), 3)]
    followed.apply(0, [stored("aaaabbbb", "aaaa"), removed("aaaabbbb")])
    # It came and went, but the tree may believe it of a prompt that was placed.
    assert followed.changes("w", 4) == [Trim("w", path("aaaabbbb", 4), 4)]


def test_a_removal_takes_what_was_told_in_the_same_microsecond() -> None:
    """An insert at t outlives a trim of uses before t, so times of one residency rise."""
    followed = residency(stored("aaaa"))
    followed.apply(0, [removed("aaaa")])
    assert followed.changes("w", 1) == [Trim("w", path("aaaa", 4), 2)]


def test_a_boundary_is_an_end_while_every_window_reaches_back_to_it() -> None:
    """W = 5 and blocks of 4: one block before the boundary. The window comes first, as for Gemma 3."""
    window = BlocksStored([b"aaaabbbb"], None, list(range(12)), 4, 1, "sliding_window", 5, "GPU")
    followed = residency()
    followed.apply(0, [window, stored("aaaabbbbcccc")])
    assert followed.changes("w", 2) == [
        Insert("w", path("aaaabbbb", 4), 2),
        Insert("w", path("aaaabbbbcccc", 4), 2, end=False),
    ]
    followed.apply(0, [removed("aaaabbbb", group=1)])
    assert followed.changes("w", 3) == [EndGone("w", path("aaaabbbb", 4), 3)]


def test_ends_in_a_row_are_one_operation() -> None:
    window = {"group": 1, "kind": "sliding_window", "window_tokens": 5}
    followed = residency()
    followed.apply(0, [stored("aaaabbbbcccc"), stored("aaaabbbbcccc", **window)])
    assert followed.changes("w", 2) == [Insert("w", path("aaaabbbbcccc", 4), 2, end=True, ends=3)]
    followed.apply(0, [removed("aaaabbbb", "aaaabbbbcccc", group=1)])
    assert followed.changes("w", 3) == [EndGone("w", path("aaaabbbbcccc", 4), 3, 2)]


def test_an_engine_without_groups_says_nothing_of_ends() -> None:
    """SGLang publishes no tombstones, so its full-attention blocks say nothing of windows."""
    followed = residency()
    followed.apply(0, [stored("aaaabbbb", group=None, kind=None)])
    assert followed.changes("w", 2) == [Insert("w", path("aaaabbbb", 4), 2, end=False)]
    assert not followed.ends_known
    followed.apply(0, [removed("aaaabbbb", "aaaa", group=None)])
    assert followed.changes("w", 3) == [Trim("w", path("aaaa", 4), 3)]


@pytest.mark.parametrize(
    ("kind", "window_tokens"),
    [("chunked_local_attention", None), ("unknown", None), ("sliding_window", None), ("sliding_window", 0)],
)
def test_a_group_whose_demands_are_not_known_is_taken_to_need_everything(
    kind: str, window_tokens: int | None
) -> None:
    more = {"group": 1, "kind": kind, "window_tokens": window_tokens}
    followed = residency(stored("aaaabbbbcccc"), stored("aaaabbbbcccc", **more))
    assert followed.held_blocks(path("aaaabbbbcccc", 4)) == 3
    followed.apply(0, [removed("aaaabbbb", group=1)])
    assert followed.changes("w", 2) == [Trim("w", path("aaaabbbb", 4), 2)]


def test_a_kind_that_is_said_later_counts_from_then_on() -> None:
    """An offload tier's store names the group only; the group then says that it is a window."""
    followed = residency(stored("aaaabbbb"), BlocksStored([b"aaaabbbb"], None, [], 0, 1, None, None, "CPU"))
    assert followed.held_blocks(path("aaaabbbb", 4)) == 0
    window = {"group": 1, "kind": "sliding_window", "window_tokens": 5}
    followed.apply(0, [stored("aaaabbbb", "aaaa", **window)])
    assert followed.changes("w", 2) == [Insert("w", path("aaaabbbb", 4), 2)]


@pytest.mark.parametrize("kind", ["cross_attention", "encoder_only_attention"])
def test_what_is_no_prefix_cache_is_not_listened_to(kind: str) -> None:
    followed = residency(stored("aaaa"), stored("bbbb", group=3, kind=kind), removed("bbbb", group=3))
    assert (followed.blocks, followed.opaque, followed.readable) == (1, 0, True)


def test_a_block_on_two_media_is_held_until_both_lost_it() -> None:
    followed = residency(stored("aaaa"), stored("aaaa", medium="CPU", token_ids=[]), removed("aaaa"))
    assert followed.held_blocks(path("aaaa", 4)) == 1
    followed.apply(0, [removed("aaaa", medium="CPU")])
    assert followed.changes("w", 2) == [Trim("w", path("aaaa", 4), 2)]


def test_memory_below_goes_on_where_the_device_ends_and_fills_no_gap() -> None:
    followed = residency(stored("aaaabbbbccccdddd"), removed("aaaabbbb"))
    assert followed.held_blocks(path("aaaabbbbccccdddd", 4)) == 1
    host = {"medium": "CPU", "token_ids": []}
    followed.apply(0, [stored("aaaabbbb", "aaaa", **host)])
    followed.changes("w", 2)
    # The engine asks below for all that follows the first block, and the third is on the device only.
    assert followed.held_blocks(path("aaaabbbbccccdddd", 4)) == 2
    followed.apply(0, [stored("aaaabbbbccccdddd", "aaaabbbb", **host)])
    assert followed.changes("w", 3) == [Insert("w", path("aaaabbbbccccdddd", 4), 3, end=False)]


WINDOW = {"group": 1, "kind": "sliding_window", "window_tokens": 9}
"""W = 9 in blocks of 4: two blocks before a boundary, three in memory below the device."""


def test_a_window_is_not_put_together_from_the_device_and_the_memory_below() -> None:
    below = {"medium": "CPU", "token_ids": []}
    text = "aaaabbbbccccdddd"
    followed = residency(
        stored(text), stored(text, **below), stored(text, **WINDOW), stored(text, **{**WINDOW, **below})
    )
    followed.apply(0, [removed("aaaa", "aaaabbbb", group=1, medium="CPU")])
    followed.apply(0, [removed("aaaabbbbcccc", text, group=1)])
    assert followed.changes("w", 2) == []  # the device ends behind two blocks, and both windows follow there
    followed.apply(0, [removed("aaaa", group=1)])
    # The device ends nowhere now, and a window below begins before the third block.
    assert followed.changes("w", 3) == [EndGone("w", path(text, 4), 3, 4)]


def test_where_a_prompt_left_memory_below_no_window_is_kept_whatever_its_placement_expected() -> None:
    below = {"medium": "CPU", "token_ids": []}
    followed = residency(stored("aaaabbbb", **below), stored("aaaa"), removed("aaaa"))
    followed.apply(
        0, [stored("aaaabbbb"), stored("aaaabbbb", **WINDOW), removed("aaaa", "aaaabbbb", group=1)]
    )
    followed.apply(0, [removed("aaaa", "aaaabbbb"), stored("aaaabbbb", **below)])
    followed.changes("w", 2)
    followed.apply(0, [stored("aaaabbbbcccc", "aaaabbbb")])
    assert EndGone("w", path("aaaabbbb", 4), 3) in followed.changes("w", 3)


def test_a_medium_that_is_not_named_is_the_gpu() -> None:
    followed = residency(stored("aaaa", medium=None), removed("aaaa", medium="GPU"))
    assert followed.blocks == 0


def test_a_block_that_was_stored_twice_is_held_until_it_is_removed_twice() -> None:
    """VLLM does not merge equal blocks of two requests, and evicts each."""
    followed = residency(stored("aaaa"), stored("aaaa"), stored("aaaa"), removed("aaaa"), removed("aaaa"))
    assert followed.held_blocks(path("aaaa", 4)) == 1
    followed.apply(0, [removed("aaaa")])
    assert followed.changes("w", 2) == [Trim("w", path("aaaa", 4), 2)]
    assert followed.blocks == 0


@pytest.mark.parametrize("root", [("lora", ""), ("", "salt"), ("lora", "salt")])
@pytest.mark.parametrize("own_field", [True, False])
def test_adapter_and_salt_choose_the_root(root: tuple[str, str], own_field: bool) -> None:
    lora, salt = root
    keys = [lora] if lora else []
    first = [*keys, *([] if own_field or not salt else [salt])]
    event = stored("aaaabbbb", lora=lora or None, extra_keys=[first, keys], salt=salt if own_field else None)
    followed = residency(event)
    expected = {("lora", ""): 8, ("", "salt"): 9, ("lora", "salt"): 10}[root]
    assert followed.held_blocks(chain_token_ids([*b"aaaabbbb"], expected, 4)) == 2


@pytest.mark.parametrize(
    "event",
    [
        stored("zzzzaaaabbbb", "zzzz", hashes=[b"aaaa", b"aaaabbbb"]),
        stored("aaaabbbb", lora="unknown"),
        stored("aaaabbbb", extra_keys=[[["image", 0]], None]),
        stored("aaaabbbb", extra_keys=[["salt", "prompt embeddings"], None]),
        stored("aaaabbbb", token_ids=[-1] * 8),
        stored("aaaabbbb", token_ids=[(1, 2)] * 8),
        stored("aaaabbbb", token_ids=[]),
        stored("aaaabbbb", block_tokens=0),
        stored("aaaabbbb", hashes=[b"aaaa", b"aaaabbbb", b"aaaabbbb"], token_ids=[1] * 12),
    ],
)
def test_what_has_no_place_never_reaches_the_tree_and_its_removal_is_understood(event: BlocksStored) -> None:
    followed = residency()
    followed.apply(0, [event])
    assert followed.changes("w", 2) == []
    assert (followed.blocks, followed.opaque) == (0, 2)
    followed.apply(0, [removed("aaaa"), removed("aaaabbbb"), removed("aaaabbbb"), removed("cccc")])
    assert followed.opaque == 0


def test_blocks_with_media_are_opaque_from_there_on() -> None:
    followed = residency(stored("aaaabbbbcccc", extra_keys=[None, [["image", 2]], None]))
    assert (followed.blocks, followed.opaque) == (1, 2)
    assert followed.held_blocks(path("aaaabbbbcccc", 4)) == 1
    followed.apply(0, [removed("aaaabbbbcccc"), removed("aaaabbbb"), removed("aaaa")])
    followed.changes("w", 2)
    assert (followed.blocks, followed.opaque) == (0, 0)


def test_a_model_of_windows_only_that_keeps_some_blocks_cannot_be_read() -> None:
    """The event does not name the kept blocks of the span (Mistral with a sliding window, on vLLM 0.32)."""
    followed = residency()
    assert followed.readable
    followed.apply(0, [BlocksStored([b"x"], None, list(range(12)), 4, 0, "sliding_window", 5, "GPU")])
    assert not followed.readable


def test_groups_with_different_block_sizes_cannot_be_read() -> None:
    followed = residency(stored("aaaabbbb"))
    assert followed.readable
    followed.apply(0, [BlocksStored([b"aaaabbbb"], None, [1] * 8, 8, 1, "mamba", None, "GPU")])
    assert not followed.readable


def test_a_rank_with_too_many_handles_is_forgotten_until_it_is_cleared() -> None:
    followed = residency(stored("aaaabbbb"), handles_max=2)
    followed.apply(0, [stored("cccc")])
    assert not followed.readable
    assert followed.changes("w", 2) == [Forget("w", 2)]
    followed.apply(0, [CacheCleared(), stored("dddd")])
    assert followed.readable
    assert followed.changes("w", 3) == [Forget("w", 3), Insert("w", path("dddd", 4), 3, end=False)]


def test_when_a_rank_is_lost_the_others_are_told_again() -> None:
    followed = residency(stored("aaaa"))
    followed.apply(1, [stored("bbbb")])
    followed.changes("w", 2)
    followed.lost(0)
    assert followed.changes("w", 3) == [Forget("w", 3), Insert("w", path("bbbb", 4), 3, end=False)]
    followed.lost(5)
    followed.retell()
    assert followed.changes("w", 4) == [Forget("w", 4), Insert("w", path("bbbb", 4), 4, end=False)]


def test_a_chain_longer_than_a_run_is_still_one_insert_and_one_trim() -> None:
    text = "".join(chr(97 + at % 7) * 4 for at in range(2 * RUN_BLOCKS_MAX + 5))
    followed = residency(handles_max=3 * RUN_BLOCKS_MAX)
    followed.apply(0, [stored(text)])
    assert followed.changes("w", 2) == [Insert("w", path(text, 4), 2, end=False)]
    followed.apply(0, [removed(text[:stop]) for stop in range(len(text), 4, -4)])
    assert followed.changes("w", 3) == [Trim("w", path(text[:8], 4), 3)]
    assert (followed.blocks, len(followed.runs)) == (1, 1)


def test_lanes_are_bounded() -> None:
    followed = residency(stored("aaaa"))
    followed.apply(0, [stored("aaaa", medium=f"tier {number}") for number in range(2 * LANES_MAX)])
    followed.apply(0, [removed("aaaa", medium=f"tier {number}") for number in range(2 * LANES_MAX)])
    followed.apply(0, [removed("aaaa")])
    assert followed.changes("w", 2) == [Trim("w", path("aaaa", 4), 2)]
