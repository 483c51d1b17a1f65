"""The benchmark of the KV cache runs the requests that it speaks of."""

from dataclasses import replace

import pytest

from loadtest.bench import kv_cache as bench


@pytest.mark.parametrize("name", bench.CASES)
def test_sessions_that_fit_reuse_all_but_what_a_turn_adds(name: str) -> None:
    """Two turns of two sessions: the second turn reuses the first, and one session the other's head.

    Half of what a turn adds was the answer, which is reused as well, but not by vLLM's rule. The common head
    can be reused at once only if windows are kept in it: up to block 200, or to position 12,288.
    """
    seconds, hit_ratio, cache = bench.measure(bench.CASES[name], turns=2, sessions=2)

    prompts = 2 * (1_600 + 1_620)
    turn = 1_600 if name == "windows, vLLM" else 1_610
    head = {"full attention": 200, "windows, pressure": 200, "windows, every 4096": 192}.get(name, 0)
    reused = head + 2 * turn
    assert hit_ratio == pytest.approx(reused / prompts, rel=1e-3)
    assert seconds >= 0
    assert cache.used_tokens == 0


def test_half_the_room_evicts() -> None:
    rules = replace(bench.CASES["full attention"], full_tokens=2_000 * bench.BLOCK_TOKENS)

    assert bench.measure(rules, turns=2, sessions=2)[2].evicted_tokens > 0
