from math import inf
from statistics import NormalDist

import pytest

from loadtest.student import T_95, mean_95, t_95


def test_the_factor_falls_towards_that_of_the_normal_distribution() -> None:
    factors = [t_95(measurements) for measurements in range(2, 30)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] > NormalDist().inv_cdf(0.975)


@pytest.mark.parametrize(
    ("measurements", "factor"), [(2, 12.706), (3, 4.303), (5, 2.776), (17, 2.120), (99, 2.120)]
)
def test_it_is_looked_up_by_one_less_than_the_measurements(measurements: int, factor: float) -> None:
    assert t_95(measurements) == factor
    assert t_95(measurements) in T_95


def test_an_interval_is_the_factor_times_the_standard_error_on_both_sides_and_endless_for_one() -> None:
    assert mean_95([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 4.303 / 3**0.5, 2.0 + 4.303 / 3**0.5))
    assert mean_95([5.0]) == (5.0, -inf, inf)
