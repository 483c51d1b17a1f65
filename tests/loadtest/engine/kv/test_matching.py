"""The window-safe length, as a table and beside both engines' rules read token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.matching import safe_blocks


def runs_of(drawing: str) -> list[tuple[int, bool]]:
    """Blocks one by one; a run per block is as good as any other cut."""
    return [(1, block == "#") for block in drawing]


@pytest.mark.parametrize(
    ("drawing", "window_blocks", "expected"),
    [
        ("######", 1, 6),
        ("##.###", 1, 6),
        ("##....", 1, 2),
        (".#.#..", 1, 4),
        ("......", 1, 0),
        ("######", 3, 6),
        ("##.###", 3, 6),
        ("##.##.", 3, 2),
        (".##...", 3, 0),
        (".###.#", 3, 4),
        (".###.##", 2, 7),
        ("", 2, 0),
        ("...", 0, 0),
    ],
)
def test_a_boundary_needs_a_whole_window_or_everything_before_it(
    drawing: str, window_blocks: int, expected: int
) -> None:
    assert safe_blocks(runs_of(drawing), window_blocks) == expected


def sglang(drawing: str, block_tokens: int, window_tokens: int) -> int:
    """Whole tokens: no tombstone before p, or W live tokens in a row end at p."""
    tokens = "".join(block * block_tokens for block in drawing)
    best = 0
    for p in range(0, len(tokens) + 1, block_tokens):
        run = len(tokens[:p]) - len(tokens[:p].rstrip("#"))
        if "." not in tokens[:p] or run >= window_tokens:
            best = p
    return best // block_tokens


def vllm(drawing: str, block_tokens: int, window_tokens: int) -> int:
    """Right to left for ceil((W - 1) / block) blocks in a row; a shorter run from block 0 counts."""
    needed = -(-(window_tokens - 1) // block_tokens)
    run = 0
    for at in range(len(drawing) - 1, -1, -1):
        run = run + 1 if drawing[at] == "#" else 0
        if run >= needed:
            return at + run
    return run


@given(
    runs=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=8),
    block_tokens=st.integers(1, 5),
    window_tokens=st.integers(2, 12),
)
def test_both_engines_rules_are_one_rule_with_two_windows(
    runs: list[tuple[int, bool]], block_tokens: int, window_tokens: int
) -> None:
    drawing = "".join(("#" if has_window else ".") * blocks for blocks, has_window in runs)

    assert safe_blocks(runs, -(-window_tokens // block_tokens)) == sglang(
        drawing, block_tokens, window_tokens
    )
    assert safe_blocks(runs, -(-(window_tokens - 1) // block_tokens)) == vllm(
        drawing, block_tokens, window_tokens
    )
