"""The engine's counts, found in the last bytes of its answer.

Engines report usage in the last object of a JSON body, or in the last stream event before ``[DONE]``. So the
last 16 KiB are enough, and nothing is parsed while the answer passes by; only Anthropic's streams name the
prompt's tokens at the start, so a little of the head is kept as well.

The search goes backwards for the key ``"usage"`` (``"meta_info"`` for /generate) followed by an object.
Quotation marks in JSON strings are escaped, so generated text cannot imitate the key.

    last key, and the rest of its line is that of an object ──typed decoder──> counts
            └─ few braces that pair up ──typed decoder──> counts
                       └─ others, or odd values ─> any JSON ──its sane values──> counts
"""

import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from policies import Usage
from router.gateway.endpoints import Endpoint
from router.tail_buffer import TAIL_BYTES_MAX, TailBuffer

CANDIDATES_MAX = 8
"""Objects tried, from the end; the counts of a stream are in its last two at most."""

TOKENS_MAX = 1 << 24
"""Larger counts are garbage: the longest context ever published has ten million tokens (Llama 4 Scout)."""

_PLAIN_OBJECT = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*){0,3}\})")
"""An object whose braces pair up unless text holds some, with at most three in it; engines have up to two."""

_ANY_OBJECT = re.compile(rb"\s*:\s*(?=\{)")
_GENERATE = Endpoint.GENERATE
_decode_any = json.JSONDecoder().raw_decode

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens | None = None


class _Counts(msgspec.Struct, gc=False):
    prompt_tokens: _Tokens | None = None
    input_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    cached_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None
    garbage: bool = False
    """True if one of them is an impossible number."""


_decode_counts = msgspec.json.Decoder(_Counts).decode


def _key_of(name: str) -> tuple[bytes, Callable[[bytes], Any]]:
    """Return a key as it is written, and the decoder of an object that begins with it."""
    rest = msgspec.defstruct("_Rest", [("counts", _Counts | None, None)], rename={"counts": name}, gc=False)
    return f'"{name}"'.encode(), msgspec.json.Decoder(rest).decode


_USAGE, _META_INFO = _key_of("usage"), _key_of("meta_info")


def find_usage(endpoint: Endpoint, answer: TailBuffer | bytes) -> Usage | None:
    """Return the engine's last counts at the end of an answer (JSON or events, cut anywhere), or None."""
    data = answer.bytes() if isinstance(answer, TailBuffer) else answer
    key, decode_rest = _META_INFO if endpoint is _GENERATE else _USAGE
    at = data.rfind(key)
    if at < 0:
        return None
    counts: _Counts | None
    try:
        # Of most answers; an object within, as OpenAI has, makes the pattern three times as slow.
        counts = decode_rest(b"{" + data[at:].partition(b"\n")[0]).counts
    except (ValueError, RecursionError):
        counts = _counts_behind(data, at + len(key))
    completion_tokens: int | None = None
    candidates = 0
    while True:
        if counts is not None:
            if completion_tokens is None:
                completion_tokens = counts.completion_tokens
                if completion_tokens is None:
                    completion_tokens = counts.output_tokens
            usage = _usage_of(counts, completion_tokens)
            if usage is not None:
                return usage
            candidates += 1
            if candidates >= CANDIDATES_MAX:
                return None
        at = data.rfind(key, 0, at)
        if at < 0:
            return None
        counts = _counts_behind(data, at + len(key))


def _counts_behind(data: bytes, end: int) -> _Counts | None:
    """Return the counts of the object behind a key that ends there; none if it is cut off, or None."""
    plain = _PLAIN_OBJECT.match(data, end)
    try:
        if plain is not None:
            return _decode_counts(plain[1])
    except (ValueError, RecursionError):
        pass
    begin = _ANY_OBJECT.match(data, end)
    return None if begin is None else _odd_counts_at(data, begin.end())


def _odd_counts_at(data: bytes, start: int) -> _Counts:
    # Only numbers are read from it, so any decoding of its strings will do.
    try:
        value, _ = _decode_any(data[start : start + TAIL_BYTES_MAX].decode("latin-1"))
    except (ValueError, RecursionError):
        return _Counts()
    counts = _Counts()
    found = []
    for name in _COUNTS:
        found.append(value.get(name))
        setattr(counts, name, _sane(found[-1]))
    for name in _DETAILS:
        details = value.get(name)
        if isinstance(details, dict):
            found.append(details.get("cached_tokens"))
            setattr(counts, name, _Details(_sane(found[-1])))
    counts.garbage = any(type(each) in (int, float) and _sane(each) is None for each in found)
    return counts


_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_COUNTS = tuple(name for name in _Counts.__struct_fields__ if name not in (*_DETAILS, "garbage"))


def _sane(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None


def _usage_of(counts: _Counts, completion_tokens: int | None) -> Usage | None:
    prompt_tokens = counts.prompt_tokens
    if prompt_tokens is None and (prompt_tokens := counts.input_tokens) is None:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached_tokens = None if details is None else details.cached_tokens
    if cached_tokens is None:
        cached_tokens = counts.cached_tokens
    if cached_tokens is None:
        # Anthropic counts tokens read from and written to the cache apart from the input tokens.
        cached_tokens = counts.cache_read_input_tokens
        if cached_tokens or counts.cache_creation_input_tokens:
            prompt_tokens += (cached_tokens or 0) + (counts.cache_creation_input_tokens or 0)
    # A prompt has a token: engines send 0 in events that come before they counted.
    if not prompt_tokens:
        return None
    # Older SGLang adds up what each of several answers to one prompt found cached.
    if counts.garbage or (cached_tokens is not None and cached_tokens > prompt_tokens):
        return Usage(prompt_tokens, None, completion_tokens, possible=False)
    return Usage(prompt_tokens, cached_tokens, completion_tokens)
