"""Requests whose streams another worker could continue: plain text of one choice.

Refused are requests for which the text so far is not all that the next worker needs (tool calls, structured
output, log probabilities, seeds, several choices, hidden states, SGLang's ``input_ids``, which stand for the
messages), and those that continue a message themselves. The stream shows what the request alone does not
(reasoning; `text.py`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.offsets import Edit, edited, offset

BODY_BYTES_MAX = 1 << 20
"""Longest body that is kept while its answer streams; it counts as held (`server.held_bytes_max`)."""

LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")
"""Fields that count generated tokens."""

_PLAIN = frozenset((b"", b"null", b"false", b"[]", b"{}", b'""'))
"""Values that ask for nothing beside one plain text."""

_ABSENT = msgspec.Raw()

_REFUSED = (
    *("tools", "functions", "function_call", "modalities", "audio", "prediction", "documents"),
    *("logprobs", "prompt_logprobs", "echo", "suffix", "seed", "use_beam_search"),
    *("structured_outputs", "json_schema", "regex", "ebnf", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"),
    *("continue_final_message", "return_token_ids", "return_tokens_as_token_ids", "return_hidden_states"),
    *("input_ids", "session_params", "return_prompt_token_ids"),
    *("prompt_embeds", "truncate_prompt_tokens", "custom_logit_processor", "logits_processors"),
    *("return_routed_experts", "return_meta_info", "thinking_token_budget", "stream_reasoning"),
)


_Asked = msgspec.defstruct(
    "_Asked",
    [
        *((name, msgspec.Raw, _ABSENT) for name in _REFUSED),
        *((name, int | None, None) for name in LIMITS),
        ("best_of", int | None, None),
        ("response_format", dict[str, Any] | None, None),
        ("messages", msgspec.Raw, _ABSENT),
        ("prompt", msgspec.Raw, _ABSENT),
        ("stream_options", msgspec.Raw, _ABSENT),
    ],
    gc=False,
)
_decode = msgspec.json.Decoder(_Asked).decode
_decode_options = msgspec.json.Decoder(dict[str, Any] | None).decode

_PLACES = (
    *("messages", "prompt", "stream_options", "continue_final_message", "add_generation_prompt"),
    *LIMITS,
)
_decode_places = msgspec.json.Decoder(
    msgspec.defstruct("_Places", [(name, msgspec.Raw, _ABSENT) for name in _PLACES], gc=False)
).decode
_encode = msgspec.json.encode


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A request that may be continued.

    Attributes:
        limits: Its limits of generated tokens, by field.
        usage: True if the client asked for the final usage.
        usage_always: True if it asked for usage in every chunk.
        counting: Value of ``stream_options`` by which engines tell their counts with every chunk. Both
            engines know ``continuous_usage_stats`` (``StreamOptions`` of the same files), SGLang for chats
            (serving_chat.py) and completions (serving_completions.py); its first and last chunk have none.
        edits: Edits of the body that ask for these counts.
    """

    chat: bool
    limits: Mapping[str, int]
    usage: bool
    usage_always: bool
    counting: bytes
    edits: tuple[Edit, ...]


def asked_for(parsed: ParsedRequest, body: bytes) -> Asked | None:
    """Return the properties of a request if its stream may be continued, or None."""
    chat = parsed.endpoint is Endpoint.CHAT
    if not chat and parsed.endpoint is not Endpoint.COMPLETIONS:
        return None
    if parsed.n != 1 or len(parsed.paths) != 1 or len(body) > BODY_BYTES_MAX or parsed.computes_all:
        return None
    try:
        fields: Any = _decode(body)
    except (ValueError, RecursionError):
        return None
    if any(bytes(getattr(fields, name)) not in _PLAIN for name in _REFUSED):
        return None
    if (fields.best_of or 1) > 1:
        return None
    if fields.response_format is not None and fields.response_format != {"type": "text"}:
        return None
    text = bytes(fields.messages if chat else fields.prompt)
    if not (text[:1] == b"[" and text[1:].lstrip()[:1] == b"{" if chat else text[:1] == b'"'):
        return None
    options = {} if fields.stream_options is _ABSENT else _options(fields.stream_options)
    if options is None:
        return None
    limits = {name: value for name in LIMITS if (value := getattr(fields, name)) is not None}
    usage = options.get("include_usage") is True
    always = usage and options.get("continuous_usage_stats") is True
    counting = _encode({**options, "include_usage": True, "continuous_usage_stats": True})
    return Asked(chat, limits, usage, always, counting, _written(body, {"stream_options": counting}))


def continued_body(asked: Asked, body: bytes, text: str, tokens: int) -> bytes | None:
    """Return the client's body with the text so far, of so many tokens; None if no token is left to make.

    ``continue_final_message`` is a field of ``ChatCompletionRequest`` in vLLM 0.32
    (entrypoints/openai/chat_completion/protocol.py), which demands the other one beside it, and in SGLang
    0.5.23 (srt/entrypoints/openai/protocol.py), which has no other one and overlooks it. SGLang takes the
    last message out and writes its text behind the template's prompt (serving_chat.py,
    ``_handle_last_assistant_message``); that needs a text, not parts.
    """
    values = {"stream_options": asked.counting}
    for name, limit in asked.limits.items():
        if limit <= tokens and name != "min_tokens":
            return None
        values[name] = b"%d" % max(limit - tokens, 0)
    more: tuple[Edit, ...] = ()
    if text:
        end = _span(body, "messages" if asked.chat else "prompt")[1] - 1
        if asked.chat:
            more = ((end, end, b"," + _encode({"role": "assistant", "content": text})),)
            values |= {"continue_final_message": b"true", "add_generation_prompt": b"false"}
        else:
            more = ((end, end, _encode(text)[1:-1]),)
    return b"".join(edited(body, sorted((*more, *_written(body, values)))))


def _options(raw: msgspec.Raw) -> dict[str, Any] | None:
    try:
        return _decode_options(raw) or {}
    except ValueError:
        return None


def _span(body: bytes, name: str) -> tuple[int, int]:
    """Return begin and end of the value of a member that is there; the last of several, as engines do."""
    raw = getattr(_decode_places(body), name)
    start = offset(raw, body)
    return start, start + len(memoryview(raw))


def _written(body: bytes, values: Mapping[str, bytes]) -> tuple[Edit, ...]:
    """Return the edits that give members other values, in order; those that are not there come last.

    No name occurs twice because of that: vLLM's frontend in Rust refuses it (serde's "duplicate field").
    """
    found = _decode_places(body)
    edits: list[Edit] = []
    tail = b""
    for name, value in values.items():
        raw = getattr(found, name)
        if raw is _ABSENT:
            tail += b',"%b":%b' % (name.encode(), value)
        else:
            start = offset(raw, body)
            edits.append((start, start + len(memoryview(raw)), value))
    if tail:
        at = body.rindex(b"}")
        edits.append((at, at, tail))
    return tuple(sorted(edits))
