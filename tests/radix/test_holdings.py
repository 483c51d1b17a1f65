"""Remembered losses, and the time for which they are remembered."""

import pytest

from radix.eviction import LOWEST, Key
from radix.holdings import TRIM_HORIZON_US, TRIMS_MAX, Holdings

ABC = b"".join(value.to_bytes(8, "little") for value in (11, 22, 33))


@pytest.mark.parametrize(
    ("at_us", "floor", "blocks"),
    [
        (5, LOWEST, 3),
        (5, (4, -1, 99), 3),
        (5, (6, -9, 0), 0),
        # Evicted at the same time: blocks deeper than 2, and at that depth all hashes up to the floor's.
        (5, (5, -2, 21), 2),
        (5, (5, -2, 22), 1),
        (5, (5, -7, 22), 3),
    ],
)
def test_a_use_counts_above_the_floor_only(at_us: int, floor: Key, blocks: int) -> None:
    holdings = Holdings()
    assert holdings.admitted(ABC, at_us, floor) == blocks

    holdings.floor = floor
    assert holdings.admitted(ABC, at_us, LOWEST) == blocks


def test_a_late_use_ends_above_the_first_block_trimmed_since() -> None:
    holdings = Holdings()
    holdings.remember_trim(33, 10, 10)
    holdings.remember_trim(22, 7, 10)

    assert [holdings.admitted(ABC, at_us, LOWEST) for at_us in (6, 7, 9, 10)] == [1, 2, 2, 3]


def test_a_use_before_the_watermark_counts_for_nothing_and_trims_before_it_are_not_kept() -> None:
    holdings = Holdings()
    holdings.forgot_us = 10
    holdings.remember_trim(33, 10, 10)

    assert (holdings.admitted(ABC, 9, LOWEST), holdings.admitted(ABC, 10, LOWEST)) == (0, 3)
    assert not holdings.trimmed


def test_of_one_trim_too_many_the_older_half_goes() -> None:
    holdings = Holdings()
    for number in range(TRIMS_MAX + 1):
        holdings.remember_trim(number, 1 + number, 1 + number)

    assert min(holdings.trimmed.values()) == 1 + TRIMS_MAX // 2
    assert max(holdings.trimmed.values()) == 1 + TRIMS_MAX


def test_trims_beyond_the_horizon_go_as_new_ones_come() -> None:
    """One a second: the memory holds the losses within the horizon, though there is room for more."""
    holdings = Holdings()
    for second in range(500):
        holdings.remember_trim(second, second * 1_000_000, second * 1_000_000)

    assert list(holdings.trimmed) == list(range(499 - TRIM_HORIZON_US // 1_000_000, 500))


def test_a_trim_said_again_later_is_remembered_from_then_on() -> None:
    holdings = Holdings()
    holdings.remember_trim(1, 1, 1)
    holdings.remember_trim(2, 2, 2)
    holdings.remember_trim(1, TRIM_HORIZON_US, TRIM_HORIZON_US)
    holdings.remember_trim(3, TRIM_HORIZON_US + 3, TRIM_HORIZON_US + 3)

    assert list(holdings.trimmed) == [1, 3]
