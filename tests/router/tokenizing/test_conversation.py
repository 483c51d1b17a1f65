"""Templates are given what vLLM gives them: its renderings, recorded, and what is refused instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.tokenizing.chat_template import ChatTemplate
from router.tokenizing.conversation import conversation_of
from router.tokenizing.refusal import Cause, NotTokenized

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded/vllm_0_32_chats.json").read_text())
"""Bodies, templates and what vLLM 0.32 renders: tools, tool calls, parts, reasoning, developers, prefills."""

TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
TEMPLATES = [ChatTemplate(source, TOKENS) for source in RECORDED["templates"]]
PLAIN = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})


def rendered(body: dict[str, Any], template: ChatTemplate) -> str:
    said = conversation_of(body, template)
    return template.render(
        said.messages,
        said.tools,
        said.documents,
        add_generation_prompt=said.add_generation_prompt,
        continue_final_message=said.continue_final_message,
        values=said.values,
    )


def test_all_recorded_chats_are_rendered_as_vllm_renders_them() -> None:
    assert len(RECORDED["chats"]) == 150
    for chat in RECORDED["chats"]:
        assert rendered(chat["body"], TEMPLATES[chat["template"]]) == chat["text"], chat["body"]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **more}


MEDIA = {"type": "image_url", "image_url": {"url": "http://example.test/a.png"}}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [user("a")], "chat_template": "{{ 1 }}"},
        {"messages": [user("a")], "truncate_prompt_tokens": 5},
        {"messages": [user("a")], "mm_processor_kwargs": {"x": 1}},
        {"messages": [user([MEDIA])]},
        {"messages": [user([{"type": "text", "text": "a", "uuid": "u"}])]},
        {"messages": [user([{"type": "text", "text": 5}])]},
        {"messages": [user(5)]},
        {"messages": [5]},
        {"messages": "a"},
        {},
        {"messages": [{"content": "a"}]},
        {"messages": [assistant(tool_calls=[{"type": "function", "function": {"name": "f"}, "id": "c"}])]},
        {"messages": [assistant(tool_calls=[{"type": "custom", "id": "c", "function": {}}])]},
        {"messages": [assistant(tool_calls={"a": 1})]},
        {"messages": [{"role": "developer", "content": "a", "tools": [{}]}]},
        {"messages": [user("a")], "tools": [{"type": "web_search"}]},
        {"messages": [user("a")], "tools": {"a": 1}},
        {"messages": [user("a")], "tools": [{"type": "custom", "function": {"name": "f"}}]},
        {"messages": [user("a")], "documents": "a"},
        {"messages": [user("a")], "add_generation_prompt": "yes"},
        {"messages": [user("a")], "chat_template_kwargs": [1]},
        {"messages": [user("a")], "chat_template_kwargs": {"messages": []}},
        {"messages": [user("a")], "chat_template_kwargs": {"tools": []}},
    ],
)
def test_what_only_the_engine_can_follow_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(NotTokenized) as caught:
        conversation_of(body, PLAIN)
    assert caught.value.cause is Cause.UNSUPPORTED


def test_a_body_is_left_as_it_was() -> None:
    """The same decoded body may be rendered again."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    body = {"messages": [{"role": "developer", "content": "d"}, user("a"), assistant(tool_calls=[call])]}
    before = json.dumps(body)
    first = rendered(body, PLAIN)
    assert json.dumps(body) == before
    assert rendered(body, PLAIN) == first
