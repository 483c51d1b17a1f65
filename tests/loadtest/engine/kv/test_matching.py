"""The window-safe length, as a table and beside both engines' rules read token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.matching import safe_blocks
from loadtest.engine.kv.tree import Node


def path_of(*runs: str) -> list[Node]:
    """Runs of blocks: ``#`` with window KV on the device, ``h`` on the host, ``.`` without."""
    path: list[Node] = []
    for run in runs:
        node = Node(None, b"8 bytes." * len(run), path[-1].end if path else 0)
        node.swa, node.host_swa = run[0] == "#", run[0] == "h"
        path.append(node)
    return path


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
    """A run per block; how they are cut makes no difference, see below."""
    assert safe_blocks(path_of(*drawing), len(drawing), window_blocks) == expected


def test_the_match_may_end_inside_a_run() -> None:
    assert safe_blocks(path_of("..", "####"), 5, 3) == 5
    assert safe_blocks(path_of("..", "####"), 4, 3) == 0
    assert safe_blocks(path_of("####"), 2, 3) == 2


def test_window_kv_on_the_host_counts_if_asked_for() -> None:
    path = path_of("..", "#", "hh", "..", "h")

    assert safe_blocks(path, 8, 3) == 0
    assert safe_blocks(path, 8, 3, host=True) == 5
    assert safe_blocks(path, 8, 1, host=True) == 8


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
    cut = [("#" if has_window else ".") * blocks for blocks, has_window in runs]
    path, drawing = path_of(*cut), "".join(cut)
    needed, needed_by_vllm = -(-window_tokens // block_tokens), -(-(window_tokens - 1) // block_tokens)

    assert safe_blocks(path, len(drawing), needed) == sglang(drawing, block_tokens, window_tokens)
    assert safe_blocks(path, len(drawing), needed_by_vllm) == vllm(drawing, block_tokens, window_tokens)
