"""Tells an engine which tenant's cache a request belongs to: a salt, spliced into the client's body.

    {"model":"m","messages":[...]}                      what the client sent
    {"model":"m","messages":[...],"cache_salt":"pV4.."}  what the worker gets: two pieces, nothing copied

Engines hash the salt with the first block of a prompt, so that only requests with the same one share cache. A
salt of the client's own counts within its tenant: the two become one, in its place. That one is made with
SHA-256, so nobody can write what another tenant's would be.

What takes which field:

* vLLM takes ``cache_salt`` wherever it computes (``entrypoints/openai/*/protocol.py``,
  ``entrypoints/pooling/base/protocol.py``; ``/v1/messages`` since July 2026, its pull request 49498);
* SGLang puts ``cache_salt`` before ``extra_key`` (``entrypoints/openai/serving_base.py``), and its own
  ``/generate`` takes ``extra_key``. Its ``/v1/messages`` (``entrypoints/anthropic/protocol.py``), and what it
  embeds, ranks and scores (``EmbeddingReqInput`` in ``managers/io_struct.py``), have neither and would share
  the cache with everybody.
"""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

import msgspec
import numpy as np

from router.gateway.bodies import ABSENT, BOM, GenerateBody, Scalars
from router.gateway.conversation import canonical_json, loads
from router.gateway.endpoints import Endpoint

Span = tuple[int, int]
"""Where a JSON value begins and ends, in bytes."""

_WITHOUT_CACHE = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})

_SGLANG = frozenset({"sglang"})

OVERLOOKED_BY: dict[Endpoint, frozenset[str]] = {
    Endpoint.MESSAGES: _SGLANG,
    Endpoint.EMBEDDINGS: _SGLANG,
    Endpoint.RERANK: _SGLANG,
    Endpoint.RERANK_SHORT: _SGLANG,
    Endpoint.SCORE: _SGLANG,
    Endpoint.SCORE_SHORT: _SGLANG,
}
"""By endpoint, the engines that overlook a salt there."""


class _CacheSalt(msgspec.Struct):
    value: msgspec.Raw = msgspec.field(default=ABSENT, name="cache_salt")


class _ExtraKey(msgspec.Struct):
    value: msgspec.Raw = msgspec.field(default=ABSENT, name="extra_key")


_cache_salt = msgspec.json.Decoder(_CacheSalt)
_extra_key = msgspec.json.Decoder(_ExtraKey)


def takes_salt(endpoint: Endpoint) -> bool:
    """Whether requests to an endpoint touch a cache at all."""
    return endpoint not in _WITHOUT_CACHE


def span_of(endpoint: Endpoint, fields: Scalars, body: bytes) -> Span | None:
    """Where the client's own salt is, the last one if it is there twice: that is the one engines take.

    Args:
        endpoint: Where it was sent.
        fields: What was decoded from the body.
        body: The body.

    Raises:
        ValueError: If it has one, but is not JSON as the standard has it.
    """
    if isinstance(fields, GenerateBody):
        if fields.extra_key is ABSENT:
            return None
    elif fields.cache_salt is msgspec.UNSET or endpoint in _WITHOUT_CACHE:
        return None
    decoder = _extra_key if endpoint is Endpoint.GENERATE else _cache_salt
    text = body.removeprefix(BOM)
    raw = memoryview(decoder.decode(text).value)
    start = len(body) - len(text) + _address(raw) - _address(text)
    return start, start + len(raw)


def salted(endpoint: Endpoint, body: bytes, salt: str, span: Span | None) -> tuple[bytes | memoryview, ...]:
    """The body with a salt, in pieces of which the large ones are the body's own.

    Args:
        endpoint: Where it goes; `takes_salt`.
        body: A JSON object.
        salt: The tenant's; without characters that JSON escapes.
        span: See `span_of`.
    """
    view = memoryview(body)
    if span is not None:
        start, end = span
        own = loads(view[start:end])
        value = [_combined(salt, one) for one in own] if isinstance(own, list) else _combined(salt, own)
        return view[:start], msgspec.json.encode(value), view[end:]
    end = body.rindex(b"}")
    comma = b"" if body.find(b'"', 0, end) < 0 else b","
    field = b"extra_key" if endpoint is Endpoint.GENERATE else b"cache_salt"
    return view[:end], b'%b"%b":"%b"}' % (comma, field, salt.encode()), view[end + 1 :]


def seen_salt(endpoint: Endpoint, fields: Scalars, salt: str) -> str | None:
    """What an engine keeps a request's token ids apart by, with the tenant's salt; empty for nothing.

    SGLang puts ``extra_key`` behind ``cache_salt`` (``_compute_extra_key`` in
    ``entrypoints/openai/serving_base.py``).

    Args:
        endpoint: Where it was sent.
        fields: What was decoded from its body.
        salt: The tenant's; empty if it has none.

    Returns:
        None if that is not one text for all of its prompts.
    """
    own = fields.cache_salt if isinstance(fields.cache_salt, str) else ""
    extra: Any = getattr(fields, "extra_key", ABSENT)
    extra = "" if extra is ABSENT else loads(memoryview(extra)) or ""
    if not isinstance(extra, str):
        return None
    if endpoint is Endpoint.GENERATE:
        return _combined(salt, extra) if salt else extra
    return (_combined(salt, own) if salt else own) + extra


def _combined(salt: str, own: Any) -> str:
    """One salt of two."""
    if own is None or own == "":
        return salt
    digest = hashlib.sha256(salt.encode() + b"\0" + canonical_json(own)).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _address(buffer: bytes | memoryview) -> int:
    """Where in memory it begins: a raw field is a view of what it was decoded from."""
    return np.frombuffer(buffer, np.uint8).ctypes.data
