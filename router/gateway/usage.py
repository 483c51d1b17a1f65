"""What the engine counted, found in the last bytes of its answer.

Engines report usage at the end: in the last object of a JSON body, in the last stream event before
``[DONE]``. So the last 16 KiB are enough, and nothing is parsed while the answer passes by; only
Anthropic's streams name the prompt's tokens at the start, so a little of the head is kept as well.

The search goes backwards for the key ``"usage"`` (``"meta_info"`` for /generate) followed by an
object, and decodes just that object. A quotation mark inside a JSON string is escaped, so text
that the model wrote cannot be mistaken for the key.
"""

import json
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from router.gateway.endpoints import Endpoint

TAIL_BYTES_MAX = 16 << 10
HEAD_BYTES_MAX = 2 << 10
"""Anthropic's ``message_start``, the first event of a stream, is some 400 bytes."""

CANDIDATES_MAX = 8
"""Objects tried, from the end; the counts of a stream are in its last two at most."""

TOKENS_MAX = 1 << 40
"""Larger counts are garbage."""

_OBJECT = re.compile(rb"\s*:\s*(?=\{)")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the engine reported them, for the last prompt if there was a batch.

    Attributes:
        prompt_tokens: Prompt length.
        cached_tokens: Of these, taken from the KV cache; None if the engine does not say.
        completion_tokens: Tokens generated; None if the engine does not say.
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None


class TailBuffer:
    """Keeps the last bytes of an answer, and a few of its first.

    Chunks are kept whole and by reference while they are needed; appending is O(1).

    Args:
        bytes_max: How many of the last bytes `bytes` returns at least, if there were as many.
    """

    __slots__ = ("_bytes_max", "_chunks", "_dropped", "_head", "_size")

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._head = b""
        self._dropped = 0

    def append(self, chunk: "bytes") -> None:
        """Add the next bytes."""
        chunks = self._chunks
        if len(chunk) > self._bytes_max:
            for earlier in chunks:
                self._drop(earlier)
            chunks.clear()
            self._size = 0
            self._drop(chunk[: -self._bytes_max])
            chunk = chunk[-self._bytes_max :]
        chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(chunks[0]) >= self._bytes_max:
            first = chunks.popleft()
            self._size -= len(first)
            self._drop(first)

    def _drop(self, chunk: "bytes") -> None:
        self._dropped += len(chunk)
        if len(self._head) < HEAD_BYTES_MAX:
            self._head += chunk[: HEAD_BYTES_MAX - len(self._head)]

    def bytes(self) -> "bytes":
        """The bytes kept; where some are missing there is a line break."""
        gap = b"\n" if self._dropped > len(self._head) else b""
        return b"".join((self._head, gap, *self._chunks))


def find_usage(endpoint: Endpoint, answer: TailBuffer | bytes) -> Usage | None:
    """Find what the engine counted.

    Args:
        endpoint: What was asked.
        answer: The end of the answer's body; JSON or a stream of events, cut anywhere.

    Returns:
        The last counts in it, None if there are none. Never raises.
    """
    data = answer.bytes() if isinstance(answer, TailBuffer) else answer
    key = b'"meta_info"' if endpoint is Endpoint.GENERATE else b'"usage"'
    completion_tokens: int | None = None
    end = len(data)
    candidates = 0
    while candidates < CANDIDATES_MAX and (at := data.rfind(key, 0, end)) >= 0:
        end = at
        begin = _OBJECT.match(data, at + len(key))
        if begin is None:
            continue
        candidates += 1
        counts = _object_at(data, begin.end())
        usage = _usage_of(counts)
        if completion_tokens is None:
            completion_tokens = _count(counts, "completion_tokens", "output_tokens")
        if usage is not None:
            return Usage(usage.prompt_tokens, usage.cached_tokens, completion_tokens)
    return None


def _object_at(data: bytes, start: int) -> dict[str, Any]:
    """The object that begins at an offset; empty if it is cut off."""
    # Only numbers are read from it, so how its strings are decoded does not matter.
    try:
        value, _ = _decode(data[start : start + TAIL_BYTES_MAX].decode("latin-1"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _usage_of(counts: dict[str, Any]) -> Usage | None:
    prompt_tokens = _count(counts, "prompt_tokens", "input_tokens")
    if prompt_tokens is None:
        return None
    details = counts.get("prompt_tokens_details") or counts.get("input_tokens_details")
    cached_tokens = _count(details, "cached_tokens") if isinstance(details, dict) else None
    if cached_tokens is None:
        cached_tokens = _count(counts, "cached_tokens")
    if cached_tokens is None:
        # Anthropic counts what was read from and written to the cache beside the input tokens.
        cached_tokens = _count(counts, "cache_read_input_tokens")
        prompt_tokens += cached_tokens or 0
        prompt_tokens += _count(counts, "cache_creation_input_tokens") or 0
    # A prompt has a token: engines send 0 in events that come before they counted.
    return Usage(prompt_tokens, cached_tokens, None) if prompt_tokens else None


def _count(counts: dict[str, Any], *names: str) -> int | None:
    """The first of these fields that is a sane count."""
    for name in names:
        value = counts.get(name)
        if type(value) is int and 0 <= value <= TOKENS_MAX:
            return value
    return None
