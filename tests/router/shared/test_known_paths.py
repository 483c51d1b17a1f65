"""An anchor resolves to its path or to none, within a bound; recent paths here are known everywhere."""

import random
import tracemalloc
from array import array
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import HASH_BYTES, chain_bytes
from router.shared import known_paths
from router.shared.known_paths import ANCHORS_MAX, PATH_BYTES, KnownPaths

BLOCK = 16
MIN = 4
SHARED = b"s" * BLOCK * 6


def path(text: bytes) -> bytes:
    return chain_bytes(text, 1, BLOCK)


def blocks(letters: str) -> bytes:
    return b"".join(letter.encode() * BLOCK for letter in letters)


def anchor_in(known: KnownPaths, prompt: bytes) -> int:
    """Return the anchor depth from which a prompt would be published."""
    return deepcopy(known).tell_shortly(prompt)


def anchor(told: bytes, depth: int) -> int:
    return int.from_bytes(told[HASH_BYTES * (depth - 1) : HASH_BYTES * depth], "little")


def test_a_conversation_is_told_from_its_last_turn() -> None:
    known = KnownPaths(blocks_min=MIN)
    first, second = path(SHARED + blocks("ab")), path(SHARED + blocks("abcde"))
    known.tell(first)
    assert anchor_in(known, second) == 8
    assert known.path_to(anchor(first, 8), 8) == first
    known.tell(second, after_blocks=8)
    assert anchor_in(known, path(SHARED + blocks("abcdef"))) == 11
    assert known.path_to(anchor(first, 8), 8) == first, "an answer to the turn before may be asked for again"
    assert known.size_bytes == len(second) + PATH_BYTES, "a conversation is held once"


def test_a_shared_start_is_an_anchor_once_a_prompt_left_it() -> None:
    known = KnownPaths(blocks_min=MIN)
    known.tell(path(SHARED + blocks("ab")))
    second = path(SHARED + blocks("cd"))
    assert anchor_in(known, second) == 0
    known.tell(second, junction_blocks=6)
    third = path(SHARED + blocks("ef"))
    assert anchor_in(known, third) == 6
    known.tell(third, after_blocks=6)
    assert anchor_in(known, path(SHARED + blocks("efg"))) == 8
    assert anchor_in(known, path(SHARED + blocks("g"))) == 6


def test_after_a_reset_only_what_is_told_anew_is_referred_to() -> None:
    known = KnownPaths(blocks_min=MIN)
    first = path(SHARED + blocks("ab"))
    known.tell(first)
    known.tell(path(SHARED + blocks("cd")), junction_blocks=6)
    known.reset()
    assert anchor_in(known, first) == 0
    assert known.path_to(anchor(first, 8), 8) == first, "but others may still refer to it"
    known.tell(path(SHARED + blocks("abx")), after_blocks=8)
    assert anchor_in(known, path(SHARED + blocks("abx"))) == 0, "it is told from what is old"
    known.tell(path(SHARED + blocks("ef")), junction_blocks=6)
    assert anchor_in(known, path(SHARED + blocks("gh"))) == 6, "the shared start was told with it"


def test_a_part_that_is_told_again_makes_no_longer_path_recent() -> None:
    """After a reset the log need not repeat the rest of the path."""
    known = KnownPaths(blocks_min=MIN)
    long = path(SHARED + blocks("abcd"))
    known.tell(long[: 8 * HASH_BYTES])
    known.tell(long, after_blocks=8)
    known.reset()
    known.tell(long[: 8 * HASH_BYTES])
    assert anchor_in(known, long) == 8


def test_short_paths_odd_bytes_and_wrong_depths_are_no_anchors() -> None:
    known = KnownPaths(blocks_min=MIN)
    known.tell(path(SHARED)[: HASH_BYTES * (MIN - 1)])
    known.tell(path(SHARED)[:-1])
    known.tell(b"")
    known.tell(path(SHARED), junction_blocks=6)
    assert len(known) == 1
    assert known.path_to(anchor(path(SHARED), 6), 5) is None
    assert known.path_to(anchor(path(SHARED), 6), 6) == path(SHARED)


def test_of_two_paths_that_claim_one_hash_the_first_stands_and_the_other_is_told_as_a_whole() -> None:
    """Chained hashes do not collide by chance; a writer may still forge such entries."""
    known = KnownPaths(blocks_min=MIN)
    true, false = path(SHARED), path(blocks("xxxxx")) + path(SHARED)[-HASH_BYTES:]
    known.tell(true)
    known.tell(false)
    assert anchor_in(known, false) == 0
    assert known.path_to(anchor(true, 6), 6) == true


def test_old_ends_of_a_long_conversation_are_no_anchors_and_cost_nothing() -> None:
    known = KnownPaths(blocks_min=MIN)
    text = SHARED
    known.tell(path(text))
    for number in range(50):
        before = len(path(text)) // HASH_BYTES
        text += bytes((number + 1,)) * BLOCK * 2
        known.tell(path(text), after_blocks=before)
    assert len(known) == ANCHORS_MAX
    assert known.size_bytes == len(path(text)) + PATH_BYTES


def test_the_path_told_longest_ago_is_forgotten_first_and_one_told_again_stays() -> None:
    """Room for four paths of sixteen blocks; the generations change with each second one."""
    prompts = [path(bytes((number,)) * BLOCK * 16) for number in range(5)]
    known = KnownPaths(4 * (len(prompts[0]) + PATH_BYTES), blocks_min=MIN)
    for prompt in prompts[:4]:
        known.tell(prompt)
    known.tell(prompts[0])
    known.tell(prompts[4])
    assert [known.path_to(anchor(prompt, 16), 16) is not None for prompt in prompts] == [
        *(True, False, True, True, True)
    ]


Turn = tuple[int, int, int, bool, bool, int]
turns = st.lists(
    st.tuples(
        st.integers(0, 5),  # the earlier prompt that it continues
        st.integers(0, 12),  # the depth at which it leaves it
        st.integers(1, 4),  # its new blocks
        st.booleans(),  # True if the junction is published
        st.booleans(),  # True if a reset comes first
        st.integers(0, 9),  # 9: an older replica publishes it
    ),
    max_size=60,
)


@given(turns, st.integers(0, 2**32), st.sampled_from([12_000, 1 << 20]))
def test_whatever_is_told_an_anchor_resolves_to_its_path_and_what_is_recent_is_known_to_a_late_reader(
    told: list[Turn], seed: int, bytes_max: int
) -> None:
    """The naive model is a dictionary of all paths by hash. The reader is one entry late."""
    chance = random.Random(seed)
    publisher, reader = KnownPaths(bytes_max, MIN), KnownPaths(bytes_max, MIN)
    model: dict[int, bytes] = {}
    texts = [b"r" * BLOCK * 5]
    late: list[tuple[bytes, int, int]] = []
    for of, depth, new, junction, reset, whole in told:
        start = texts[-1 - of % len(texts)][: depth * BLOCK] if junction else texts[-1 - of % len(texts)]
        text = start + chance.randbytes(new * BLOCK)
        texts.append(text)
        prompt = path(text)
        for at in range(1, len(prompt) // HASH_BYTES + 1):
            model[anchor(prompt, at)] = prompt[: HASH_BYTES * at]
        if reset and chance.random() < 0.1:
            publisher.reset()
        at = len(start) // BLOCK if junction else 0
        after = publisher.tell_shortly(prompt, at) if whole < 9 else 0
        if after:
            assert publisher.path_to(anchor(prompt, after), after) == prompt[: HASH_BYTES * after]
        else:
            publisher.tell(prompt, 0, at)
        late.append((prompt, after, at))
        while len(late) > chance.randrange(2):
            prompt, after, at = late.pop(0)
            if after:
                rest = prompt[HASH_BYTES * after :]
                assert reader.go_on(anchor(prompt, after), after, rest, at) == prompt
            else:
                reader.tell(prompt, 0, at)
        for known in (publisher, reader):
            assert known.size_bytes <= bytes_max
            held = [(known._anchors[word][0], known._anchors[word][1], word) for word in known._anchors]
            assert {each for each, _, _ in held} == set(known._paths)
            assert known.size_bytes == sum(len(each.path) + PATH_BYTES for each in known._paths)
            for each, blocks_of, word in held:
                assert word in each.anchors
                assert each.path[: HASH_BYTES * blocks_of] == model[word]


@pytest.mark.parametrize("turns_of_each", [1, 6])
def test_the_bound_is_what_memory_is_taken(turns_of_each: int) -> None:
    """Only what is allocated here counts: threads of tests before may still run, and their garbage end."""
    chance = random.Random(1)
    known = KnownPaths(4 << 20)
    tracemalloc.start()
    while known.size_bytes < 3 << 20:
        prompt, after = b"", 0
        for _ in range(turns_of_each):
            prompt += array("Q", [chance.getrandbits(64) for _ in range(20)]).tobytes()
            known.tell(prompt, after)
            after = len(prompt) // HASH_BYTES
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    here = [
        tracemalloc.Filter(inclusive=True, filename_pattern=file) for file in (known_paths.__file__, __file__)
    ]
    taken = sum(trace.size for trace in snapshot.filter_traces(here).traces)
    assert 0.5 * known.size_bytes < taken < 1.2 * known.size_bytes
