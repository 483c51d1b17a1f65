"""The kept figures of a simulation give the certainty of its percentile."""

import numpy as np
import pytest
from fakes.simulated import simulated

from loadtest.plan.trial import Trial


def test_the_interval_holds_the_percentile_and_narrows_with_requests() -> None:
    few, many = (Trial.of(simulated(requests=count)) for count in (200, 20_000))

    for trial in (few, many):
        p90_s = trial.figures["ttft_p90_s"]
        assert trial.interval_s[0] <= float(p90_s or 0.0) <= trial.interval_s[1]
    widths = [trial.interval_s[1] - trial.interval_s[0] for trial in (few, many)]
    assert widths[1] < widths[0] / 4


def test_the_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    """P90 of an exponential distribution is ln 10; 400 samples of 300."""
    rng = np.random.default_rng(3)
    result = simulated(requests=300)
    covered = 0
    for _ in range(400):
        result.records.first_s[:] = result.records.arrival_s + rng.exponential(1.0, 300)
        low_s, high_s = Trial.of(result).interval_s
        covered += low_s <= np.log(10.0) <= high_s
    assert 0.92 <= covered / 400 <= 1.0


def test_quarters_are_of_time_and_not_of_requests() -> None:
    result = simulated(requests=400)
    result.records.first_s[:] = result.records.arrival_s + 1.0
    late = result.records.arrival_s > np.linspace(*result.records.arrival_s[[0, -1]], 5)[3]
    result.records.first_s[late] += 4.0

    assert Trial.of(result).quarters_s == pytest.approx((1.0, 1.0, 1.0, 5.0))


def test_nothing_answered_is_nothing_known() -> None:
    trial = Trial.of(simulated(requests=5, failed=5))

    assert np.isnan(trial.interval_s).all()
    assert np.isnan(trial.quarters_s).all()


def test_lengths_count_the_expected_output_and_the_last_range_has_no_end() -> None:
    """256 expected tokens: a prompt of 64K - 256 is just a short one."""
    result = simulated(requests=4)
    result.records.prompt_tokens[:] = (65_280, 65_281, 2_000_000, 300_000)
    result.records.first_s[:] = result.records.arrival_s + np.array([1.0, 2.0, 3.0, 3.0])
    no_long = simulated(requests=4)
    no_long.records.prompt_tokens[:] = 100

    assert Trial.of(result).lengths_s == pytest.approx((1.0, 2.0, 3.0))
    assert np.isnan(Trial.of(no_long).lengths_s).tolist() == [False, True, True]
