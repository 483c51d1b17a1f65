"""Figures read well from milliseconds to hours."""

import math

import pytest

from loadtest.simulator.words import bucket_shares, percent, points, seconds, tick


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (0.25, "250 ms"),
        (2.7, "2.70 s"),
        (1.234, "1.23 s"),
        (87.65, "87.7 s"),
        (999.4, "999 s"),
        (4321.0, "4,321 s"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_suits_it(value: float, text: str) -> None:
    assert seconds(value).replace("\N{NO-BREAK SPACE}", " ") == text


def test_a_ratio_is_told_in_hundredths() -> None:
    assert percent(0.8734).replace("\N{NO-BREAK SPACE}", " ") == "87.3 %"
    assert points(0.0321) == "3.2"
    assert percent(math.nan) == points(math.nan) == "-"


def test_a_tick_has_no_more_digits_than_it_needs() -> None:
    texts = [tick(value).replace("\N{NO-BREAK SPACE}", " ") for value in (0.02, 0.5, 1.0, 20.0, 5000.0)]
    assert texts == ["20 ms", "500 ms", "1 s", "20 s", "5,000 s"]


def test_workers_are_told_by_bucket() -> None:
    assert bucket_shares(((65_536, 5), (1_048_576, 3))) == "0-64K: 5, 64K-1M: 3"
