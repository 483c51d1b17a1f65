"""Answers, decided when the request comes, from the request and the prompt alone.

So a slow client costs no buffer, and the cache reserves exactly the room of the answer. ``max_tokens`` with
``ignore_eos`` is exact. Otherwise the length is exponential (seeded by the prompt), not below ``min_tokens``;
a smaller ``max_tokens`` cuts it, with reason ``length``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.engine.tokens import TOKEN_BYTES, count, pad, seed_of, words


@dataclass(frozen=True, slots=True)
class Sampling:
    """Wishes of a request for its answer, in one shape for all endpoints.

    Attributes:
        max_tokens: None leaves it to the model.
        min_tokens: Least length at which the model stops by itself.
        ignore_eos: Go on to ``max_tokens``.
        stop: Strings that end the answer; they are not part of it.
        n: Answers per prompt.
        tool: Name of the function that must be called; None answers with text.
        parameters: JSON schema of its arguments.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    n: int = 1
    tool: str | None = None
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An answer.

    Attributes:
        tokens: Its length; 0 if there is none.
        text: Text, or the arguments of a tool call. ASCII.
        kept: Packed tokens in the cache, which the next turn's prompt should repeat.
        finish_reason: ``stop``, ``length`` or ``tool_calls``.
        tool: Name of the function called.
        stopped_by: The stop string that ended it.
    """

    tokens: int
    text: str = ""
    kept: bytes = b""
    finish_reason: str = "stop"
    tool: str | None = None
    stopped_by: str | None = None

    def piece(self, start: int, end: int) -> str:
        """Text of the tokens from ``start`` up to ``end``."""
        if self.tool is not None:
            start, end = max(0, start - self._head_tokens), max(0, end - self._head_tokens)
        return self.text[start * TOKEN_BYTES : end * TOKEN_BYTES]

    @property
    def _head_tokens(self) -> int:
        assert self.tool is not None
        return count(pack_tool_head(self.tool))


NO_OUTPUT = Output(0, finish_reason="length")

TOOL_MARK = b"\xff\x00\x00\x05"


def pack_tool_head(name: str) -> bytes:
    """Begin of a tool call: everything but its arguments."""
    return TOOL_MARK + pad(name.encode())


def choose_output(
    tokens: bytes, choice: int, sampling: Sampling, mean_tokens: int, tokens_max: int
) -> Output:
    """Decide answer number ``choice`` to a packed prompt, the same for the same arguments.

    ``mean_tokens`` is the mean length, ``tokens_max`` > 0 the room left in the context.
    """
    seed = seed_of(tokens, choice)
    limit = tokens_max if sampling.max_tokens is None else min(sampling.max_tokens, tokens_max)
    if limit == 0:
        return NO_OUTPUT
    if sampling.tool is not None:
        return _tool_call(sampling, sampling.tool, seed, limit)
    uniform = (seed >> 11) / (1 << 53)
    natural = max(1, sampling.min_tokens, math.ceil(-mean_tokens * math.log(1.0 - uniform)))
    if sampling.ignore_eos or natural > limit:
        length, reason = limit, "length"
    else:
        length, reason = natural, "stop"
    text = words(seed, length).decode()
    found = [(at, stop) for stop in sampling.stop if stop and (at := text.find(stop)) >= 0]
    if not found:
        return Output(length, text, text.encode(), reason)
    at, stop = min(found)
    length = -(-(at + len(stop)) // TOKEN_BYTES)
    return Output(length, text[:at], pad(text[:at].encode()), "stop", stopped_by=stop)


def _tool_call(sampling: Sampling, name: str, seed: int, limit: int) -> Output:
    text = json.dumps(_example(sampling.parameters or {}, seed, 0), separators=(",", ":"))
    head = pack_tool_head(name)
    packed = head + pad(text.encode())
    if count(packed) <= limit:
        return Output(count(packed), text, packed, "tool_calls", tool=name)
    text = text[: max(0, limit * TOKEN_BYTES - len(head))]
    return Output(limit, text, packed[: limit * TOKEN_BYTES], "length", tool=name)


def _example(schema: Mapping[str, Any], seed: int, depth: int) -> Any:
    """A value that a simple JSON schema allows; enough for clients that validate arguments."""
    if isinstance(choices := schema.get("enum"), Sequence) and choices:
        return choices[seed % len(choices)]
    kind = schema.get("type", "object" if depth == 0 or "properties" in schema else "string")
    if kind == "object":
        properties = schema.get("properties")
        if depth > 8 or not isinstance(properties, Mapping):
            return {}
        return {
            name: _example(part if isinstance(part, Mapping) else {}, seed + position + 1, depth + 1)
            for position, (name, part) in enumerate(properties.items())
        }
    simple: dict[str, Any] = {
        "integer": seed % 1000,
        "number": seed % 1000 / 10,
        "boolean": bool(seed & 1),
        "array": [],
        "null": None,
    }
    return simple[kind] if isinstance(kind, str) and kind in simple else words(seed, 2).decode().strip()
