import numpy as np
import pytest

from policies.costs import PROFILES, ServiceModel, congestion_per_s, service_s


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
    [(1.07, 0.45, 1.07 / 0.55), (2.0, 0.0, 2.0), (0.0, 0.9, 0.0), (3.0, 0.95, 8.0), (0.2, 1.7, 4.0)],
)
def test_congestion_is_arrivals_over_free_time(
    arrivals_per_s: float, utilisation: float, kappa: float
) -> None:
    """At most 8 here; utilisation counts as 0.95 at most: 0.2/0.05 = 4."""
    assert congestion_per_s(arrivals_per_s, utilisation, 8.0) == pytest.approx(kappa)
    assert congestion_per_s(np.array([arrivals_per_s]), np.array([utilisation]), 8.0).tolist() == [
        pytest.approx(kappa)
    ]
