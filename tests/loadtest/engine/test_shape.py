"""The arithmetic of KV memory, checked against published papers."""

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.engine.shape import ModelShape, gqa_bytes, kda_state_bytes, mla_bytes

MIB = 1 << 20


def test_hybrid_attention_gains_nearly_seven_times_the_capacity_of_mimo_pro() -> None:
    """70 layers, 10 full, 60 with W = 128 (MiMo-V2.5 paper, 3.1): long contexts come near 70/10."""
    shape = PROFILES["mimo-v2.5-pro"].shape

    assert (shape.layers, shape.full_layers, shape.window_tokens) == (70, 10, 128)
    full = ModelShape(full_layers=shape.layers, full_layer_bytes=shape.full_layer_bytes)
    gains = {tokens: full.kv_bytes(tokens) / shape.kv_bytes(tokens) for tokens in (2**17, 2**13, 100)}
    assert 6.9 < gains[2**17] < 7
    assert gains[2**13] == pytest.approx(70 * 8192 / (10 * 8192 + 60 * 128))
    assert gains[100] == 1


def test_the_model_of_prfaas_weighs_what_its_table_5_says() -> None:
    """MiB at 1K, 8K, 32K, 128K tokens: the first two exactly, the others within 2 %."""
    shape = PROFILES["kimi-linear-1t"].shape
    sizes = [shape.kv_bytes(kilo * 1024) / MIB for kilo in (1, 8, 32, 128)]

    assert sizes[:2] == pytest.approx([190.8, 308.9], abs=0.05)
    assert sizes == pytest.approx([190.8, 308.9, 701.3, 2316.3], rel=0.02)


def test_layers_keep_what_their_kind_keeps() -> None:
    """Llama-3-70B's 320 KiB a token; DeepSeek's latent of 576; a window stops growing; a state never does."""
    assert PROFILES["dense-70b"].shape.kv_bytes(1) == 320 * 1024
    assert mla_bytes(512, 64) == 1152
    assert gqa_bytes(8, 192, 128) == 5120
    assert kda_state_bytes(1, 2, 3, 1) == 4 * 6 + 2 * 7
    shape = ModelShape(
        full_layers=2,
        full_layer_bytes=10,
        window_layers=3,
        window_layer_bytes=7,
        window_tokens=4,
        state_layers=1,
        state_layer_bytes=1000,
    )

    assert [shape.kv_bytes(tokens) for tokens in (0, 1, 4, 5)] == [0, 1041, 1164, 1184]


def test_pools_fill_the_memory_and_no_more() -> None:
    """21 bytes of windows per full token of 20 at ratio 1/3: 27 bytes a token; two ranks halve the memory."""
    shape = ModelShape(
        full_layers=2, full_layer_bytes=10, window_layers=3, window_layer_bytes=7, window_tokens=4
    )
    whole, half = shape.pools(27_000, swa_ratio=1 / 3), shape.pools(27_000, swa_ratio=1 / 3, ranks=2)

    assert (whole.full_tokens, whole.swa_tokens, whole.state_slots) == (1000, 333, 0)
    assert (half.full_tokens, half.swa_tokens) == (500, 166)


def test_latent_kv_costs_a_copy_on_every_tensor_parallel_rank_and_states_have_their_share() -> None:
    shape = ModelShape(full_layers=1, full_layer_bytes=10, state_layers=1, state_layer_bytes=50)
    pools = shape.pools(16_000, state_ratio=1.0, copies=8)

    assert (pools.full_tokens, pools.state_slots) == (100, 160)
