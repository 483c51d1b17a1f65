"""Tiny models for real engines: a configuration, a tokenizer and a chat template, and no weights.

vLLM makes weights up (``--load-format dummy``, equal for equal seeds), so two engines of a model give the
same answer, which is noise. Their caches behave as large ones:

| kind      | class                   | layers                                             |
|-----------|-------------------------|----------------------------------------------------|
| `qwen3`   | Qwen3ForCausalLM        | 2 with full attention                              |
| `gemma3`  | Gemma3ForCausalLM       | 5 with a window of 64 tokens, 1 full               |
| `mimo_v2` | MiMoV2FlashForCausalLM  | 1 full, 3 with a window of 64 tokens, sinks, experts |

MiMo-V2-Flash has keys of 192 and values of 128. Heads of unequal size need vLLM's Triton backend, which no
CPU has, so here both have 64 (vllm/v1/attention/backends/triton_attn_diffkv.py). The tokenizer is a
byte-level BPE of 2,048 tokens, trained on a part of Python's own library. The template has roles, tools and
their calls, in the manner of Hermes.
"""

import json
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

WINDOW_TOKENS = 64
VOCABULARY = 2048
POSITIONS = 32_768

END_OF_TEXT, TURN_STARTS, TURN_ENDS, BEGINS = SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|bos|>",
)

CORPUS = (
    "argparse",
    "ast",
    "difflib",
    "functools",
    "inspect",
    "pathlib",
    "pydoc",
    "random",
    "statistics",
    "typing",
)
"""Modules of the library that the tokenizer is trained on."""

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}
{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message['role'] == 'system') %}{{ '<|im_start|>' }}\
{{- message['role'] + '\\n' }}
{%- if message['content'] is string %}{{ message['content'] }}
{%- else %}{% for part in message['content'] or [] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
{%- endif %}{% endfor %}
{%- endif %}
{%- for call in message['tool_calls'] or [] %}{{ '\\n<tool_call>\\n' }}{{ call['function'] | tojson }}\
{{ '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "initializer_range": 0.02,
    "use_cache": True,
}

_KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "use_sliding_window": False,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 6,
        "sliding_window": WINDOW_TOKENS,
        "sliding_window_pattern": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": 32,
        "rope_local_base_freq": 10_000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "mimo_v2": {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "v_head_dim": 64,
        "swa_head_dim": 64,
        "swa_v_head_dim": 64,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_rope_theta": 10_000.0,
        "sliding_window": WINDOW_TOKENS,
        "sliding_window_size": WINDOW_TOKENS,
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_value_scale": 0.7,
        "partial_rotary_factor": 0.5,
        "layernorm_epsilon": 1e-6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_shared_experts": None,
        "moe_layer_freq": [0, 1, 1, 1],
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
    },
}

KINDS = tuple(_KINDS)


def tiny_model(folder: Path, kind: str) -> Path:
    """Return the folder of a tiny model of a kind in `KINDS`, made unless it is there and up to date."""
    wanted = json.dumps(_configuration(kind), indent=1)
    made = folder / kind
    as_wanted = {"config.json": wanted, "chat_template.jinja": TEMPLATE}
    if all((made / name).exists() and (made / name).read_text() == text for name, text in as_wanted.items()):
        return made
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=folder))
    try:
        for name, text in as_wanted.items():
            (fresh / name).write_text(text)
        _tokenizer().save(str(fresh / "tokenizer.json"))
        (fresh / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_SETTINGS, indent=1))
        (fresh / "generation_config.json").write_text(json.dumps(_token_ids(), indent=1))
        fresh.chmod(0o755)
        shutil.rmtree(made, ignore_errors=True)
        try:
            fresh.rename(made)
        except OSError:
            if not made.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return made


def _configuration(kind: str) -> dict[str, Any]:
    return {**_BASE, "vocab_size": VOCABULARY, **_token_ids(), **_KINDS[kind]}


def _token_ids() -> dict[str, int]:
    """Special tokens come first in the vocabulary, in their order."""
    return {
        "bos_token_id": SPECIAL.index(BEGINS),
        "eos_token_id": SPECIAL.index(TURN_ENDS),
        "pad_token_id": SPECIAL.index(END_OF_TEXT),
    }


_TOKENIZER_SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": POSITIONS,
    "bos_token": BEGINS,
    "eos_token": TURN_ENDS,
    "pad_token": END_OF_TEXT,
    "additional_special_tokens": list(SPECIAL),
    "clean_up_tokenization_spaces": False,
}


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_corpus(), trainer=trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def _corpus() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in CORPUS:
        yield (library / f"{module}.py").read_text()
