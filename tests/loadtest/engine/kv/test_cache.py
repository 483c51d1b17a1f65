"""The front door, by the life of single requests; random lives are in test_against_naive.py."""

import pytest
from fakes.kv_requests import BLOCK, admitted, begin, blocks_of, compute, dense, linear, matched, run, sliding


def test_a_repeated_prompt_is_reused_up_to_the_last_whole_block() -> None:
    cache = dense(100)

    assert run(cache, "abc") == 0
    assert run(cache, "abc") == 3
    assert run(cache, "abd") == 2
    assert cache.held_tokens == 4 * BLOCK


def test_the_last_token_is_always_recomputed() -> None:
    cache = dense(100)
    run(cache, "abc")

    assert cache.match_tokens(blocks_of("abc"), 3 * BLOCK) == 2 * BLOCK
    assert cache.match_tokens(blocks_of("abc"), 3 * BLOCK + 1) == 3 * BLOCK
    assert admitted(cache, "abc", tail=0).matched_tokens == 2 * BLOCK


def test_an_answer_can_be_reused_but_for_its_last_token() -> None:
    """The last sampled token was never computed: of three blocks of answer, two are whole without it."""
    cache = dense(100)
    lease = admitted(cache, "ab", output_tokens=12, tail=0)
    compute(cache, lease)
    cache.close(lease, blocks_of("abxyz"), 5 * BLOCK - 1, 0.0)

    assert matched(cache, "abxyz") == 4


def test_asking_for_a_match_changes_nothing() -> None:
    """The asked prompt is the older one: it must still be the first to go."""
    cache = dense(4)
    run(cache, "aa")
    run(cache, "b")
    before = {node.key: node.used for node in cache.tree.nodes()}

    assert matched(cache, "aac") == 2
    assert matched(cache, "ab") == 1
    assert {node.key: node.used for node in cache.tree.nodes()} == before


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    cache = dense(5)
    run(cache, "aaa")
    before = repr(sorted(cache.tree.nodes(), key=lambda node: node.key))

    assert begin(cache, "ab", output_tokens=4 * BLOCK) is None
    assert cache.used_tokens == 0
    assert repr(sorted(cache.tree.nodes(), key=lambda node: node.key)) == before
    assert begin(cache, "ab", output_tokens=2 * BLOCK) is not None


def test_a_request_may_be_admitted_when_others_have_ended() -> None:
    cache = dense(5)
    first = admitted(cache, "aaa", output_tokens=4)
    waiting = cache.open(blocks_of("bbb"), 13, 4, 0.0)

    assert not cache.admit(waiting, 0.0)
    cache.abort(first, 1.0)
    assert cache.admit(waiting, 1.0)


def test_two_requests_that_compute_the_same_blocks_keep_one_copy() -> None:
    cache = dense(100)
    first, second = admitted(cache, "ab"), admitted(cache, "ab")
    assert second.matched_tokens == 0
    assert cache.used_tokens == 18
    compute(cache, first)
    compute(cache, second)

    assert cache.held_tokens == 8
    assert cache.used_tokens == 10


@pytest.mark.parametrize("make", [lambda: dense(100), lambda: sliding(100, 100), lambda: linear(100, 4)])
def test_whatever_state_it_is_in_a_request_gives_back_everything_once(make: object) -> None:
    cache = make()  # type: ignore[operator]
    opened = cache.open(blocks_of("aaaa"), 17, 9, 0.0)
    fresh, half, decoding = (admitted(cache, text, output_tokens=40) for text in ("bbbb", "cccccc", "dddd"))
    cache.computed(half, 16, 0.0)
    compute(cache, decoding)
    cache.decoded(decoding, 40, 0.0)
    for lease in (opened, fresh, half, decoding):
        cache.abort(lease, 0.0)
        cache.abort(lease, 0.0)

    assert cache.used_tokens == cache.swa_used_tokens == cache.device.swa.committed == 0
    assert cache.held_tokens == 8 * BLOCK


def test_what_a_request_computed_before_it_was_given_up_stays() -> None:
    cache = dense(100)
    lease = admitted(cache, "abcd")
    cache.computed(lease, 2 * BLOCK + 1, 0.0)
    cache.abort(lease, 0.0)

    assert matched(cache, "abcd") == 2


def test_reach_tells_what_is_held_from_what_can_be_reused() -> None:
    """The tail of the sequence is complete; the prompt that leaves it before has a match but no window."""
    cache = sliding(100, 100)
    run(cache, "abcdefgh")

    assert cache.reach_tokens(blocks_of("abcdefghi"), 37) == (8 * BLOCK, 8 * BLOCK)
    assert cache.reach_tokens(blocks_of("abX"), 13) == (0, 2 * BLOCK)


def test_clear_keeps_only_what_is_in_use() -> None:
    cache = dense(100)
    run(cache, "ab")
    running = admitted(cache, "ac")

    assert not cache.clear()
    assert cache.held_tokens == BLOCK
    cache.abort(running, 0.0)
    assert cache.clear()
    assert cache.held_tokens == 0


def test_the_sizes_it_reports_are_those_of_its_pools() -> None:
    cache = sliding(30, 20)
    lease = admitted(cache, "abcdef")
    compute(cache, lease)

    assert (cache.capacity_tokens, cache.swa_capacity_tokens) == (120, 80)
    assert (cache.held_tokens, cache.device.swa.held) == (24, 20)
    assert cache.used_tokens == 25
    assert cache.swa_used_tokens == 2 * BLOCK + 1
