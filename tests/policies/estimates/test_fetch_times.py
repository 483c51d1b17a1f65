"""Learned times of fetches from a pool."""

import pytest

from policies.estimates.fetch_times import FACTOR_MAX, bounded, learned


def test_fetches_that_are_cut_off_take_longer_than_was_said_and_whole_ones_do_not() -> None:
    assert learned(1.0, 1.0) == learned(1.0, 0.95) == 1.0
    assert learned(1.0, 0.5) == learned(1.0, 0.0) == pytest.approx(1.1)
    assert learned(FACTOR_MAX, 0.0) == FACTOR_MAX
    assert learned(8.0, 1.0) == pytest.approx(7.84)


def test_a_pool_that_was_too_dear_to_be_fetched_from_is_tried_again() -> None:
    """No fetch is predicted any more, so none can show that the pool is fast now."""
    factor = FACTOR_MAX
    for _ in range(3_000):
        factor = learned(factor, None)
    assert factor == 1.0


@pytest.mark.parametrize(("told", "kept"), [(1e9, FACTOR_MAX), (0.0, 1.0), (3.0, 3.0)])
def test_what_others_say_is_kept_within_bounds(told: float, kept: float) -> None:
    assert bounded(told) == kept
