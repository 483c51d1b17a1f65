"""Profiles stand where their sources put them."""

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.engine.shape import ModelShape


def test_prefill_of_the_1t_model_is_that_of_prfaas_table_5() -> None:
    """0.44, 0.72, 1.84, 7.40 s at 1K, 8K, 32K, 128K on 8 H200."""
    prefill = PROFILES["kimi-linear-1t"].prefill
    times = [prefill.prompt_s(kilo * 1024, 0) for kilo in (1, 8, 32, 128)]

    assert times == pytest.approx([0.44, 0.72, 1.84, 7.40], rel=0.03)


def test_kv_throughput_of_flash_is_that_of_prfaas_table_3() -> None:
    """0.82, 2.85, 4.66, 4.71 Gbit/s: S_kv over T_prefill, from the shape and the fitted prices."""
    flash = PROFILES["mimo-v2-flash"]
    gbits = [
        flash.shape.kv_bytes(kilo * 1024) * 8e-9 / flash.prefill.prompt_s(kilo * 1024, 0)
        for kilo in (1, 8, 32, 128)
    ]

    assert gbits == pytest.approx([0.82, 2.85, 4.66, 4.71], rel=0.06)


def test_throughput_of_pro_behind_a_million_tokens_falls_to_an_eighth() -> None:
    """0.12 at a fixed 16K chunk (MiMo-V2.5 paper, figure 7)."""
    prefill = PROFILES["mimo-v2.5-pro"].prefill
    fresh, behind = (prefill.step_of(0, [[(16_384, context)]]) for context in (0, 1 << 20))

    assert fresh / behind == pytest.approx(0.12, abs=0.01)


def test_pro_holds_five_times_the_tokens_of_an_all_full_model() -> None:
    """Its blog says "nearly 5x effective KV capacity"; here it follows from the SWA pool."""
    pro = PROFILES["mimo-v2.5-pro"]
    memory = (
        pro.rules.full_tokens * pro.shape.token_bytes + pro.rules.swa_tokens * pro.shape.window_token_bytes
    )

    all_full = ModelShape(full_layers=pro.shape.layers, full_layer_bytes=pro.shape.full_layer_bytes)
    assert pro.rules.full_tokens / (memory / all_full.token_bytes) == pytest.approx(5, rel=1e-3)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_holds_its_longest_batch_and_decodes_at_a_usable_speed(name: str) -> None:
    """Room for the windows and states of all that run; 40 tokens/s (PrfaaS's SLO) for a batch of 16 at 8K."""
    profile = PROFILES[name]
    running = profile.max_running // profile.dp_ranks

    assert profile.name == name
    if profile.shape.window_layers:
        assert profile.rules.swa_tokens >= running * 2 * profile.shape.window_tokens
    if profile.shape.state_layers:
        assert profile.rules.state_slots >= running
    assert profile.decode.stretch(16, 16 * 8192).tokens(1.0) > 40


def test_a_faster_profile_differs_in_time_only() -> None:
    profile = PROFILES["dense-70b"]
    twice = profile.faster(2)

    assert twice.prefill.prompt_s(1000, 0) == pytest.approx(profile.prefill.prompt_s(1000, 0) / 2)
    assert twice.rules == profile.rules
    assert twice.decode.stretch(1, 0).seconds(100) == pytest.approx(
        profile.decode.stretch(1, 0).seconds(100) / 2
    )
