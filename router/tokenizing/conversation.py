"""Input of a chat template for a request's body, as vLLM 0.32 makes it.

A body passes pydantic first, which puts the known fields into its own order, unknown ones behind them, and
drops unknown fields of messages (``entrypoints/openai/chat_completion/protocol.py``). Then each message is
rebuilt (``renderers/chat_utils.py``), and unset fields are left out (``renderers/params.py``). Templates show
these orders where they write JSON. The result for a body that vLLM refuses is undefined.

Refused here, so that the prompt keeps its text identity: media and embeddings, a template of the request's
own, prompts that the engine cuts, and shapes that the OpenAI API does not have.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from router.gateway.conversation import BILLING_HEADER
from router.tokenizing.chat_template import ChatTemplate, Message
from router.tokenizing.refusal import Cause, NotTokenized

NOT_RENDERED_HERE = ("chat_template", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs")
"""Fields of a body that only the engine can follow."""

_RESERVED = frozenset(
    (
        *("chat_template", "conversation", "documents", "max_length", "messages", "padding"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs"),
        *("tools", "truncation"),
    )
)
"""Keys of ``chat_template_kwargs`` that change more than the template's variables."""

_SWITCHES = frozenset(("add_generation_prompt", "continue_final_message"))
"""Fields of a body that are always set, and override ``chat_template_kwargs``."""

_PART_FIELDS = frozenset(
    (
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil"),
        *(
            "image_url",
            "input_audio",
            "name",
            "prompt_cache_breakpoint",
            "refusal",
            "text",
            "thinking",
            "type",
        ),
        *("uuid", "video_embeds", "video_url"),
    )
)


class _Aside(dict[str, Any]):
    """A refusal or a thought, which is text in all but one rule."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a template; see `ChatTemplate.render`."""

    messages: list[Message]
    tools: list[Any] | None
    documents: list[Any] | None
    add_generation_prompt: bool
    continue_final_message: bool
    values: Mapping[str, Any]


def conversation_of(body: Mapping[str, Any], template: ChatTemplate) -> Conversation:
    """Convert a decoded chat body to the input of a template; raise NotTokenized if that is impossible."""
    for name in NOT_RENDERED_HERE:
        if body.get(name) is not None:
            raise NotTokenized(Cause.UNSUPPORTED, f"it has {name}")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise NotTokenized(Cause.UNSUPPORTED, "it has no list of messages")
    turns = [_turn(message, template.takes_parts) for message in messages]
    if not template.knows_developers and any(turn["role"] == "developer" for turn in turns):
        turns = _with_one_system(turns)
    tools = body.get("tools")
    return Conversation(
        turns,
        None if tools is None else [_tool(tool) for tool in _list(tools, "tools")],
        None if body.get("documents") is None else _list(body["documents"], "documents"),
        _switch(body, "add_generation_prompt", default=True),
        _switch(body, "continue_final_message", default=False),
        _values(body),
    )


def template_values(body: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a request gives to its template, those that a field implies included."""
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise NotTokenized(Cause.UNSUPPORTED, "its chat_template_kwargs are no object")
    values = dict(given or {})
    effort = body.get("reasoning_effort")
    if effort is not None:
        values["reasoning_effort"] = effort
        if "enable_thinking" not in (given or {}):
            values["enable_thinking"] = effort != "none"
    return values


def _values(body: Mapping[str, Any]) -> dict[str, Any]:
    values = template_values(body)
    if not _RESERVED.isdisjoint(values):
        raise NotTokenized(Cause.UNSUPPORTED, "its chat_template_kwargs are no values of a template")
    return {
        name: value
        for name, value in values.items()
        if name not in _SWITCHES and value is not None and value != "auto"
    }


def _switch(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise NotTokenized(Cause.UNSUPPORTED, f"{name} is no boolean")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise NotTokenized(Cause.UNSUPPORTED, f"{name} is no list")
    return value


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotTokenized(Cause.UNSUPPORTED, f"{name} is no object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise NotTokenized(Cause.UNSUPPORTED, "something that must be text is none")
    return value


def _turn(message: Any, takes_parts: bool) -> Message:
    """Convert one message."""
    message = _dict(message, "a message")
    role, content = _text(message.get("role")), message.get("content")
    texts: list[Message | str]
    if isinstance(content, str):
        texts = [content]
    elif content is None:
        texts = []
    else:
        texts = [_part(part) for part in _list(content, "content")]
    if role == "system":
        texts = _without_billing(texts)
    if takes_parts and role != "tool":
        turn: Message = {
            "role": role,
            "content": [{"type": "text", "text": text} if isinstance(text, str) else text for text in texts],
        }
    else:
        lines = [text if isinstance(text, str) else text["text"] for text in texts]
        # vLLM drops empty text parts; those of a tool were parts first.
        turn = {"role": role, "content": "\n".join(lines if takes_parts else filter(None, lines))}
    if role == "assistant":
        if message.get("tool_calls"):
            turn["tool_calls"] = [_call(call) for call in _list(message["tool_calls"], "tool_calls")]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            turn["reasoning"] = turn["reasoning_content"] = _text(reasoning)
    elif role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            turn[name] = message[name]
    if role == "developer":
        if message.get("tools") is not None:
            raise NotTokenized(Cause.UNSUPPORTED, "a developer brings tools")
        turn["tools"] = None
    return turn


def _part(part: Any) -> Message | str:
    """Convert one content part to text, or to text with the other fields of its object."""
    if isinstance(part, str):
        return part
    part = _dict(part, "a content part")
    kind = part.get("type")
    if kind not in ("text", "refusal", "thinking") or "uuid" in part:
        raise NotTokenized(Cause.UNSUPPORTED, "it has content that is no text")
    text = _text(part.get(kind))
    more = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    if kind != "text":
        return _Aside({"type": "text", "text": text, **more})
    return {"type": "text", "text": text, **more} if more else text


def _without_billing(texts: list[Message | str]) -> list[Message | str]:
    """Drop Claude Code's line that differs in every request."""
    remaining: list[Message | str] = []
    for text in texts:
        raw = text if isinstance(text, str) else text["text"]
        if not raw.startswith(BILLING_HEADER) or isinstance(text, _Aside):
            remaining.append(text)
        elif rest := raw.partition("\n")[2]:
            remaining.append(rest if isinstance(text, str) else {**text, "text": rest})
    return remaining


def _call(call: Any) -> Message:
    """Convert a tool call: known fields in pydantic's order, others behind them, arguments decoded."""
    call = _dict(call, "a tool call")
    function = _dict(call.get("function"), "a function")
    if call.get("type") != "function":
        raise NotTokenized(Cause.UNSUPPORTED, "a tool call is of no function")
    arguments: Any = {}
    if raw := _text(function.get("arguments")):
        with suppress(ValueError):
            arguments = json.loads(raw)
        if not isinstance(arguments, dict):
            arguments = {}
    picked: Message = {"arguments": arguments, "name": _text(function.get("name"))}
    picked.update((name, value) for name, value in function.items() if name not in picked)
    turned: Message = {"id": _text(call.get("id")), "function": picked, "type": "function"}
    turned.update((name, value) for name, value in call.items() if name not in turned)
    return turned


def _tool(tool: Any) -> Message:
    """Reduce a tool to the fields that vLLM knows, in its order."""
    tool = _dict(tool, "a tool")
    function = _dict(tool.get("function"), "a function")
    if tool.get("type", "function") != "function":
        raise NotTokenized(Cause.UNSUPPORTED, "a tool is no function")
    parameters, deferred = function.get("parameters"), tool.get("defer_loading")
    picked: Message = {
        "name": _text(function.get("name")),
        "description": None if function.get("description") is None else _text(function["description"]),
        "parameters": None if parameters is None else _dict(parameters, "parameters"),
    }
    if function.get("strict") is not None:
        picked["strict"] = function["strict"]
    raw = function.get("defer_loading")
    if raw is not None or deferred is not None:
        picked["defer_loading"] = deferred if raw is None else raw
    return {
        "type": "function",
        "function": picked,
        **({} if deferred is None else {"defer_loading": deferred}),
    }


def _with_one_system(turns: list[Message]) -> list[Message]:
    """Merge the messages of developers and systems into one at the start."""
    turned = [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns]
    for turn, before in zip(turned, turns, strict=True):
        if before["role"] == "developer":
            turn.pop("tools", None)
    systems = [turn for turn in turned if turn["role"] == "system"]
    if len(systems) == 1 and turned[0] is systems[0]:
        return turned
    contents = []
    for turn in systems:
        content = turn["content"]
        if not isinstance(content, str):
            content = "\n".join(part["text"] for part in content)
        if content:
            contents.append(content)
    merged = {"role": "system", "content": "\n\n".join(contents)}
    return [merged, *(turn for turn in turned if turn["role"] != "system")]
