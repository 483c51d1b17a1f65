"""Data of charts follow from the records, and compare the same requests."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.simulated import Config, runs, simulated

from loadtest.simulator.runs import CAUSES, UNCACHED_BOUNDS_TOKENS, Run, best_and_worst, bin_names


def test_the_parts_of_the_time_to_first_token_are_its_mean() -> None:
    run = Run.of("p", simulated(skill=0.5))

    parts = run.ttft_parts_s()

    assert sum(parts.values()) == pytest.approx(run.figure("ttft_mean_s"))
    assert parts["floor"] == pytest.approx(run.figure("floor_ttft_mean_s"))
    assert min(parts.values()) > 0.0


def test_a_request_without_a_first_token_is_slower_than_any() -> None:
    """It belongs to the distribution: leaving it out would reward a router that answers nothing."""
    ttft_s = Run.of("p", simulated(requests=100, failed=30)).ttft_s()

    assert len(ttft_s) == 100
    assert np.isinf(ttft_s[70:]).all()
    assert np.isfinite(ttft_s[:70]).all()


def test_bins_of_length_hold_the_same_requests_for_every_policy() -> None:
    good, bad = (run.ttft_by_length_s(0.9) for run in runs())

    assert good[2] == bad[2]
    np.testing.assert_array_equal(good[1], bad[1])
    assert (good[0] < bad[0]).all()


def test_every_request_is_in_one_bin_and_an_empty_bin_has_no_percentile() -> None:
    ttft_s, floor_s, counts = Run.of("p", simulated(requests=5)).ttft_by_length_s(0.5)

    assert sum(counts) == 5
    empty = np.array(counts) == 0
    assert empty.any()
    assert np.isnan(ttft_s[empty]).all()
    assert np.isnan(floor_s[empty]).all()
    assert not np.isnan(ttft_s[~empty]).any()


def test_requests_of_the_warm_up_are_in_no_chart() -> None:
    result = replace(simulated(requests=100), config=Config("p", warmup_s=900.0))  # type: ignore[arg-type]
    run = Run.of("p", result)

    assert len(run.ttft_s()) == run.figures["requests"] == (result.records.arrival_s >= 900.0).sum()


def test_what_was_not_measured_is_the_worst() -> None:
    first, second = runs()
    first.figures["ttft_p90_s"] = None

    assert best_and_worst([first, second], "ttft_p90_s") == (second, first)


def test_what_was_lost_is_what_prefill_took_beyond_the_floor() -> None:
    """Without sharing of steps, recomputation is all there is."""
    run = Run.of("p", simulated(skill=0.5))

    lost = run.lost_s()
    assert lost.keys() == CAUSES.keys()
    assert sum(lost.values()) == pytest.approx(run.ttft_parts_s()["prefill beyond it"])


def test_causes_and_tiers_are_those_of_the_summary() -> None:
    assert set(CAUSES) == set(simulated().records.lost_tokens())


def test_bins_are_named_after_their_bounds() -> None:
    assert bin_names() == ["< 1K", "1K-4K", "4K-16K", "16K-64K", "64K-256K", "> 256K"]
    assert len(bin_names()) == len(UNCACHED_BOUNDS_TOKENS)


def test_shares_of_ends_add_up() -> None:
    shares = Run.of("p", simulated(requests=200, failed=50)).end_shares()

    assert shares == {"completed": 0.75, "rejected": 0.0, "failed": 0.25, "expired": 0.0}
