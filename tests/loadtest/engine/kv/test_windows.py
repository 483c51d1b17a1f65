"""Windows that requests leave behind, and the boundaries to which they may come back."""

from fakes.kv_requests import BLOCK, admitted, blocks_of, compute, live, matched, run, sliding

LONG = "abcdefghijkl"
"""Three chunks of four blocks; the window is two."""


def test_a_request_that_goes_on_from_an_end_reuses_all_of_it() -> None:
    cache = sliding(100, 100)
    run(cache, LONG)

    assert run(cache, LONG + "mn") == 12
    assert run(cache, LONG + "mnopqr") == 14


def test_an_end_inside_a_block_keeps_the_boundary_before_it_usable() -> None:
    """With the window alone, the two blocks before the boundary would not both be left."""
    for tail in range(BLOCK):
        cache = sliding(100, 100)
        lease = admitted(cache, LONG, tail=1)
        compute(cache, lease)
        cache.close(lease, blocks_of(LONG), len(LONG) * BLOCK + tail, 0.0)
        assert matched(cache, LONG + "m") == 12


def test_of_an_answer_only_the_end_stays_whatever_the_rule() -> None:
    for release in ("window", "pressure"):
        cache = sliding(100, 100, swa_release=release)
        run(cache, "abcd", answer="efghijkl")
        assert live(cache, LONG)[4:] == ".....###"
        assert matched(cache, LONG) == 12


def test_a_leaf_is_freed_as_far_as_its_answer_has_left_it() -> None:
    """The request locks only the last window; the blocks before it wait for their turn."""
    cache = sliding(100, 100, swa_release="pressure")
    lease = admitted(cache, LONG[:8], output_tokens=40, tail=0)
    compute(cache, lease)
    cache.decoded(lease, 40, 0.0)

    assert live(cache, LONG[:8]) == "######.."


def test_the_window_that_a_known_sequence_goes_through_is_left_to_eviction() -> None:
    """SGLang unlocks it, but frees only leaves; here blocks 3 and 4 are continued, 5 and 6 are not."""
    cache = sliding(100, 100, swa_release="pressure", window_tokens=16)
    run(cache, "abcdXY")
    lease = admitted(cache, "abcdef", output_tokens=60, tail=0)
    compute(cache, lease)
    assert live(cache, "abcdef") == "######"
    cache.decoded(lease, 60, 0.0)

    assert live(cache, "abcdef") == "####.."
    assert cache.device.swa.locked == 0


def test_a_running_request_has_room_for_its_window_and_a_step() -> None:
    """Two blocks of window in the tree, and beside it a chunk of four and the block that it may end in."""
    cache = sliding(100, 100)
    lease = admitted(cache, LONG * 2)
    assert cache.swa_used_tokens == 5 * BLOCK

    cache.computed(lease, 16 * BLOCK, 0.0)
    assert cache.swa_used_tokens == 7 * BLOCK
    assert cache.device.swa.committed == 7 * BLOCK
    cache.computed(lease, 24 * BLOCK, 0.0)
    assert cache.swa_used_tokens == 2 * BLOCK + 1


def test_without_chunks_a_request_has_room_for_all_of_it() -> None:
    cache = sliding(100, 100, chunk_tokens=0)
    admitted(cache, LONG)

    assert cache.swa_used_tokens == 12 * BLOCK + 1


def test_an_answer_needs_room_for_a_window_and_what_is_released_late() -> None:
    """W and N and two blocks: 8 + 32 + 8."""
    cache = sliding(100, 100, decode_release_tokens=32)
    lease = admitted(cache, "abcd", output_tokens=200)
    compute(cache, lease)

    assert cache.device.swa.reserved == 48


def test_vllm_keeps_the_end_of_the_prompt_and_not_that_of_the_answer() -> None:
    """prefix_cache_retention_interval = 0: only the replay boundary, where the same prompt goes on."""
    cache = sliding(100, 100, match_rule="vllm")
    run(cache, LONG[:8], answer=LONG[8:])

    assert live(cache, LONG) == "......##...."
    assert matched(cache, LONG) == 8


def test_vllm_keeps_the_junction_where_prompts_part() -> None:
    """The second prompt leaves the first at block 5, computes it again, and keeps the window there."""
    cache = sliding(100, 100, match_rule="vllm")
    run(cache, LONG)
    assert run(cache, LONG[:5] + "STUVWX") == 0

    assert live(cache, LONG[:5] + "STUVWX") == "...##....##"
    assert run(cache, LONG[:5] + "yz") == 5


def test_vllm_keeps_windows_at_its_interval() -> None:
    cache = sliding(100, 100, match_rule="vllm", retained_interval_tokens=16)
    run(cache, LONG)

    assert live(cache, LONG) == "..##..##..##"


def test_vllm_keeps_everything_when_it_checkpoints_densely() -> None:
    cache = sliding(100, 100, match_rule="vllm", swa_release="pressure")
    run(cache, LONG[:8], answer=LONG[8:])

    assert live(cache, LONG) == "############"
