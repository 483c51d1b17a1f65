"""Formulas of time, with numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.parallelism import NO_PREFILL_MTP
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming, Stretch, pipelined_s

PREFILL = PrefillTiming(a_s=0.1, b_s=0.001, c0_tokens=1000.0, step_s=0.01)


def test_chunks_add_up_to_the_prompt_and_each_step_adds_its_own_time() -> None:
    """600 tokens behind 400: 0.1 + 0.01 + 0.6 * (1 + (400 + 300)/1000) = 1.13 s; two chunks: 0.01 s more."""
    whole = PREFILL.prompt_s(600, 400)
    parts = PREFILL.step_of(1, [[(200, 400)]]) + PREFILL.step_of(0, [[(400, 600)]])

    assert whole == pytest.approx(1.13)
    assert PREFILL.step_of(1, [[(600, 400)]]) == pytest.approx(whole)
    assert parts == pytest.approx(whole + 0.01)


def test_equal_ranks_cost_what_one_rank_costs_and_unequal_ones_wait_for_the_longest() -> None:
    """100 tokens at context 950 attend for 0.1 s; on one of two ranks alone that is half of the engine."""
    one = PREFILL.step_of(2, [[(100, 950), (100, 950)]])

    assert PREFILL.step_of(2, [[(100, 950)], [(100, 950)]]) == pytest.approx(one)
    assert PREFILL.step_of(2, [[(100, 950), (100, 950)], []]) == pytest.approx(one + 0.2)


def test_a_decode_step_grows_with_the_batch_and_its_context() -> None:
    timing = DecodeTiming(base_s=0.010, request_s=0.001, kv_token_s=1e-6, mtp_speedup=2.0)
    stretch = timing.stretch(4, 16_000)

    assert stretch == Stretch(0.030, 4e-6, 2.0)
    assert timing.stretch(2, 8_000, ranks=2).step_s == pytest.approx(0.030)
    # 1000 tokens each are 500 steps of 30 ms, growing by 4 us per token: 15 s + 1 s.
    assert stretch.seconds(1000) == pytest.approx(16.0)


@given(st.floats(1e-4, 1.0), st.floats(0, 1e-3), st.floats(1, 4), st.floats(0, 1e5, allow_subnormal=False))
def test_tokens_and_seconds_of_a_stretch_are_inverse(
    step_s: float, growth_s: float, per_step: float, tokens: float
) -> None:
    stretch = Stretch(step_s, growth_s, per_step)

    assert stretch.tokens(stretch.seconds(tokens)) == pytest.approx(tokens, rel=1e-9, abs=1e-9)


def test_moving_layer_by_layer_hides_behind_computing() -> None:
    """10 layers: the shorter time adds one tenth of itself to the longer."""
    assert pipelined_s(1.0, 0.5, 10) == pytest.approx(1.05)
    assert pipelined_s(0.5, 1.0, 10) == pytest.approx(1.05)
    assert pipelined_s(1.0, 0.5, 1) == pytest.approx(1.5)
    link = LinkTiming(bytes_per_s=1000.0, latency_s=0.25)
    assert link.move_s(0) == 0
    assert link.move_s(500) == pytest.approx(0.75)
    assert link.exposed_s(500, 1.0, 10) == pytest.approx(0.075)
    assert link.exposed_s(2000, 1.0, 10) == pytest.approx(1.35)


def test_a_faster_engine_is_faster_at_everything() -> None:
    decode = DecodeTiming(0.01, 0.002, 1e-6, 2.0)

    assert PREFILL.faster(2).prompt_s(600, 400) == pytest.approx(PREFILL.prompt_s(600, 400) / 2)
    assert decode.faster(4).stretch(3, 100).seconds(10) == pytest.approx(
        decode.stretch(3, 100).seconds(10) / 4
    )
    assert LinkTiming(10.0, 1.0).faster(2).move_s(10) == pytest.approx(1.0)


@given(st.floats(0, 2_000))
def test_tokens_at_full_speed_and_back(tokens: float) -> None:
    """150 tokens take as long as 128 x 2.3 + 22 x 1.5 at full speed."""
    timing = DecodeTiming(base_s=0.010, slow_tokens=NO_PREFILL_MTP)

    assert timing.full_speed_tokens(150) == pytest.approx(327.4)
    assert timing.tokens_of(timing.full_speed_tokens(tokens)) == pytest.approx(tokens)
    assert DecodeTiming(base_s=0.010).tokens_of(tokens) == tokens
