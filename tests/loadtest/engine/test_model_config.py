"""Layers from ``config.json``, in the forms that models have."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.engine.model_config import read_shape, shape_of
from loadtest.engine.profiles import PROFILES
from loadtest.engine.shape import ModelShape

FLASH: dict[str, Any] = {
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 8,
    "sliding_window": 128,
    "hybrid_layer_pattern": [0, *([1] * 4 + [0]) * 7, *[1] * 11, 0],
}


def test_a_pattern_of_windows_gives_the_profile_that_was_written_by_hand() -> None:
    assert shape_of(FLASH) == PROFILES["mimo-v2-flash"].shape


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ({}, ModelShape(full_layers=4, full_layer_bytes=2 * (8 + 8) * 2)),
        (
            {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2},
            ModelShape(
                full_layers=2, full_layer_bytes=64, window_layers=2, window_layer_bytes=64, window_tokens=64
            ),
        ),
        (
            {"sliding_window": 64, "sliding_window_pattern": 4},
            ModelShape(
                full_layers=1, full_layer_bytes=64, window_layers=3, window_layer_bytes=64, window_tokens=64
            ),
        ),
        ({"sliding_window": 64, "use_sliding_window": False}, ModelShape(full_layers=4, full_layer_bytes=64)),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, ModelShape(full_layers=4, full_layer_bytes=1152)),
        (
            {
                "linear_attn_config": {
                    "kda_layers": [1, 2, 3],
                    "full_attn_layers": [4],
                    "num_heads": 2,
                    "head_dim": 16,
                    "short_conv_kernel_size": 4,
                }
            },
            ModelShape(
                full_layers=1,
                full_layer_bytes=64,
                state_layers=3,
                state_layer_bytes=2 * 16 * 16 * 4 + 2 * 48 * 3 * 2,
            ),
        ),
        (
            {
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            ModelShape(
                full_layers=1,
                full_layer_bytes=64,
                state_layers=3,
                state_layer_bytes=2 * 16 * 16 * 4 + 2 * 48 * 3 * 2,
            ),
        ),
    ],
)
def test_every_form_of_layers_is_read(more: dict[str, Any], shape: ModelShape, tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
    } | more
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"text_config": config}))

    assert read_shape(file) == shape


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"{", "not JSON"),
        (b"[]", "num_hidden_layers: None"),
        (b'{"num_hidden_layers": 1e99}', "not a whole number"),
        (b'{"num_hidden_layers": true}', "not a whole number"),
        (b'{"num_hidden_layers": 99999}', "more than 4096"),
        (b'{"num_hidden_layers": 3, "layer_types": ["full_attention"]}', "but 1 layers are described"),
        (b'{"num_hidden_layers": 1, "sliding_window": 9}', "without a layer of full attention"),
        (b'{"num_hidden_layers": 1, "num_attention_heads": 1}', "hidden_size: None"),
    ],
)
def test_what_does_not_say_its_layers_is_refused(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ValueError, match=says):
        read_shape(file)
