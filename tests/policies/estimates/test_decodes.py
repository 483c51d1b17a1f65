"""Decode times learned from answers, and the requests that will be decoding at a time."""

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import DecodeFit
from policies.estimates.decodes import OBSERVATIONS_MIN, decoding_after


def learned(base_s: float = 0.01, slope_s: float = 0.0005, observations: int = 2000) -> DecodeFit:
    """Answers of 100 tokens from batches of 1 to 100, 5 % off."""
    fit, random = DecodeFit(), Random(5)
    for _ in range(observations):
        requests = random.randint(1, 100)
        tpot_s = (base_s + slope_s * requests) * random.uniform(0.95, 1.05)
        fit.observe(requests, 99 * tpot_s, 100)
    return fit


def test_the_line_is_found() -> None:
    fit = learned()
    for requests in (1, 50, 100, 150):
        assert fit.tpot_s(requests) == pytest.approx(0.01 + 0.0005 * requests, rel=0.1)
    assert fit.requests_within(0.04) == pytest.approx(60, rel=0.1)
    assert fit.decode_s == pytest.approx(99 * 0.035, rel=0.1)


def test_what_another_learned_says_the_same() -> None:
    fit = learned()
    told = DecodeFit.told(*fit.line())
    assert told.known
    assert told.line() == fit.line()
    for requests in (1, 60):
        assert (told.tpot_s(requests), told.lasts_s(requests)) == (
            fit.tpot_s(requests),
            fit.lasts_s(requests),
        )
    assert told.requests_within(0.04) == fit.requests_within(0.04)


def test_a_decode_lasts_as_long_as_its_tokens_take_in_the_batch() -> None:
    """99 gaps between 100 tokens; nothing is known before the first answer."""
    fit = learned()
    for requests in (1, 60):
        assert fit.lasts_s(requests) == pytest.approx(99 * fit.tpot_s(requests), rel=0.05)
    assert DecodeFit().lasts_s(10) == 0.0


def test_another_line_is_found_when_the_engine_changes() -> None:
    fit = learned()
    random = Random(6)
    for _ in range(2000):
        requests = random.randint(1, 100)
        fit.observe(requests, 99 * (0.02 + 0.0002 * requests), 100)
    assert fit.tpot_s(100) == pytest.approx(0.04, rel=0.1)


def test_batches_of_one_size_say_nothing_of_others() -> None:
    """The base takes it all, so that no request is rejected by a size that was never seen."""
    fit = DecodeFit()
    for _ in range(500):
        fit.observe(20, 99 * 0.02, 100)
    assert fit.tpot_s(20) == fit.tpot_s(200) == pytest.approx(0.02)
    assert (fit.requests_within(0.03), fit.requests_within(0.01)) == (inf, 0.0)


def test_a_few_answers_prove_nothing() -> None:
    fit = learned(observations=OBSERVATIONS_MIN - 1)
    assert not fit.known
    fit.observe(5, 1.0, 50)
    assert fit.known


@pytest.mark.parametrize(("decode_s", "tokens"), [(0.5, 1), (0.5, 0), (0.0, 50), (-1.0, 50), (inf, 50)])
def test_an_answer_that_shows_no_decode_teaches_nothing(decode_s: float, tokens: int) -> None:
    fit = DecodeFit()
    for _ in range(100):
        fit.observe(5, decode_s, tokens)
    assert not fit.known
    assert fit.decode_s == 0.0


def test_who_decodes_goes_and_who_prefills_comes() -> None:
    """100 decode, 50 end their prefill within the ten seconds that a decode lasts on average."""
    assert decoding_after(0.0, 100, 50, 10.0) == 150
    assert decoding_after(10.0, 100, 0, 10.0) == pytest.approx(100 * exp(-1))
    assert decoding_after(10.0, 0, 50, 10.0) == pytest.approx(50 * (1 - exp(-1)))
    assert decoding_after(1000.0, 100, 0, 10.0) == pytest.approx(0.0, abs=1e-9)


def test_a_steady_stream_keeps_as_many_as_little_says() -> None:
    """5 a second, each for 10 s: 50 decode, and 50 will at any later time."""
    for horizon_s in (0.001, 1.0, 7.0, 300.0):
        assert decoding_after(horizon_s, 50, 5 * horizon_s, 10.0) == pytest.approx(50)


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1e-3, 1e4))
def test_nobody_decodes_who_was_not_there_or_came(
    horizon_s: float, decoding: float, prefilling: float, decode_s: float
) -> None:
    after = decoding_after(horizon_s, decoding, prefilling, decode_s)
    assert 0 <= after <= (decoding + prefilling) * (1 + 1e-9)
