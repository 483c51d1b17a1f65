"""Instances and prompts of the case study."""

import numpy as np
import pytest

from loadtest.plan.prfaas.curves import (
    DECODE_PER_S,
    between,
    egress_bytes_per_s,
    h20_s,
    h200_s,
    kv_bytes,
    kv_bytes_per_s,
    prompt_lengths,
)
from loadtest.plan.prfaas.paper import MIB, MU, SIGMA, TABLE_5, TOKENS_MAX, TOKENS_MIN


def at(curve: object, tokens: float) -> float:
    return float(curve(np.array([tokens]))[0])  # type: ignore[operator]


def test_a_curve_meets_its_points_and_goes_straight_in_logarithms() -> None:
    square = between([(10.0, 100.0), (100.0, 10_000.0), (1000.0, 20_000.0)])
    assert at(square, 10.0) == pytest.approx(100.0)
    assert at(square, 30.0) == pytest.approx(900.0)
    assert at(square, 1000.0) == pytest.approx(20_000.0)
    assert at(square, 1.0) == pytest.approx(1.0)
    assert at(square, 10_000.0) == pytest.approx(40_000.0)


def test_an_h20_takes_ever_more_times_as_long_as_an_h200_the_longer_the_prompt() -> None:
    """Why there is a threshold at all: theory A1."""
    tokens = np.array([1024.0, 10_230.0, 27_500.0, 62_400.0])
    ratios = h20_s(tokens) / h200_s(tokens)
    assert ratios.tolist() == pytest.approx([1.6, 2.19, 2.61, 2.77], rel=0.005)


def test_kv_is_a_line_through_table_5() -> None:
    for row in TABLE_5:
        assert at(kv_bytes, row.tokens) == pytest.approx(row.kv_mib * MIB, rel=0.012)


def test_an_instance_decodes_20_requests_in_25_6_seconds() -> None:
    instances = 25.6 * DECODE_PER_S
    assert instances == pytest.approx(20)


def test_lengths_are_a_lognormal_cut_off_on_both_sides() -> None:
    """Against a million draws; the mean of theory A6 is 27,498."""
    lengths = prompt_lengths()
    drawn = np.exp(MU + SIGMA * np.random.default_rng(1).standard_normal(1_000_000))
    drawn = drawn[(drawn >= TOKENS_MIN) & (drawn <= TOKENS_MAX)]
    assert lengths.requests.sum() == pytest.approx(1.0)
    assert lengths.tokens @ lengths.requests == pytest.approx(drawn.mean(), rel=0.002)
    assert lengths.tokens @ lengths.requests == pytest.approx(27_498, rel=0.001)
    below = lengths.requests[lengths.bounds <= 19_400].sum()
    assert below == pytest.approx((drawn <= 19_400).mean(), abs=0.002)
    assert (np.diff(lengths.bounds) > 0).all()
    assert (lengths.tokens < lengths.bounds).all()


def test_rates_follow_the_equations_with_the_paper_s_numbers() -> None:
    assert kv_bytes_per_s(701.3 * 2**20, 1.84) * 8e-9 == pytest.approx(3.19, rel=0.01)
    assert egress_bytes_per_s(64, 59.93e9, 1.0) == pytest.approx(3.8e12, rel=0.01)
