"""Requests whose streams another worker could continue: plain text of one choice.

Refused are requests for which the text so far is not all that the next worker needs (tool calls, structured
output, log probabilities, seeds, several choices, hidden states), and those that continue a message
themselves. What is not known from the request alone (reasoning) is seen in the stream (`text.py`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from router.errors import ClientError
from router.gateway.edits import members
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.offsets import Edit, edited

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
        ("stream_options", dict[str, Any] | None, None),
    ],
    gc=False,
)
_decode = msgspec.json.Decoder(_Asked).decode
_encode = msgspec.json.encode


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A request that may be continued.

    Attributes:
        limits: Its limits of generated tokens, by field.
        usage: True if the client asked for the final usage.
        usage_always: True if it asked for usage in every chunk.
        edits: Of the body, to learn the engine's counts with every chunk.
    """

    chat: bool
    limits: Mapping[str, int]
    usage: bool
    usage_always: bool
    edits: tuple[Edit, ...]


def asked_for(parsed: ParsedRequest, body: bytes) -> Asked | None:
    """Return what a request asks for if its stream may be continued, or None."""
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
    options = fields.stream_options or {}
    limits = {name: value for name in LIMITS if (value := getattr(fields, name)) is not None}
    usage = options.get("include_usage") is True
    always = usage and options.get("continuous_usage_stats") is True
    at = body.rindex(b"}")
    more = _encode({**options, "include_usage": True, "continuous_usage_stats": True})
    return Asked(chat, limits, usage, always, ((at, at, b',"stream_options":' + more),))


def continued_body(asked: Asked, body: bytes, text: str, tokens: int) -> bytes | None:
    """Return the client's body with the text so far, of so many tokens; None if no token is left to make.

    Engines take the last of two members of a name (Python's ``json``). ``continue_final_message`` is vLLM's
    and SGLang's field (``ChatCompletionRequest`` of both); vLLM demands the other one beside it.
    """
    edits: list[Edit] = []
    tail = b""
    if text:
        try:
            at = members(body, "messages" if asked.chat else "prompt")[-1].end - 1
        except (ClientError, ValueError, IndexError):
            return None
        if asked.chat:
            edits.append((at, at, b"," + _encode({"role": "assistant", "content": text})))
            tail = b',"continue_final_message":true,"add_generation_prompt":false'
        else:
            edits.append((at, at, _encode(text)[1:-1]))
    for name, limit in asked.limits.items():
        left = limit - tokens
        if left <= 0:
            if name != "min_tokens":
                return None
            left = 0
        tail += b',"%b":%d' % (name.encode(), left)
    end = body.rindex(b"}")
    edits.append((end, end, tail))
    return b"".join(edited(body, edits))
