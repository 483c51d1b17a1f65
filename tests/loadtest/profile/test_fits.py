"""Prices are found again, never negative, and without the time in a queue."""

import random

import pytest

from loadtest.profile.fits import fit_prices


def test_prices_are_found_again() -> None:
    draw = random.Random(1)
    rows = [(1.0, draw.uniform(100, 30_000)) for _ in range(50)]
    fit = fit_prices(rows, [0.02 + 5e-5 * tokens for _, tokens in rows])
    assert fit is not None
    assert fit.prices == pytest.approx((0.02, 5e-5))
    assert (fit.residual, fit.used, fit.left_out, fit.grade) == (pytest.approx(0, abs=1e-9), 50, 0, "good")


def test_what_waited_is_left_out() -> None:
    draw = random.Random(2)
    rows = [(1.0, draw.uniform(100, 30_000)) for _ in range(60)]
    times = [
        0.02 + 5e-5 * tokens + (3.0 if number % 4 == 0 else 0.0) for number, (_, tokens) in enumerate(rows)
    ]
    fit = fit_prices(rows, times)
    assert fit is not None
    assert fit.prices == pytest.approx((0.02, 5e-5), rel=1e-3)
    assert fit.left_out == 15
    assert "15 left out as queued or disturbed" in str(fit)


def test_no_price_is_negative() -> None:
    rows = [(1.0, float(tokens)) for tokens in (100, 200, 300, 400)]
    fit = fit_prices(rows, [0.4, 0.3, 0.2, 0.1])
    assert fit is not None
    assert min(fit.prices) == 0.0
    assert fit.grade == "poor"


@pytest.mark.parametrize("rows", [[], [(1.0, 2.0)]])
def test_too_little_is_no_fit(rows: list[tuple[float, float]]) -> None:
    assert fit_prices(rows, [1.0] * len(rows)) is None


def test_absurd_observations_are_passed_over() -> None:
    rows = [(1.0, float(tokens)) for tokens in range(100, 1100, 100)]
    times = [1e-3 * tokens for _, tokens in rows]
    fit = fit_prices([*rows, (1.0, float("nan")), (1.0, 5.0)], [*times, 1.0, -3.0])
    assert fit is not None
    assert fit.prices == pytest.approx((0.0, 1e-3), abs=1e-9)
    assert fit.used == 10
