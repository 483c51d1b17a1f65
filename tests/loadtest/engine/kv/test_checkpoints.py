"""States of linear layers: where they are saved, and which go."""

import random

from fakes.kv_requests import BLOCK, Shadow, admitted, blocks_of, compute, linear, matched, run
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.cache import KvCache


def states(cache: KvCache) -> list[int]:
    """Boundaries of all states, in blocks."""
    return sorted(node.end for node in cache.tree.nodes() if node.state is not None)


def test_a_sequence_can_be_continued_at_its_end_and_nowhere_before() -> None:
    cache = linear(100, 10)
    run(cache, "abcd", answer="ef")

    assert states(cache) == [6]
    assert matched(cache, "abcdefg") == 6
    assert matched(cache, "abcdX") == 0


def test_the_second_prompt_to_branch_off_saves_a_state_where_it_does() -> None:
    """Marconi: the first cannot know, the second finds out by inserting speculatively, the third profits."""
    cache = linear(100, 10)
    run(cache, "systemA")
    assert run(cache, "systemB") == 0
    assert states(cache) == [6, 7, 7]
    assert run(cache, "systemC") == 6
    assert states(cache) == [6, 7, 7, 7]


def test_at_most_two_states_per_sequence() -> None:
    cache = linear(1000, 100)
    texts = random.Random(1)
    for number in range(1, 30):
        run(cache, "".join(texts.choice("ab") for _ in range(8)))
        assert len(states(cache)) <= 2 * number


def test_states_at_fixed_positions_are_saved_where_engines_keep_them() -> None:
    """Every 12 tokens: after blocks 3 and 6, for any chunks of the prompt."""
    cache = linear(100, 10, retained_interval_tokens=12, chunk_tokens=20)
    run(cache, "abcdefg")

    assert states(cache) == [3, 6, 7]
    assert matched(cache, "abcdX") == 3


def test_a_request_that_was_given_up_leaves_no_state_at_its_end() -> None:
    cache = linear(100, 10)
    lease = admitted(cache, "abcd")
    compute(cache, lease)
    cache.abort(lease, 0.0)

    assert states(cache) == []
    assert matched(cache, "abcd") == 0


def test_of_states_of_one_length_the_one_used_longest_ago_goes() -> None:
    cache = linear(100, 2)
    run(cache, "aaaa")
    run(cache, "bbbb")
    run(cache, "aaaa")
    run(cache, "cccc")

    assert [matched(cache, text * 4) for text in "abc"] == [4, 0, 4]


def test_a_state_counts_as_used_when_it_is_reused() -> None:
    cache = linear(100, 2)
    run(cache, "aaaa")
    run(cache, "bbbb")
    cache.abort(admitted(cache, "aaaac"), 0.0)
    run(cache, "cccc")

    assert [matched(cache, text * 4) for text in "abc"] == [4, 0, 4]


def test_a_state_that_saves_more_outlives_one_that_was_used_later() -> None:
    """Ages are 1 for the long one, 0 for the last; the middle one has neither age nor savings."""
    cache = linear(100, 3)
    run(cache, "a" * 20)
    run(cache, "bb")
    run(cache, "cc")
    run(cache, "dd")

    assert matched(cache, "a" * 20) == 20
    assert (matched(cache, "bb"), matched(cache, "cc"), matched(cache, "dd")) == (0, 2, 2)


def test_savings_grow_faster_than_length_where_attention_is_quadratic() -> None:
    """Ages are 0, 1/2 and 1. The middle one saves 0.63 of the scale, and with c0 = 1 it saves 0.47."""

    def middle_survives(context_tokens: float) -> bool:
        cache = linear(100, 3, context_tokens=context_tokens)
        for text in ("a" * 20, "b" * 14, "c" * 4, "d" * 4):
            run(cache, text)
        return matched(cache, "b" * 14) == 14

    assert middle_survives(1e9)
    assert not middle_survives(1.0)


def test_a_leaf_whose_state_goes_is_dropped_up_to_the_next_state() -> None:
    cache = linear(100, 2)
    run(cache, "ab")
    run(cache, "abcdef")
    run(cache, "xy")
    run(cache, "z" * 20)

    assert cache.held_tokens == sum(
        node.blocks * BLOCK for node in cache.tree.nodes() if node.state is not None or node.children
    )
    assert len(states(cache)) == 2


def test_full_kv_that_goes_frees_the_slot_of_its_state() -> None:
    cache = linear(10, 8)
    for text in ("aaaa", "bbbb", "cccc", "dddd"):
        run(cache, text)

    assert matched(cache, "aaaa") == 0
    assert matched(cache, "dddd") == 4
    assert len(states(cache)) == cache.held_tokens // (4 * BLOCK)


def test_a_state_in_use_may_be_evicted_but_not_the_path_to_it() -> None:
    cache = linear(100, 1)
    run(cache, "aaaa")
    running = admitted(cache, "aaaab", output_tokens=4)
    assert running.matched_tokens == 16
    run(cache, "cccc")

    assert states(cache) == [4]
    compute(cache, running)
    cache.close(running, blocks_of("aaaab"), 20, 0.0)
    assert matched(cache, "aaaab") == 5


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=9), st.booleans()), max_size=30))
def test_a_match_ends_at_the_deepest_state_that_events_speak_of(requests: list[tuple[str, bool]]) -> None:
    cache = linear(14, 3, shadow := Shadow(), match_rule="vllm")
    for text, well in requests:
        saved = shadow.holds(text, "linear")
        expected = saved[: len(text)].rfind("#") + 1
        lease = admitted(cache, text)
        assert lease.matched_tokens == expected * BLOCK
        compute(cache, lease)
        if well:
            cache.close(lease, blocks_of(text), len(text) * BLOCK, 0.0)
        else:
            cache.abort(lease, 0.0)
        pool = cache.device.full
        assert pool.free >= 0
        assert pool.used == 0
        assert len(states(cache)) == len(shadow.groups["linear"]) <= 3
        assert pool.held == len(shadow.groups["full"]) * BLOCK
