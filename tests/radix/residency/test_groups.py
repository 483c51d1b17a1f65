"""Demands of groups, and the lanes that they mean."""

import pytest

from radix.residency import BlocksStored
from radix.residency.groups import LANES_MAX, Groups


def store(
    group: int | None, kind: str | None, window: int | None = None, medium: str | None = "GPU"
) -> BlocksStored:
    return BlocksStored([1], None, [0] * 16, 16, group, kind, window, medium)


@pytest.mark.parametrize(
    ("kind", "window", "need"),
    [
        ("sliding_window", 128, 8),
        ("sliding_window", 129, 8),
        ("sliding_window", 130, 9),
        ("sliding_window_mla", 1024, 64),
        ("sliding_window", 1, 1),
        ("mamba", None, 1),
    ],
)
def test_a_window_needs_what_the_next_token_looks_back_on_in_whole_blocks(
    kind: str, window: int | None, need: int
) -> None:
    """Ceil((W - 1) / block), as vLLM's SlidingWindowManager counts."""
    groups = Groups()
    groups.lane(store(0, "full_attention"))
    groups.lane(store(1, kind, window))
    groups.settle(16)
    assert [blocks for _, blocks in groups.partial] == [need]
    assert groups.reach_back == need
    assert len(groups.full) == 1


def test_a_removal_without_a_group_means_all_groups_of_that_medium() -> None:
    groups = Groups()
    lanes = [
        groups.lane(store(group, "full_attention", None, medium))
        for group in (0, 1)
        for medium in ("GPU", "CPU")
    ]
    assert groups.removed(None, "GPU") == (lanes[0], lanes[2])
    assert groups.removed(1, "CPU") == (lanes[3],)
    assert groups.removed(1, "DISK") == groups.removed(7, "GPU") == ()
    assert groups.removed(0, None) == (lanes[0],)


def test_what_was_learned_of_removals_is_bounded_and_learned_anew() -> None:
    groups = Groups()
    for number in range(3 * LANES_MAX):
        assert groups.removed(number, "GPU") == ()
        groups.lane(store(0, None, number, "GPU"))
    assert groups.removed(0, "GPU") == (0,)
    groups.lane(store(5, "full_attention"))
    assert groups.removed(5, "GPU") == (1,)
