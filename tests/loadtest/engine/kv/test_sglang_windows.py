"""Windows that SGLang keeps, by its own code and by hand."""

import pytest
from fakes.kv_requests import BLOCK, admitted, blocks_of, compute, live, matched, run, sliding
from fakes.sglang_cache import drawn, reused_by_model, reused_by_sglang

from loadtest.engine.kv.rules import CacheRules

LONG = "abcdefghijkl"
"""Three chunks of four blocks; the window is two."""


@pytest.mark.parametrize(("chunks", "left"), [(1, ".###"), (2, ".###.###"), (3, ".###.###..##")])
def test_windows_stay_at_chunk_ends(chunks: int, left: str) -> None:
    """A chunk that ends with a page keeps a page more; the last one ends a token behind its page."""
    cache = sliding(100, 100)
    lease = admitted(cache, LONG)
    for chunk in range(1, chunks + 1):
        cache.computed(lease, min(chunk * 4 * BLOCK + chunk // 3, lease.prompt_tokens), 0.0)

    assert live(cache, LONG[: chunks * 4]) == left


def test_the_second_prompt_to_leave_a_sequence_keeps_the_window_where_it_does() -> None:
    """The first cannot know, the second pays, the third goes on from there."""
    cache = sliding(100, 100)
    run(cache, LONG)

    assert run(cache, LONG[:6] + "X") == 4  # at the chunk end before it
    assert run(cache, LONG[:6] + "Y") == 6


def test_of_a_chunk_that_passes_the_branch_the_end_comes_with_the_answer() -> None:
    """The third block of the prompt's end is released before the answer is there."""
    cache = sliding(100, 100, decode_release_tokens=2 * BLOCK)
    run(cache, LONG)
    lease = admitted(cache, LONG[:6] + "X", output_tokens=20 * BLOCK)
    compute(cache, lease)
    assert live(cache, LONG[:6] + "X") == ".#####"

    whole = LONG[:6] + "X" + "mnopqrstuvwx"
    cache.close(lease, blocks_of(whole), len(whole) * BLOCK, 0.0)
    assert matched(cache, LONG[:6] + "Xz") == 6
    assert matched(cache, whole + "z") == len(whole)


def test_windows_at_fixed_positions_stay() -> None:
    """Every 20 tokens: boundaries 5 and 10, beside the chunk ends 4 and 8; together they bridge 6."""
    cache = sliding(100, 100, retained_interval_tokens=20)
    run(cache, LONG)

    assert [matched(cache, LONG[:at] + "X") for at in (4, 5, 6, 8, 10)] == [4, 5, 6, 8, 10]


@pytest.mark.parametrize(
    ("page", "window", "chunk", "released"),
    [(4, 8, 16, 8), (4, 6, 12, 5), (8, 8, 32, 16), (64, 128, 512, 128)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_sglangs_own_cache_reuses_the_same(
    page: int, window: int, chunk: int, released: int, seed: int
) -> None:
    requests = drawn(seed, page, 15 * page)
    rules = CacheRules(
        full_tokens=10**8,
        swa_tokens=10**8,
        attention="sliding_window",
        block_tokens=page,
        window_tokens=window,
        chunk_tokens=chunk,
        decode_release_tokens=released,
    )

    assert reused_by_model(requests, rules) == reused_by_sglang(
        requests, page=page, window=window, chunk=chunk, released=released, linear=False, track=page
    )
