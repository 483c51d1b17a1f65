"""A short overload of a small fleet is seen from all sides."""

import pytest

from loadtest.chaos import OverloadPlan


def test_capacity_grows_with_the_engines() -> None:
    assert OverloadPlan(engines=6).capacity_per_s == pytest.approx(2 * OverloadPlan(engines=3).capacity_per_s)
