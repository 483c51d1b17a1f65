"""Rules that contradict each other, and the window in blocks."""

from typing import Any

import pytest

from loadtest.engine.kv.rules import CacheRules

WINDOWS: dict[str, Any] = {"attention": "sliding_window", "swa_tokens": 1000, "window_tokens": 128}


@pytest.mark.parametrize(
    ("bad", "about"),
    [
        ({"full_tokens": 0}, "full_tokens"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"decode_release_tokens": 0}, "decode_release_tokens"),
        ({"window_tokens": 128}, "full"),
        ({"swa_tokens": 1000}, "full"),
        ({**WINDOWS, "window_tokens": 0}, "sliding_window"),
        ({**WINDOWS, "swa_tokens": 0}, "sliding_window"),
        ({"attention": "linear"}, "state_slots"),
        ({"state_slots": 5}, "state_slots"),
        ({"chunk_tokens": -1}, "chunk_tokens"),
        ({"retained_interval_tokens": -1}, "retained_interval_tokens"),
        ({**WINDOWS, "swa_groups": 0}, "swa_groups"),
        ({"context_tokens": 0.0}, "context_tokens"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(bad: dict[str, Any], about: str) -> None:
    with pytest.raises(ValueError, match=about):
        CacheRules(**{"full_tokens": 1000, **bad})


@pytest.mark.parametrize(
    ("rule", "window", "block", "blocks"),
    [
        ("sglang", 128, 64, 2),
        ("sglang", 129, 64, 3),
        ("sglang", 1, 64, 1),
        ("vllm", 128, 64, 2),
        ("vllm", 129, 64, 2),
        ("vllm", 130, 64, 3),
        ("vllm", 1, 64, 0),
    ],
)
def test_the_window_is_counted_in_whole_blocks(rule: Any, window: int, block: int, blocks: int) -> None:
    """SGLang wants W tokens, vLLM the W - 1 that the next token looks back on."""
    rules = CacheRules(
        full_tokens=1000, match_rule=rule, block_tokens=block, **{**WINDOWS, "window_tokens": window}
    )

    assert rules.window_blocks == blocks


def test_full_attention_needs_no_window() -> None:
    assert CacheRules(full_tokens=1000).window_blocks == 0
    assert CacheRules(full_tokens=1000, match_rule="vllm").window_blocks == 0
