"""The canonical byte stream of a conversation, and the wire shapes it is written from.

Two requests share KV blocks if the engine renders an equal start. The stream mimics that: tools first, then
turn after turn, each as role, name, reasoning, content and tool calls. It only grows at its end when the
conversation goes on, and a common prefix of text is a common prefix of bytes: no lengths, no closing marks
behind growing text.

    FF tools  FE role FD name FC id F9 reasoning F8 text FB media F7 call ... FE role ...

Marks are bytes that no UTF-8 text contains (F5 to FF, C0, C1; also not when a lone surrogate is written as
three bytes), so no text can imitate structure. Media and parts of unknown shape are 16 bytes of hash behind
their mark. A string equals a list of one text part, and empty texts equal absent ones, since engines render
neither.

msgspec decodes the shapes below in the pass that also finds all other fields. A body of any other shape is
decoded generically and goes through `turns_from`, which keeps every known shape and hashes the rest. Both
give the same stream for the same turn.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import orjson
import xxhash

TOOLS = b"\xff"
TURN = b"\xfe"
NAME = b"\xfd"
ID = b"\xfc"
MEDIA = b"\xfb"
OPAQUE = b"\xfa"
REASONING = b"\xf9"
TEXT = b"\xf8"
CALL = b"\xf7"
ARGUMENTS = b"\xf6"
RESULT = b"\xf5"
RESULT_END = b"\xc0"

DATA_HEAD = "data:"
DATA_HEAD_END = ";base64,"
DATA_HEAD_MAX = 256
"""Bytes of the head of a data URL in base64 (RFC 2397: a media type and its parameters)."""

_LONE_SURROGATE_LIKELY = re.compile(rb"\\u[dD][89a-fA-F]")

CACHE_CONTROL = frozenset({"cache_control"})
"""Anthropic clients move this mark from turn to turn; no engine renders it."""

_PART_ANNOTATIONS = CACHE_CONTROL | {"id", "status"}

BILLING_HEADER = "x-anthropic-billing-header"
"""Opens a system block of Claude Code that differs in every request; vLLM does not render it either
(``vllm/entrypoints/anthropic/serving.py``)."""


class Media(msgspec.Struct, gc=False):
    """An image, audio, video or document, by reference or by value."""

    url: str | None = None
    data: str | None = None
    file_id: str | None = None

    def __post_init__(self) -> None:
        if not (self.url or self.data or self.file_id):
            raise ValueError("media without url, data or file_id")


class Part(msgspec.Struct, gc=False):
    """A content part of the OpenAI or Anthropic APIs."""

    type: Literal[
        "text",
        "input_text",
        "output_text",
        "summary_text",
        "reasoning_text",
        "thinking",
        "refusal",
        "image_url",
        "image",
        "input_image",
        "document",
        "input_audio",
        "audio_url",
        "video_url",
        "tool_use",
        "tool_result",
    ]
    text: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    image_url: str | Media | None = None
    source: Media | None = None
    input_audio: Media | None = None
    audio_url: Media | None = None
    video_url: Media | None = None
    file_id: str | None = None
    uuid: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Part] | None" = None


class OpaquePart(Part):
    """A part of unknown shape, kept as its hash. Never decoded from a body."""

    digest: bytes = b""


class FunctionCall(msgspec.Struct, gc=False):
    """A call's function and its arguments, as the model wrote them or already as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, gc=False):
    """A tool call of an assistant's message."""

    function: FunctionCall
    id: str | None = None


class Turn(msgspec.Struct, gc=False):
    """A message of chat or Anthropic, or an item of the Responses API."""

    role: str | None = None
    content: str | list[Part] | None = None
    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


def encode(text: str) -> bytes:
    """Return UTF-8; a lone surrogate, which agents cut out of emoji, becomes three bytes of its own."""
    return text.encode("utf-8", "surrogatepass")


def opaque(data: bytes) -> bytes:
    """Return the 16-byte hash that stands for media and for unknown shapes."""
    return xxhash.xxh3_128_digest(data)


def content_digest(text: str) -> bytes:
    """Return the hash of media, or of other content that is only compared.

    A picture is the same content as a data URL (OpenAI), as base64 (Anthropic), and under any declared type:
    the head of a data URL does not count. Web addresses are not followed.
    """
    if text.startswith(DATA_HEAD):
        end = text.find(DATA_HEAD_END, 0, DATA_HEAD_MAX)
        if end >= 0:
            text = text[end + len(DATA_HEAD_END) :]
    return opaque(encode(text))


def loads(data: bytes | memoryview) -> Any:
    """Decode JSON generically and strictly, but let lone surrogates through as Python does.

    Raises `ValueError` if it is not JSON, `RecursionError` beyond about 1,000 levels.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if not _LONE_SURROGATE_LIKELY.search(data):
            raise
        return json.loads(bytes(data), parse_constant=_reject_constant)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def canonical_json(value: Any) -> bytes:
    """Return JSON without white space and with sorted keys; `RecursionError` beyond about 1,000 levels."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates, integers of more than 64 bits, more than 254 levels
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def without(value: Any, names: frozenset[str]) -> Any:
    """Drop fields from an object, or from each object of a list."""
    if isinstance(value, list):
        return [without(item, names) if isinstance(item, dict) else item for item in value]
    if isinstance(value, dict) and not names.isdisjoint(value):
        return {key: item for key, item in value.items() if key not in names}
    return value


class _Heads(dict[str | None, tuple[bytes, ...]]):
    """By role, the pieces before a turn's text. An unusual role is a piece of its own, and is not kept."""

    def __missing__(self, role: str | None) -> tuple[bytes, ...]:
        return TURN, encode(role or ""), TEXT


_HEADS = _Heads(
    {role: (TURN + role.encode() + TEXT,) for role in ("system", "developer", "user", "assistant")}
)


def append_turns(stream: list[bytes], turns: Sequence[Turn]) -> None:
    """Append turns to a stream in pieces; the caller joins once. Text of the client is never half a piece."""
    for turn in turns:
        role, content = turn.role, turn.content
        if type(content) is str and content and turn == Turn(role, content):
            stream += _HEADS[role]
            stream.append(content.encode("utf-8", "surrogatepass"))
        else:
            _append_turn(stream, turn)


def _append_turn(stream: list[bytes], turn: Turn) -> None:
    stream.append(TURN)
    if turn.role:
        stream.append(turn.role.encode("utf-8", "surrogatepass"))
    if turn.name or turn.tool_call_id or turn.call_id or turn.reasoning_content or turn.reasoning:
        _append_text(stream, NAME, turn.name)
        _append_text(stream, ID, turn.tool_call_id or turn.call_id)
        _append_text(stream, REASONING, turn.reasoning_content or turn.reasoning)
    content = turn.content
    if content:
        append_content(stream, content)
    if turn.tool_calls:
        for call in turn.tool_calls:
            _append_call(stream, call.function, call.id)
    if turn.function_call is not None:
        _append_call(stream, turn.function_call, None)
    if turn.type != "message":
        _append_item(stream, turn)


def _append_item(stream: list[bytes], turn: Turn) -> None:
    _append_text(stream, ARGUMENTS, turn.arguments)
    append_content(stream, turn.output)
    append_content(stream, turn.summary)
    if turn.encrypted_content:
        stream += (OPAQUE, content_digest(turn.encrypted_content))


def append_content(stream: list[bytes], content: "str | list[Part] | None") -> None:
    """Append a content field."""
    if isinstance(content, str):
        _append_text(stream, TEXT, content)
    elif content:
        _append_parts(stream, content)


def _append_text(stream: list[bytes], mark: bytes, text: str | None) -> None:
    if text:
        stream += (mark, text.encode("utf-8", "surrogatepass"))


def _append_call(stream: list[bytes], call: FunctionCall, call_id: str | None) -> None:
    stream += (CALL, encode(call.name or ""))
    _append_text(stream, ID, call_id)
    if isinstance(call.arguments, dict):
        stream += (ARGUMENTS, canonical_json(call.arguments))
    else:
        _append_text(stream, ARGUMENTS, call.arguments)


def _append_parts(stream: list[bytes], parts: Sequence[Part]) -> None:
    for part in parts:
        match part.type:
            case "text" | "input_text" | "output_text":
                _append_text(stream, TEXT, part.text)
            case "thinking" | "summary_text" | "reasoning_text":
                _append_text(stream, REASONING, part.thinking or part.text)
            case "refusal":
                _append_text(stream, TEXT, part.refusal)
            case "tool_use":
                _append_call(stream, FunctionCall(part.name, part.input or {}), part.id)
            case "tool_result":
                stream.append(RESULT)
                _append_text(stream, ID, part.tool_use_id)
                append_content(stream, part.content)
                stream.append(RESULT_END)
            case _ if isinstance(part, OpaquePart):
                stream += (OPAQUE, part.digest)
            case _:
                stream += (MEDIA, content_digest(_reference(part)))


def _reference(part: Part) -> str:
    """Return the client's name of media, else the media itself.

    vLLM keys its caches by ``uuid`` where there is one (multi_modal_uuids), even if media come with it.
    """
    if part.uuid:
        return part.uuid
    media = part.image_url or part.source or part.input_audio or part.audio_url or part.video_url
    if isinstance(media, Media):
        media = media.url or media.data or media.file_id
    return media or part.file_id or ""


Digest = Callable[[bytes], bytes]
"""Hashes canonical JSON of an unknown shape: `opaque`, if the JSON is all there."""


def turns_from(value: Any, digest: Digest = opaque) -> list[Turn]:
    """Return turns of generically decoded JSON of any shape."""
    if isinstance(value, list):
        return [_turn_from(item, digest) for item in value]
    return [] if value is None else [_turn_from(value, digest)]


def _turn_from(value: Any, digest: Digest) -> Turn:
    if isinstance(value, dict):
        content = value.get("content")
        try:
            turn = msgspec.convert({key: item for key, item in value.items() if key != "content"}, Turn)
        except msgspec.ValidationError:
            pass
        else:
            turn.content = content_from(content, digest)
            return turn
    return Turn(content=[_opaque_part(value, digest)])


def content_from(value: Any, digest: Digest = opaque) -> str | list[Part] | None:
    """Return a content field of generically decoded JSON of any shape."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        return [_opaque_part(value, digest)]
    parts: list[Part] = []
    for item in value:
        if isinstance(item, str):
            parts.append(Part("text", item))
            continue
        try:
            parts.append(msgspec.convert(item, Part))
        except msgspec.ValidationError:
            parts.append(_opaque_part(item, digest))
    return parts


def _opaque_part(value: Any, digest: Digest) -> OpaquePart:
    return OpaquePart("document", digest=digest(canonical_json(without(value, _PART_ANNOTATIONS))))
