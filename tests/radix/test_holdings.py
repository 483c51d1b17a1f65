"""What is remembered of losses, and for how long."""

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
        # Evicted at the same time: what is deeper than 2 blocks, and there all hashes up to the floor's.
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


def test_of_one_trim_too_many_those_beyond_the_horizon_go() -> None:
    holdings = Holdings()
    newest_us = 2 * TRIM_HORIZON_US
    for number in range(TRIMS_MAX):
        holdings.remember_trim(number, 1 + number, newest_us)
    holdings.remember_trim(TRIMS_MAX, newest_us, newest_us)

    assert holdings.trimmed == {TRIMS_MAX: newest_us}
