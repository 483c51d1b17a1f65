"""The most that caches could have reused."""

import os
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.bounds import hit_curve, hit_ratio, infinite_hit_tokens, pooled_lru_hit_tokens
from loadtest.simulator.mooncake import read_mooncake
from loadtest.simulator.readers import ReadOptions, read_auto
from loadtest.simulator.workload import SimRequest

# The public traces lie beside the repository of a developer, never inside it.
TRACES = Path(os.environ.get("CACHEWAY_TEST_TRACES", Path(__file__).parents[4] / "shared/traces"))


def traced(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs {name} of the public traces (CACHEWAY_TEST_TRACES)")
    return path


def request(*ids: int, tokens: int | None = None, answer: int = 0) -> SimRequest:
    """A request in blocks of four tokens; an id stands for its whole prefix."""
    blocks = b"".join(one.to_bytes(8, "little") for one in ids)
    held = b"".join(one.to_bytes(8, "little") for one in range(900, 900 + answer))
    return SimRequest(blocks, 4 * len(ids) if tokens is None else tokens, 4 * answer + 1, held)


def test_an_infinite_cache_reuses_the_longest_prefix_seen_and_leaves_the_last_token() -> None:
    """If a prompt of two full blocks was seen before, one is reused: its last token is computed again."""
    requests = [request(1, 2), request(1, 2), request(1, 2, 3), request(1, 9), request(1, 2, tokens=9)]

    assert infinite_hit_tokens(requests, block_tokens=4).tolist() == [0, 4, 8, 4, 8]


def test_answers_are_reused_unless_they_are_not_counted() -> None:
    requests = [request(1, answer=1), request(1, 900, 3)]

    assert infinite_hit_tokens(requests, block_tokens=4).tolist() == [0, 8]
    assert infinite_hit_tokens(requests, answers=False, block_tokens=4).tolist() == [0, 4]


def test_a_pooled_cache_forgets_tails_before_heads_and_old_before_new() -> None:
    """Room for three blocks: 1 2 3, then 4 pushes out 3, which is used least recently and deepest."""
    requests = [request(1, 2, 3), request(4), request(1, 2, 3, 8), request(4, 5)]

    assert pooled_lru_hit_tokens(requests, 12, block_tokens=4).tolist() == [0, 0, 8, 0]


def test_a_ratio_is_weighted_by_prompt_tokens() -> None:
    requests = [request(1), request(1, 2, 3)]

    assert hit_ratio(requests, infinite_hit_tokens(requests, block_tokens=4)) == 4 / 16
    assert hit_ratio([], infinite_hit_tokens([])) == 0.0


def test_a_curve_rises_from_nothing_to_the_infinite_cache() -> None:
    requests = [request(n % 5, 10 + n % 5, 20 + n % 5) for n in range(50)]

    curve = hit_curve(requests, [0, 16, 1 << 20], block_tokens=4)

    assert curve[0] == 0.0
    assert curve == sorted(curve)
    assert curve[-1] == hit_ratio(requests, infinite_hit_tokens(requests, block_tokens=4))


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=30)


@given(PROMPTS, st.integers(0, 12))
def test_both_bounds_agree_with_a_plain_list_of_prefixes(prompts: list[list[int]], room: int) -> None:
    """Beside a model that keeps every prefix with its time of use and drops the oldest, deepest first."""
    requests = [
        request(
            *(
                1 + sum(part * 3**place + 3**place for place, part in enumerate(prompt[:end]))
                for end in range(1, len(prompt) + 1)
            ),
            tokens=4 * len(prompt) + 1,
        )
        for prompt in prompts
    ]
    infinite: list[int] = []
    pooled: list[int] = []
    seen: set[tuple[int, ...]] = set()
    used: dict[tuple[int, ...], int] = {}
    for at, prompt in enumerate(prompts):
        prefixes = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        infinite.append(4 * len(list(takewhile(seen.__contains__, prefixes))))
        pooled.append(4 * len(list(takewhile(used.__contains__, prefixes))))
        seen.update(prefixes)
        used |= dict.fromkeys(prefixes, at)
        keep = sorted(used, key=lambda prefix: (-used[prefix], len(prefix)))[:room]
        used = {prefix: used[prefix] for prefix in keep}

    assert infinite_hit_tokens(requests, block_tokens=4).tolist() == infinite
    assert pooled_lru_hit_tokens(requests, 4 * room, block_tokens=4).tolist() == pooled


def test_the_mooncake_trace_reuses_what_its_publishers_count() -> None:
    """Their table is of 512-token blocks; with 64 a little more fits, and partial blocks are cut finer."""
    requests = read_mooncake(traced("mooncake_conversation_first60.jsonl.gz")).in_order()

    ideal = hit_ratio(requests, infinite_hit_tokens(requests, answers=False))
    curve = hit_curve(requests, [1 << 20, 4 << 20, 16 << 20, 64 << 20], answers=False)

    assert ideal == pytest.approx(0.355, abs=0.001)
    assert curve == pytest.approx([0.056, 0.179, 0.331, 0.355], abs=0.006)


def test_the_agentic_sessions_reuse_what_their_publishers_count() -> None:
    """96.2 % of all sessions, without sharing between them; a fifth of them are within a percent of it."""
    path = traced("weka_agentic_setA.jsonl.zst")
    requests = read_auto(path, ReadOptions(sessions=70)).in_order()

    assert hit_ratio(requests, infinite_hit_tokens(requests, answers=False)) == pytest.approx(0.962, abs=0.01)
