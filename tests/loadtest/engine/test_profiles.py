"""Profiles stand where their sources put them."""

import pytest

from loadtest.engine.parallelism import Parallelism
from loadtest.engine.profiles import PROFILES, make_profile
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


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_without_a_word_on_parallelism_a_profile_is_the_published_one(name: str) -> None:
    assert make_profile(name) is PROFILES[name]
    assert PROFILES[name].gpus == PROFILES[name].tensor_parallel * PROFILES[name].dp_ranks


def test_half_the_expert_parallel_size_serves_forty_percent_more_per_gpu() -> None:
    """Its paper, 5.1: about 40 %. Two engines of 4 GPUs instead of one of 8, at any length."""
    whole = PROFILES["mimo-v2-flash"]
    half = make_profile("mimo-v2-flash", Parallelism(expert_parallel=4))

    assert (half.gpus, half.tensor_parallel) == (4, 2)
    for tokens, cached in ((1_024, 0), (32_768, 100_000)):
        ratio = 2 * whole.prefill.prompt_s(tokens, cached) / half.prefill.prompt_s(tokens, cached)
        assert ratio == pytest.approx(1.4)
    # The weights are there twice, so less than half is left for KV.
    assert half.rules.full_tokens < whole.rules.full_tokens / 2
    assert half.decode.request_s == pytest.approx(2 * whole.decode.request_s)


def test_pipeline_stages_halve_the_expert_parallel_size_on_the_same_gpus() -> None:
    """Its paper expects it of them (5.1); a token of decode passes all stages, each with its overhead."""
    whole = PROFILES["mimo-v2.5-pro"]
    staged = make_profile("mimo-v2.5-pro", Parallelism(expert_parallel=8, pipeline_parallel=2))

    assert (staged.gpus, staged.rules) == (whole.gpus, whole.rules)
    ratio = whole.prefill.prompt_s(32_768, 0) / staged.prefill.prompt_s(32_768, 0)
    assert ratio == pytest.approx(1.4)
    assert staged.decode.base_s == pytest.approx(2 * whole.decode.base_s)
    assert staged.decode.kv_token_s == whole.decode.kv_token_s


def test_stages_of_a_model_without_experts_bring_memory_and_speed_in_proportion() -> None:
    whole = PROFILES["dense-70b"]
    staged = make_profile("dense-70b", Parallelism(pipeline_parallel=2))

    assert staged.gpus == 2 * whole.gpus
    assert staged.prefill.prompt_s(8_192, 0) == pytest.approx(whole.prefill.prompt_s(8_192, 0) / 2)
    assert staged.rules.full_tokens > 2 * whole.rules.full_tokens


def test_even_experts_would_save_their_part_of_what_the_busiest_rank_costs() -> None:
    """Its paper, 5.3: 0.85. Of Flash, 9.66B of 15B active parameters are experts'."""
    whole = PROFILES["mimo-v2-flash"]
    even = make_profile("mimo-v2-flash", Parallelism(expert_balance=1.0))

    share = 8 / 256 * 309 / 15
    assert even.prefill.linear_s(1_000) / whole.prefill.linear_s(1_000) == pytest.approx(1 - 0.15 * share)
    assert even.prefill.attention_s(1_000, 50_000) == pytest.approx(whole.prefill.attention_s(1_000, 50_000))


def test_switching_numa_balancing_off_gains_ten_percent() -> None:
    """Its paper, 5.4: about 10 %, end to end."""
    off = PROFILES["mimo-v2.5-pro"]
    on = make_profile("mimo-v2.5-pro", Parallelism(numa_balancing=True))

    assert on.prefill.prompt_s(9_000, 0) / off.prefill.prompt_s(9_000, 0) == pytest.approx(1.1)
    assert on.decode.stretch(9, 9_000).step_s / off.decode.stretch(9, 9_000).step_s == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("name", "parallelism", "says"),
    [
        ("mimo-v2.5-pro", Parallelism(expert_parallel=8), "8 GPUs have 790 GB .* weights take 1020 GB"),
        ("mimo-v2-flash", Parallelism(expert_parallel=5), "2 data-parallel ranks"),
        ("dense-70b", Parallelism(expert_parallel=4), "dense-70b has no experts"),
        ("dense-70b", Parallelism(expert_balance=1.0), "dense-70b has no experts"),
        ("kimi-linear-1t", Parallelism(prefill_mtp=False), "decodes without MTP"),
        ("mimo-v2-flash", Parallelism(pipeline_parallel=49), "48 layers"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(name: str, parallelism: Parallelism, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_profile(name, parallelism)
