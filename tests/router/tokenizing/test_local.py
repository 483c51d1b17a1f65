import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from fakes.tokenizers import tokenizer, write

from router.gateway.endpoints import Endpoint
from router.tokenizing.local import LocalTokenizer
from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import Cause, NotTokenized
from router.tokenizing.tokenizer_files import UnusableTokenizer

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def local(folder: Path, **more: Any) -> LocalTokenizer:
    return LocalTokenizer(write(folder / "m", **more), Remembered(1 << 20))


def found(one: LocalTokenizer, endpoint: Endpoint, **body: Any) -> list[list[int]]:
    packed = one.packed(endpoint, json.dumps({"model": "m", **body}).encode())
    return [list(array("I", each)) for each in packed]


def test_a_chat_is_rendered_and_tokenized(tmp_path: Path) -> None:
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "user", "content": "hello"}]
    one = local(tmp_path)
    assert found(one, CHAT, messages=messages) == [tokenizer().encode(text).ids]
    assert one.texts.boundaries == ["<|im_start|>", "<|im_end|>", "<|bos|>", "<|endoftext|>"]


def test_a_template_for_tools_is_used_where_there_are_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    one = local(tmp_path, template=None, chat_template=named)
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "hello"}]
    assert found(one, CHAT, messages=messages) == [tokenizer().encode("plain").ids]
    assert found(one, CHAT, messages=messages, tools=tools) == [tokenizer().encode("tools").ids]


def test_texts_are_opened_unless_the_request_says_otherwise(tmp_path: Path) -> None:
    one = local(tmp_path, add_bos_token=True)
    bos = tokenizer().token_to_id("<|bos|>")
    hello, fox = (tokenizer().encode(text).ids for text in ("hello", "fox"))
    assert found(one, COMPLETIONS, prompt="hello") == [[bos, *hello]]
    assert found(one, COMPLETIONS, prompt=["hello", "fox"], add_special_tokens=False) == [hello, fox]
    messages = [{"role": "user", "content": "hello"}]
    (plain,) = found(one, CHAT, messages=messages)
    assert found(one, CHAT, messages=messages, add_special_tokens=True) == [[bos, *plain]]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, {"prompt": ["a", [1, 2]]}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": None}),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 1}),
        (CHAT, {"messages": [{"role": "user", "content": float("nan")}]}),
    ],
)
def test_what_cannot_be_known_here_is_refused(
    tmp_path: Path, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    with pytest.raises(NotTokenized) as caught:
        found(local(tmp_path), endpoint, **body)
    assert caught.value.cause is Cause.UNSUPPORTED


def test_without_a_template_only_texts_are_tokenized(tmp_path: Path) -> None:
    one = local(tmp_path, template=None)
    assert found(one, COMPLETIONS, prompt="hello")
    with pytest.raises(NotTokenized, match="no chat template"):
        found(one, CHAT, messages=[{"role": "user", "content": "hello"}])


def test_a_template_that_is_none_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnusableTokenizer, match="chat template"):
        local(tmp_path, template="{% for %}")


def test_what_tells_the_day_is_another_prompt_tomorrow(tmp_path: Path) -> None:
    assert local(tmp_path).variant() == ""
    told = write(tmp_path / "time", template="{{ strftime_now('%d') }}")
    assert len(LocalTokenizer(told, Remembered(1 << 20)).variant()) == 10


def test_whole_numbers_stay_what_they_are(tmp_path: Path) -> None:
    """A JSON decoder that makes floats of long ones would give the template other digits."""
    one = local(tmp_path, template="{{ tools | tojson }}")
    parameters = {"n": 123456789012345678901234567890}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (packed,) = found(one, CHAT, messages=[{"role": "user", "content": "a"}], tools=tools)
    assert "123456789012345678901234567890" in tokenizer().decode(packed)
