"""Tiny models: their files agree with each other, and templates render the parts of chats."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from loadtest.vllm.models import KINDS, TEMPLATE, tiny_model

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ghent"}}}


def rendered(*messages: dict[str, Any], **more: Any) -> str:
    template = jinja2.Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True).from_string(
        TEMPLATE
    )
    return template.render(messages=messages, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_configuration_and_tokenizer_of_a_model_agree(tmp_path: Path, kind: str) -> None:
    model = tiny_model(tmp_path, kind)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    config = json.loads((model / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]
    layers = config.get("layer_types") or config.get("hybrid_layer_pattern") or [0, 0]
    assert len(layers) == config["num_hidden_layers"]


def test_a_text_survives_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model(tmp_path, "qwen3") / "tokenizer.json"))
    text = 'def f(x): return "Überraschung 🙂\n"'
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())


def test_a_model_is_made_once_and_anew_when_it_should_be_another(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "qwen3")
    mark = model / "mark"
    mark.touch()
    assert tiny_model(tmp_path, "qwen3") == model
    assert mark.exists()
    (model / "config.json").write_text("{}")
    tiny_model(tmp_path, "qwen3")
    assert not mark.exists()
    assert json.loads((model / "config.json").read_text())["model_type"] == "qwen3"
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3"]


def test_a_chat_is_rendered_turn_by_turn() -> None:
    text = rendered(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_and_their_calls_are_part_of_the_prompt() -> None:
    text = rendered(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "no"},
        tools=[TOOL],
    )
    assert text.count("Be brief.") == text.count("<|im_start|>system") == 1
    assert '"name": "weather", "parameters"' in text
    assert '<tool_call>\n{"arguments": {"city": "Ghent"}, "name": "weather"}\n</tool_call>' in text
    assert text.endswith("<|im_start|>tool\nno<|im_end|>\n")
