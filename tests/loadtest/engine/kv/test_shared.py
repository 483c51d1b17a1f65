"""vLLM's one pool for full KV and window KV."""

from fakes.kv_requests import BLOCK, admitted, begin, compute, live, matched, run, sliding


def test_both_kinds_of_kv_take_room_from_one_pool() -> None:
    """20 + 2 * 10 blocks: a prompt of eight takes eight, and its last window of two takes four."""
    cache = sliding(20, 10, match_rule="vllm", swa_groups=2)
    run(cache, "abcdefgh")

    assert cache.capacity_tokens == 40 * BLOCK
    assert live(cache, "abcdefgh") == "......##"
    assert (cache.held_tokens, cache.device.swa.held) == (8 * BLOCK, 2 * BLOCK)


def test_a_long_prompt_may_use_room_that_windows_do_not_need() -> None:
    """Thirty blocks do not fit SGLang's full pool of twenty, but vLLM's pool of forty-four."""
    text = "abcdefghijklmnopqrstuvwxyzABCD"

    assert begin(sliding(20, 24), text) is None
    assert begin(sliding(20, 24, match_rule="vllm"), text) is not None


def test_a_request_needs_room_for_its_window_in_every_group() -> None:
    """Twelve blocks and a token, and eleven in each of the groups: a window, a step, and the one planned."""
    text = "abcdefghijkl"
    assert begin(sliding(13, 11, match_rule="vllm"), text) is not None
    assert begin(sliding(13, 10, match_rule="vllm"), text) is None
    assert begin(sliding(13, 10, match_rule="vllm", swa_groups=3), text) is None
    assert begin(sliding(16, 10, match_rule="vllm", swa_groups=3), text) is not None


def test_full_kv_stays_when_its_window_is_evicted() -> None:
    """SGLang drops a leaf without window; in vLLM its blocks wait for their own turn."""
    cache = sliding(20, 8, match_rule="vllm", swa_release="pressure")
    run(cache, "abcdefgh")
    running = admitted(cache, "ABCDEFGH")
    compute(cache, running)

    assert live(cache, "abcdefgh").startswith("....")
    assert len(live(cache, "abcdefgh")) == 8


def test_no_more_of_a_tail_goes_than_is_needed() -> None:
    """44 tokens: 24 are held and 27 wanted. A block with its window in two groups gives twelve."""
    cache = sliding(3, 4, match_rule="vllm", swa_groups=2)
    run(cache, "ab")
    admitted(cache, "XY")

    assert live(cache, "ab") == "#"


def test_of_one_request_full_kv_goes_before_its_last_window() -> None:
    """Its group is freed first, from the tail; so the tail of the match is lost, not only the window."""
    cache = sliding(9, 8, match_rule="vllm")
    run(cache, "abcdefgh")
    run(cache, "ABCDE")

    assert live(cache, "abcdefgh") == "......##"[: len(live(cache, "abcdefgh"))]
    assert len(live(cache, "abcdefgh")) < 8 or matched(cache, "abcdefgh") == 8


def test_locked_and_reserved_room_is_never_given_away() -> None:
    cache = sliding(16, 8, match_rule="vllm")
    first = admitted(cache, "abcd", output_tokens=8)
    compute(cache, first)
    second = begin(cache, "ABCD", output_tokens=8)

    assert cache.used_tokens <= cache.capacity_tokens
    assert live(cache, "abcd")[-2:] == "##"
    if second is not None:
        compute(cache, second)
        assert live(cache, "ABCD")[-2:] == "##"
