"""What is learned of fetches from a pool: how long they take, and how much sooner requests go for them."""

import pytest

from policies.estimates.fetch_leads import FACTOR_MAX, LEAD_S_MAX, MEMORY, FetchEstimate


def test_the_lead_is_the_mean_fetch_and_a_long_one_counts_only_in_part() -> None:
    estimate = FetchEstimate()
    for _ in range(20 * MEMORY):
        estimate.observe(3.0, 1.0)
    assert estimate.lead_s == pytest.approx(3.0)
    for _ in range(20 * MEMORY):
        estimate.observe(0.0, 0.0)
    assert estimate.lead_s == pytest.approx(0.0, abs=1e-6)
    estimate.observe(1e9, 1.0)
    assert estimate.lead_s <= LEAD_S_MAX / MEMORY + 1e-6


def test_fetches_that_are_cut_off_take_longer_than_was_said_and_whole_ones_do_not() -> None:
    estimate = FetchEstimate()
    for share in (1.0, 0.95):
        estimate.observe(1.0, share)
        assert estimate.factor == 1.0
    for _ in range(100):
        estimate.observe(1.0, 0.0)
    assert estimate.factor == FACTOR_MAX
    before = estimate.factor
    estimate.observe(1.0, 1.0)
    assert 1.0 < estimate.factor < before


def test_a_pool_that_was_too_dear_to_be_fetched_from_is_tried_again() -> None:
    """No fetch is predicted any more, so none can show that the pool is fast now."""
    estimate = FetchEstimate(0.0, FACTOR_MAX)
    for _ in range(3_000):
        estimate.observe(0.0, 0.0)
    assert estimate.factor == 1.0


@pytest.mark.parametrize(("told", "kept"), [((1e9, 1e9), (LEAD_S_MAX, FACTOR_MAX)), ((0.0, 0.0), (0.0, 1.0))])
def test_what_others_say_is_kept_within_bounds(told: tuple[float, float], kept: tuple[float, float]) -> None:
    estimate = FetchEstimate(*told)
    assert (estimate.lead_s, estimate.factor) == kept
