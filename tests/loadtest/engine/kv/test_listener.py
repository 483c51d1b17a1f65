"""KV events by the rule of each engine."""

from fakes.kv_requests import BLOCK, Shadow, admitted, compute, dense, linear, live, matched, run, sliding

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules


def test_blocks_are_stored_once_and_removed_once() -> None:
    cache = dense(5, shadow := Shadow())
    run(cache, "abc")
    run(cache, "abd")
    assert shadow.holds("abc") == shadow.holds("abd") == "###"

    run(cache, "xy")
    assert shadow.holds("abc") == "##."
    assert shadow.holds("abd") == "##."
    assert shadow.holds("xy") == "##"
    assert len(shadow.groups["full"]) * BLOCK == cache.held_tokens


def test_sglang_says_nothing_of_windows_so_its_events_promise_too_much() -> None:
    """The index believes in six blocks of the prompt, but not even one can be reused behind the second."""
    cache = sliding(100, 100, shadow := Shadow())
    run(cache, "abcdefgh")

    assert live(cache, "abcdefgh") == ".###.###"
    assert shadow.holds("abcdef") == "######"
    assert matched(cache, "abcdef") == 4
    assert matched(cache, "ab") == 0
    assert not shadow.groups["sliding_window"]


def test_vllm_speaks_of_each_group() -> None:
    cache = sliding(100, 100, shadow := Shadow(), match_rule="vllm")
    run(cache, "abcdefgh")

    assert shadow.holds("abcdefgh") == "########"
    assert shadow.holds("abcdefgh", "sliding_window") == live(cache, "abcdefgh") == "......##"


def test_vllm_speaks_of_states() -> None:
    cache = linear(100, 2, shadow := Shadow(), match_rule="vllm")
    run(cache, "abcd")
    run(cache, "abxy")

    assert shadow.holds("abcd", "linear") + shadow.holds("abxy", "linear") in (
        ".#...#.#",
        "...#.#.#",
        ".#.#.#..",
    )
    assert len(shadow.groups["linear"]) == 2


def test_an_empty_cache_says_so_once() -> None:
    cache = dense(10, shadow := Shadow())
    run(cache, "abc")
    running = admitted(cache, "xyz")
    compute(cache, running)
    assert not cache.clear()
    assert (shadow.clears, shadow.holds("abc"), shadow.holds("xyz")) == (0, "...", "###")

    cache.abort(running, 0.0)
    assert cache.clear()
    assert (shadow.clears, shadow.holds("xyz")) == (1, "...")


def test_a_listener_may_ignore_everything() -> None:
    cache = KvCache(CacheRules(full_tokens=10 * BLOCK, block_tokens=BLOCK), KvListener())

    assert run(cache, "abc") == 0
