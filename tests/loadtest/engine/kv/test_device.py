"""Locks and eviction on the device."""

from fakes.kv_requests import BLOCK, admitted, begin, compute, dense, live, matched, run, sliding


def test_the_least_recently_used_tail_goes_first() -> None:
    """Ten blocks: of 4 + 4 + 4 and a token, three blocks of the oldest prompt have to go."""
    cache = dense(10)
    run(cache, "aaaa")
    run(cache, "bbbb")
    run(cache, "cccc")

    assert cache.evicted_tokens == 3 * BLOCK
    assert run(cache, "cccc") == 4
    assert run(cache, "bbbb") == 4
    assert run(cache, "aaaa") == 1


def test_a_prefix_counts_as_used_when_what_continues_it_is() -> None:
    cache = dense(7)
    run(cache, "ab")
    run(cache, "xy")
    run(cache, "abc")
    run(cache, "zz")

    assert matched(cache, "abc") == 3
    assert matched(cache, "xy") < 2


def test_what_a_running_request_uses_is_not_evicted() -> None:
    cache = dense(5)
    running = admitted(cache, "aa", output_tokens=3)
    compute(cache, running)

    assert cache.used_tokens == 12
    assert begin(cache, "bb") is None
    assert cache.held_tokens == 8
    cache.abort(running, 0.0)
    assert run(cache, "bb") == 0
    assert cache.used_tokens == 0


def test_a_shared_prefix_is_locked_until_the_last_lease_goes() -> None:
    cache = dense(20)
    run(cache, "ab")
    first, second = admitted(cache, "abc"), admitted(cache, "abd")
    assert cache.device.full.locked == 2 * BLOCK

    cache.abort(first, 0.0)
    assert cache.device.full.locked == 2 * BLOCK
    cache.abort(second, 0.0)
    assert cache.device.full.locked == 0


def test_window_kv_goes_from_the_head_of_what_was_used_longest_ago() -> None:
    """Both prompts are live throughout: there is room for all but the oldest block."""
    cache = sliding(100, 16, swa_release="pressure")
    run(cache, "abcdefgh")
    run(cache, "ABCDEFGH")
    assert live(cache, "abcdefgh") + live(cache, "ABCDEFGH") == ".########" + "#######"


def test_a_leaf_that_loses_its_window_goes_with_the_tombstones_above_it() -> None:
    """A tombstone without a continuation gives no reuse."""
    cache = sliding(100, 11, chunk_tokens=9 * BLOCK)
    run(cache, "abcdefgh")
    assert live(cache, "abcdefgh") == "......##"
    run(cache, "ABCDEFGH")
    run(cache, "ijklmnop")

    assert live(cache, "abcdefgh") == ""
    assert live(cache, "ABCDEFGH") == "......##"
    assert cache.held_tokens == 16 * BLOCK


def test_a_window_that_something_continues_becomes_a_tombstone() -> None:
    cache = sliding(100, 12, chunk_tokens=9 * BLOCK)
    run(cache, "abcdefgh")
    run(cache, "abcdefghijklmnop")
    assert live(cache, "abcdefghijklmnop") == "......##......##"
    run(cache, "ABCDEFGH")

    assert live(cache, "abcdefghijklmnop") == ".......#......##"
    assert matched(cache, "abcdefghijklmnop") == 16


def test_full_kv_that_goes_takes_its_window_along() -> None:
    cache = sliding(12, 50, chunk_tokens=9 * BLOCK)
    run(cache, "abcdefgh")
    run(cache, "ABCDEFGH")

    assert live(cache, "abcdefgh") == ""
    assert cache.device.swa.held == 2 * BLOCK
    assert cache.device.swa.evicted == 2 * BLOCK


def test_the_window_of_a_running_request_is_not_evicted() -> None:
    cache = sliding(100, 13)
    running = admitted(cache, "abcdefgh", output_tokens=4)
    compute(cache, running)
    for other in ("ABCDEFGH", "ijklmnop", "IJKLMNOP"):
        if (lease := begin(cache, other)) is not None:
            compute(cache, lease)
            cache.abort(lease, 0.0)

    assert live(cache, "abcdefgh")[-2:] == "##"
    assert cache.device.swa.locked == 2 * BLOCK


def test_of_a_running_request_the_window_may_go_that_it_needs_no_more() -> None:
    """Its answer has left the window, which only stays for others; the full KV below it is in use."""
    cache = sliding(100, 20, swa_release="pressure", retained_interval_tokens=16)
    running = admitted(cache, "abcd", output_tokens=40, tail=0)
    compute(cache, running)
    cache.decoded(running, 40, 0.0)
    assert live(cache, "abcd") == "####"
    for other in ("ABCDEFGH", "ijklmnop", "IJKLMNOP"):
        run(cache, other)

    assert live(cache, "abcd") == "...."
    assert cache.device.full.locked == 4 * BLOCK


def test_room_in_both_pools_is_needed() -> None:
    """A request needs its window of two blocks and a step of five in the window pool."""
    wide, narrow = sliding(100, 7), sliding(100, 6)

    assert begin(wide, "abcdefghi") is not None
    assert begin(narrow, "abcdefghi") is None
    assert begin(sliding(8, 100), "abcdefghi") is None


def test_a_use_refreshes_only_the_window_that_it_needs() -> None:
    """SGLang's unified cache: blocks before the last W tokens and a block stay the first to go."""
    cache = sliding(100, 19, swa_release="pressure")
    run(cache, "abcdefgh")
    run(cache, "ABCDEFGH")
    run(cache, "abcdefgh")
    admitted(cache, "xxxx")

    assert live(cache, "abcdefgh") == "..######"
    assert live(cache, "ABCDEFGH") == "########"
