"""The layers of a model from its ``config.json``, as Hugging Face's transformers writes it.

| layers | named by |
|---|---|
| kinds | ``layer_types``; ``hybrid_layer_pattern`` (MiMo: 1 is a window); ``linear_attn_config`` (Kimi); ``sliding_window_pattern`` (every n-th is full); ``sliding_window`` alone: all |
| grouped heads | ``num_key_value_heads``, ``head_dim``, ``v_head_dim``; of windows ``swa_...`` |
| latent | ``kv_lora_rank`` and ``qk_rope_head_dim`` |
| states | ``linear_attn_config`` (KDA), or ``linear_num_value_heads`` and its kin (gated delta rule) |
"""  # noqa: E501 - a table

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadtest.engine.shape import ModelShape, gqa_bytes, kda_state_bytes, mla_bytes

FILE_BYTES_MAX = 1 << 20

LAYERS_MAX = 4_096

NUMBER_MAX = 1 << 24
"""Beyond any head, window or rank."""

Config = Mapping[str, Any]


def read_shape(path: Path) -> ModelShape:
    """Read the layers of a model.

    Raises:
        ValueError: The file cannot be read, or does not say what its layers are; it says what is missing.
    """
    try:
        with path.open("rb") as file:
            config = msgspec.json.decode(file.read(FILE_BYTES_MAX))
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except msgspec.DecodeError:
        raise ValueError(f"{str(path)!r} is not JSON of at most {FILE_BYTES_MAX:,} bytes") from None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    return shape_of(config if isinstance(config, dict) else {})


def shape_of(config: Config) -> ModelShape:
    """The layers of a decoded ``config.json``; `ValueError` as in `read_shape`."""
    kinds = _kinds(config)
    windows, states = kinds.count("window"), kinds.count("state")
    full = len(kinds) - windows - states
    if not full:
        raise ValueError("a model without a layer of full attention is not modelled")
    return ModelShape(
        full_layers=full,
        full_layer_bytes=_layer_bytes(config, ""),
        window_layers=windows,
        window_layer_bytes=_layer_bytes(config, "swa_") if windows else 0,
        window_tokens=_number(config, "sliding_window") if windows else 0,
        state_layers=states,
        state_layer_bytes=_state_bytes(config) if states else 0,
    )


def _kinds(config: Config) -> list[str]:
    """Kind of each layer: ``full``, ``window`` or ``state``."""
    layers = _number(config, "num_hidden_layers")
    if layers > LAYERS_MAX:
        raise ValueError(f"num_hidden_layers: {layers} are more than {LAYERS_MAX}")
    types, pattern = config.get("layer_types"), config.get("hybrid_layer_pattern")
    linear = config.get("linear_attn_config")
    if isinstance(types, list):
        kinds = [_kind(str(name)) for name in types]
    elif isinstance(pattern, list):
        kinds = ["window" if one == 1 else "full" for one in pattern]
    elif isinstance(linear, dict):
        kinds = ["state"] * len(_list(linear, "kda_layers")) + ["full"] * len(
            _list(linear, "full_attn_layers")
        )
    elif config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        kinds = ["full"] * layers
    else:
        every = config.get("sliding_window_pattern")
        step = every if isinstance(every, int) and 0 < every <= layers else layers + 1
        kinds = ["full" if number % step == 0 else "window" for number in range(1, layers + 1)]
    if len(kinds) != layers:
        raise ValueError(f"num_hidden_layers is {layers}, but {len(kinds)} layers are described")
    return kinds


def _kind(name: str) -> str:
    if "sliding" in name or "window" in name:
        return "window"
    if "linear" in name or "mamba" in name:
        return "state"
    return "full"


def _layer_bytes(config: Config, prefix: str) -> int:
    """Bytes that a layer keeps per token; fields with the prefix go before those without."""
    if config.get("kv_lora_rank"):
        return mla_bytes(_number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim"))

    def field(name: str, default: int | None = None) -> int:
        return _number(config, prefix + name, _number(config, name, default) if prefix else default)

    heads = _number(config, "num_attention_heads")
    plain = None if config.get("head_dim") else _number(config, "hidden_size") // heads
    head_dim = field("head_dim", plain)
    return gqa_bytes(field("num_key_value_heads", heads), head_dim, field("v_head_dim", head_dim))


def _state_bytes(config: Config) -> int:
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict):
        dim = _number(linear, "head_dim")
        kernel = _number(linear, "short_conv_kernel_size", 4)
        return kda_state_bytes(_number(linear, "num_heads"), dim, dim, kernel - 1)
    return kda_state_bytes(
        _number(config, "linear_num_value_heads"),
        _number(config, "linear_key_head_dim"),
        _number(config, "linear_value_head_dim"),
        _number(config, "linear_conv_kernel_dim", 4) - 1,
    )


def _list(config: Config, name: str) -> list[Any]:
    found = config.get(name)
    return found if isinstance(found, list) else []


def _number(config: Config, name: str, default: int | None = None) -> int:
    found = config.get(name, default)
    if found is None:
        found = default
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= NUMBER_MAX:
        raise ValueError(f"config.json says {name}: {found!r:.60}, not a whole number from 1 to {NUMBER_MAX}")
    return found
