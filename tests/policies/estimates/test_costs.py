from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.estimates.costs import (
    FIT_MEMORY,
    FIT_RANGE,
    PROFILES,
    SUMS,
    ServiceFit,
    ServiceModel,
    congestion_per_s,
    service_s,
)


def test_a_prefill_costs_its_start_and_each_token_by_its_place() -> None:
    """c0 = 100: 2,000 tokens behind 1,000 sit at 2,000 on average, so each costs 21 times its base."""
    assert service_s(0.5, 0.001, 100.0, 2000.0, 1000.0) == pytest.approx(0.5 + 0.001 * 2000 * 21)
    assert ServiceModel(0.5, 0.001, 100.0).service_s(2000.0, 1000.0) == pytest.approx(42.5)


def test_columns_are_priced_like_numbers() -> None:
    uncached, cached = np.array([0.0, 10.0, 5000.0]), np.array([7.0, 0.0, 90_000.0])
    a, b, c0 = np.array([0.1, 0.0, 0.02]), np.array([0.001, 0.002, 0.0001]), np.array([1e3, 1e5, 1e5])

    assert service_s(a, b, c0, uncached, cached).tolist() == [
        service_s(*row)
        for row in zip(a.tolist(), b.tolist(), c0.tolist(), uncached.tolist(), cached.tolist(), strict=True)
    ]


def test_two_prefills_in_a_row_cost_one_start_more_than_one() -> None:
    """The price of a token depends on its position, not on how the prompt is cut."""
    model = ServiceModel(0.02, 1e-4, 140_000.0)

    whole = model.service_s(30_000.0, 10_000.0)
    parts = model.service_s(12_000.0, 10_000.0) + model.service_s(18_000.0, 22_000.0)

    assert parts == pytest.approx(whole + 0.02)


@pytest.mark.parametrize(
    ("tokens", "measured_s"), [(1024, 0.44), (8192, 0.72), (32_768, 1.84), (131_072, 7.40)]
)
def test_the_h200_profile_meets_the_published_table(tokens: float, measured_s: float) -> None:
    assert PROFILES["8xh200-1t-hybrid"].service_s(tokens, 0.0) == pytest.approx(measured_s, rel=0.02)


@pytest.mark.parametrize(
    ("arrivals_per_s", "utilisation", "kappa"),
    [(1.07, 0.45, 1.07 / 0.55), (2.0, 0.0, 2.0), (0.0, 0.9, 0.0), (3.0, 0.95, 8.0), (0.2, 1.7, 1.0)],
)
def test_congestion_is_arrivals_over_free_time(
    arrivals_per_s: float, utilisation: float, kappa: float
) -> None:
    """At most 8 here; utilisation counts as 0.8 at most: 0.2/0.2 = 1."""
    assert congestion_per_s(arrivals_per_s, utilisation, 8.0) == pytest.approx(kappa)
    assert congestion_per_s(np.array([arrivals_per_s]), np.array([utilisation]), 8.0).tolist() == [
        pytest.approx(kappa)
    ]


def test_congestion_is_arrivals_over_what_is_free_and_bounded() -> None:
    """1.07 a second at 45 % are 1.95 (theory E2); full load counts as 80 %."""
    kappa = congestion_per_s(np.array([1.07, 1.0, 100.0]), np.array([0.45, 3.0, 0.7]), 50.0)
    assert kappa.tolist() == pytest.approx([1.07 / 0.55, 5.0, 50.0])


TRUTH = ServiceModel(0.05, 1 / 40_000, 90_000.0)


def fitted(count: int, seed: int = 1, truth: ServiceModel = TRUTH, noise: float = 0.05) -> ServiceFit:
    """A fit of the default profile after observations of another machine, with relative noise."""
    random = np.random.default_rng(seed)
    fit = ServiceFit(PROFILES["default"])
    for _ in range(count):
        uncached, cached = float(random.lognormal(7.5, 1.2)), float(random.lognormal(9.5, 1.5))
        seconds = truth.service_s(uncached, cached) * float(random.lognormal(0.0, noise))
        fit.observe(uncached, cached, seconds)
    return fit


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_finds_the_machine_behind_noisy_observations(seed: int) -> None:
    """Predictions within 5 % over the lengths that were seen, from 2,000 observations with 5 % noise."""
    model = fitted(2000, seed).model()
    for uncached, cached in ((300.0, 0.0), (2000.0, 10_000.0), (8000.0, 50_000.0), (2000.0, 200_000.0)):
        assert model.service_s(uncached, cached) == pytest.approx(TRUTH.service_s(uncached, cached), rel=0.05)


def test_before_the_first_observation_the_profile_is_the_model() -> None:
    assert ServiceFit(PROFILES["default"]).model() == PROFILES["default"]


def test_a_machine_that_changes_is_followed() -> None:
    """Twice as slow at everything: half of the memory later the prediction is nearer to the new truth."""
    fit = fitted(1000)
    slow = ServiceModel(2 * TRUTH.a_s, 2 * TRUTH.b_s, TRUTH.c0_tokens)
    random = np.random.default_rng(7)
    for _ in range(FIT_MEMORY):
        uncached, cached = float(random.lognormal(7.5, 1.2)), float(random.lognormal(9.5, 1.5))
        fit.observe(uncached, cached, slow.service_s(uncached, cached))
    assert fit.model().service_s(2000.0, 10_000.0) > 1.5 * TRUTH.service_s(2000.0, 10_000.0)


def test_one_outlier_moves_a_settled_fit_little() -> None:
    fit = fitted(1000)
    before = fit.model().service_s(2000.0, 10_000.0)
    fit.observe(2000.0, 10_000.0, 1000.0)
    assert fit.clipped >= 1
    assert fit.model().service_s(2000.0, 10_000.0) == pytest.approx(before, rel=0.03)


def test_a_machine_unlike_its_profile_is_found() -> None:
    """5.4 s for every prefill, 270 times the profile's, with tokens six times the price."""
    truth, random = ServiceModel(5.4, 3.9e-4, 140_000.0), np.random.default_rng(3)
    fit = ServiceFit(PROFILES["default"])
    for _ in range(500):
        uncached, cached = float(random.lognormal(7.5, 1.2)), float(random.lognormal(11.0, 1.0))
        fit.observe(uncached, cached, truth.service_s(uncached, cached) * float(random.lognormal(0.0, 0.1)))
    for uncached, cached in ((300.0, 0.0), (2000.0, 60_000.0), (20_000.0, 60_000.0)):
        expected_s = truth.service_s(uncached, cached)
        assert fit.model().service_s(uncached, cached) == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize("slower", [0.1, 0.3, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("lengths", [(500.0,), (2_000.0, 30_000.0)])
def test_after_32_prefills_a_fit_is_right_to_a_factor_of_two_up_to_twice_their_length(
    slower: float, lengths: tuple[float, ...]
) -> None:
    profile, random = PROFILES["default"], np.random.default_rng(5)
    truth = ServiceModel(slower * profile.a_s, slower * profile.b_s, profile.c0_tokens)
    fit = ServiceFit(profile)
    for number in range(32):
        tokens = lengths[number % len(lengths)]
        fit.observe(tokens, 0.0, truth.service_s(tokens, 0.0) * float(random.lognormal(0.0, 0.1)))
    assert fit.longest_tokens == max(lengths)
    for tokens in (*lengths, 2 * max(lengths)):
        right_s = truth.service_s(tokens, 0.0)
        assert right_s / 2.05 < fit.model().service_s(tokens, 0.0) < right_s * 2.05


def test_prompts_of_one_length_only_do_not_blow_up() -> None:
    """The data cannot separate a, b and c0: predictions are right where there is data, sane elsewhere."""
    fit = ServiceFit(PROFILES["default"])
    for _ in range(5000):
        fit.observe(1000.0, 0.0, 0.2)
    model = fit.model()
    assert model.service_s(1000.0, 0.0) == pytest.approx(0.2, rel=0.02)
    elsewhere = PROFILES["default"].service_s(20_000.0, 50_000.0)
    assert elsewhere / 4 < model.service_s(20_000.0, 50_000.0) < elsewhere * 4


@given(
    st.lists(
        st.tuples(*(st.floats(allow_nan=True, allow_infinity=True) for _ in range(3))),
        min_size=1,
        max_size=60,
    )
)
@example([(1e308, 1e308, 1.0)])
def test_garbage_never_moves_a_parameter_out_of_its_range(observed: list[tuple[float, float, float]]) -> None:
    fit, profile = ServiceFit(PROFILES["default"]), PROFILES["default"]
    for uncached, cached, seconds in observed:
        fit.observe(uncached, cached, seconds)
    model = fit.model()
    for learned, default in (
        (model.a_s, profile.a_s),
        (model.b_s, profile.b_s),
        (model.c0_tokens, profile.c0_tokens),
    ):
        assert default / FIT_RANGE <= learned <= default * FIT_RANGE
    assert fit.observations + fit.ignored == len(observed)


def test_a_fit_that_goes_on_from_another_ones_sums_is_the_same_fit() -> None:
    profile, random = PROFILES["default"], Random(3)
    observed = [
        (random.uniform(100, 20_000), random.uniform(0, 1e5), random.uniform(0.1, 9)) for _ in range(200)
    ]
    whole, first, second = ServiceFit(profile), ServiceFit(profile), ServiceFit(profile)
    for observation in observed:
        whole.observe(*observation)
    for observation in observed[:100]:
        first.observe(*observation)
    second.go_on_from(first.model(), first.weight, first.sums())
    for observation in observed[100:]:
        second.observe(*observation)
    assert second.weight == whole.weight == 200
    assert second.model().service_s(4000, 1000) == pytest.approx(
        whole.model().service_s(4000, 1000), rel=0.02
    )


@pytest.mark.parametrize(
    "sums",
    [
        (),
        (0.0,) * SUMS,
        (1e300,) * SUMS,
        (-1.0,) * SUMS,
        (1.0,) * SUMS,
        (0.02, 1e-4, 1e5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        (0.02, 1e-4, 1e5, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0),
    ],
    ids=str,
)
def test_sums_that_no_fit_has_are_not_gone_on_from(sums: tuple[float, ...]) -> None:
    fit, told = ServiceFit(PROFILES["default"]), ServiceModel(0.2, 1e-3, 1e5)
    fit.go_on_from(told, 100, sums)
    assert fit.model() == told
    fit.observe(1000, 0, told.service_s(1000, 0))
    assert fit.model().service_s(1000, 0) == pytest.approx(told.service_s(1000, 0))
