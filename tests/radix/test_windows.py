"""Window-safe lengths, against the rule token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import FULL_ATTENTION, PROFILES, AttentionProfile, safe_blocks

B = 4
"""Tokens per block in the tests that look at every token."""


def window(tokens: int, interval: int = 0) -> AttentionProfile:
    return AttentionProfile("sliding_window", window_tokens=tokens, retained_interval_tokens=interval)


def linear(interval: int = 0) -> AttentionProfile:
    return AttentionProfile("linear", retained_interval_tokens=interval)


@pytest.mark.parametrize(
    ("profile", "matched", "ends", "safe"),
    [
        (FULL_ATTENTION, 7, [], 7),
        # 256 tokens a block. Nothing is known to have ended: nothing is safe.
        (window(128), 7, [], 0),
        (linear(), 7, [], 0),
        # The last end within the match.
        (window(128), 7, [2, 5, 9], 5),
        (linear(), 7, [2, 5, 9], 5),
        # A sequence of 4 blocks is no longer than a window of 1,024 tokens: valid throughout ...
        (window(1024), 3, [4], 3),
        # ... one of 5 is not, and neither is a linear state anywhere but at the end.
        (window(1024), 3, [5], 0),
        (linear(), 3, [4], 0),
        # Tails of ends one block apart join: [2, 6] and [3, 7] hold a whole window before 6, and before 7.
        (window(1024), 6, [6, 7], 6),
        # Two apart, [2, 6] and [4, 8]: 7 lies between, and [3, 7] is covered.
        (window(1024), 7, [6, 8], 7),
        # Six apart they do not touch.
        (window(1024), 9, [6, 12], 6),
        # Retained every 512 tokens, so at blocks 2, 4, 6; the end at 5 is below 6.
        (window(128, 512), 7, [5], 6),
        (linear(512), 7, [5], 6),
        # Retained at 300, 600, ...: 1,792 matched tokens reach 1,500, which is block 5.
        (linear(300), 7, [], 5),
        # Retained more often than blocks end.
        (window(128, 32), 7, [], 7),
        (window(128), 0, [3], 0),
    ],
)
def test_the_rule_in_blocks(profile: AttentionProfile, matched: int, ends: list[int], safe: int) -> None:
    assert safe_blocks(matched, ends, profile) == safe


@given(st.integers(0, 12), st.lists(st.integers(0, 16), max_size=5), st.integers(1, 40))
def test_a_windows_safe_length_is_the_longest_whose_window_is_valid(
    matched: int, ends: list[int], tokens: int
) -> None:
    valid = {token for end in ends for token in range(max(0, end * B - tokens), end * B)}
    boundaries = [
        block
        for block in range(matched + 1)
        if all(token in valid for token in range(max(0, block * B - tokens), block * B))
    ]

    assert safe_blocks(matched, ends, window(tokens), B) == max(boundaries)


@given(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=5), st.integers(1, 40))
def test_with_no_end_below_the_match_the_last_end_is_the_safe_length(
    matched: int, ends: list[int], tokens: int
) -> None:
    """This lets the tree leave windows out of its walk."""
    ends = [end for end in ends if end <= matched]

    assert safe_blocks(matched, ends, window(tokens), B) == max(ends, default=0)


@given(
    st.integers(0, 50),
    st.lists(st.integers(0, 60)),
    st.sampled_from([FULL_ATTENTION, window(3), window(9, 7), linear(), linear(5), linear(64)]),
)
def test_a_safe_length_is_never_longer_than_the_match(
    matched: int, ends: list[int], profile: AttentionProfile
) -> None:
    assert 0 <= safe_blocks(matched, ends, profile, B) <= matched


def test_only_full_attention_can_do_without_ends() -> None:
    assert {name for name, profile in PROFILES.items() if not profile.needs_ends} == {"full"}


@pytest.mark.parametrize(
    ("kind", "tokens", "interval"),
    [
        ("full", 128, 0),
        ("linear", 128, 0),
        ("sliding_window", 0, 0),
        ("sliding_window", -1, 0),
        ("linear", 0, -1),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(kind: str, tokens: int, interval: int) -> None:
    with pytest.raises(ValueError):
        AttentionProfile(kind, tokens, interval)  # type: ignore[arg-type]


def test_an_unknown_kind_of_attention_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mamba"):
        AttentionProfile("mamba")  # type: ignore[arg-type]
