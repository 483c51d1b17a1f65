"""The chat template: a conversation becomes the tokens of a prompt.

    tools   [TOOLS] canonical JSON
    message [START] role [BODY] content, media, tool calls [END]     one after the other
    prompt  [START] assistant [BODY]                                 what the model continues

Marks are four bytes that begin with 0xFF and so are never text. Every part begins on a token boundary, so an
answer that returns as a message gives the tokens with which it was generated, and its blocks are in the
cache. The three chat APIs render the same. Media are a fixed number of tokens that depend on their URL or
data.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import xxhash

from loadtest.engine.outputs import pack_tool_head
from loadtest.engine.tokens import pad

_START = b"\xff\x00\x00\x01"
_BODY = b"\xff\x00\x00\x02"
_END = b"\xff\x00\x00\x03"
_TOOLS = b"\xff\x00\x00\x04"

_MEDIA_REPEATS = 16
"""A media part is 16 digests of 16 bytes: 64 tokens, like a small image tile."""

_OPENING = _START + pad(b"assistant") + _BODY


class BadPrompt(ValueError):
    """The conversation has a shape that no engine accepts."""


def render_chat(messages: Any, tools: Any, *, generate: bool = True) -> bytes:
    """Render OpenAI or Anthropic messages to packed tokens; ``generate`` opens the assistant's answer.

    Raises:
        BadPrompt: The messages are no list of objects with a role.
    """
    if not isinstance(messages, list) or not messages:
        raise BadPrompt("messages must be a list with at least one message")
    out: list[bytes] = []
    if tools:
        out += (_TOOLS, pad(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)), _END)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadPrompt("every message must be an object with a role")
        _message(message, out)
    if generate:
        out.append(_OPENING)
    return b"".join(out)


def anthropic_messages(body: Mapping[str, Any]) -> Any:
    """Anthropic's ``system`` and ``messages`` as one list of messages."""
    messages = body.get("messages")
    system = body.get("system")
    if system and isinstance(messages, list):
        return [{"role": "system", "content": system}, *messages]
    return messages


def responses_messages(body: Mapping[str, Any]) -> Any:
    """``instructions`` and ``input`` of the responses API as messages.

    `BadPrompt` if an item is not an object.
    """
    given = body.get("input")
    items: Any = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise BadPrompt("input must be a string or a list")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in items:
        if not isinstance(item, dict):
            raise BadPrompt("every item of input must be an object")
        kind = item.get("type", "message")
        if kind == "function_call":
            messages.append({"role": "assistant", "tool_calls": [{"function": item}]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output")})
        else:
            messages.append({"role": "user"} | item)
    return messages


def _message(message: Mapping[str, Any], out: list[bytes]) -> None:
    out += (_START, pad(message["role"].encode()), _BODY)
    for key in ("reasoning_content", "content"):
        _content(message.get(key), out)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                _tool_call(function.get("name"), function.get("arguments"), out)
    out.append(_END)


def _content(content: Any, out: list[bytes]) -> None:
    """Text is joined over parts and filled up to whole tokens where anything else begins."""
    if isinstance(content, str):
        out.append(pad(content.encode()))
        return
    if content is None:
        return
    if not isinstance(content, list):
        raise BadPrompt("content must be a string or a list of parts")
    text: list[str] = []

    def flush() -> None:
        if text:
            out.append(pad("".join(text).encode()))
            text.clear()

    for part in content:
        if isinstance(part, str):
            text.append(part)
        elif not isinstance(part, dict):
            raise BadPrompt("every part of content must be an object")
        elif isinstance(part.get("text"), str):
            text.append(part["text"])
        else:
            flush()
            _part(part, out)
    flush()


def _part(part: Mapping[str, Any], out: list[bytes]) -> None:
    match part.get("type"):
        case "tool_use":
            arguments = json.dumps(part.get("input"), separators=(",", ":"))
            _tool_call(part.get("name"), arguments, out)
        case "tool_result":
            _content(part.get("content"), out)
        case kind:
            # image_url, input_image, image, input_audio, video_url...: the field that the kind names.
            media = part.get(kind) if isinstance(kind, str) and kind in part else part.get("source", part)
            out.append(xxhash.xxh3_128_digest(orjson.dumps(media)) * _MEDIA_REPEATS)


def _tool_call(name: Any, arguments: Any, out: list[bytes]) -> None:
    out.append(pack_tool_head(str(name)))
    if isinstance(arguments, str):
        out.append(pad(arguments.encode()))


def joined(parts: Iterable[bytes]) -> bytes:
    """Several packed texts as one prompt."""
    return _BODY.join(parts)
