"""Chunks of chat and completion streams, as vLLM and SGLang write them, in the fields that are read."""

import re
from typing import Any

import msgspec

DONE = b"data: [DONE]"
_NAME = b'"usage"'
_USAGE = re.compile(rb',\s*"usage"\s*:\s*(?:null|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def without_usage(events: bytes) -> bytes:
    """Take the counts out; generated text cannot imitate them, since its quotation marks are escaped."""
    end = len(events)
    while (name := events.rfind(_NAME, 0, end)) >= 0:
        end = events.rfind(b",", 0, name)
        if end < 0:
            break
        if (found := _USAGE.match(events, end)) is not None:
            events = events[:end] + events[found.end() :]
    return events


class Usage(msgspec.Struct, gc=False):
    """Counts of an engine."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Delta(msgspec.Struct, gc=False):
    """A piece of a chat message; all fields but the first end plain text."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None

    @property
    def is_plain(self) -> bool:
        """True if it has text of the answer only."""
        return not (
            self.reasoning or self.reasoning_content or self.refusal or self.tool_calls or self.function_call
        )


class Choice(msgspec.Struct, gc=False):
    """A choice; ``text`` is that of completions."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False):
    """An event."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None

    @property
    def is_engines_failure(self) -> bool:
        """True if the engine reports a failure of its own: vLLM's code is 500 when its core has died."""
        code = self.error.get("code") if isinstance(self.error, dict) else None
        return isinstance(code, int) and code >= 500


decode = msgspec.json.Decoder(Chunk).decode
decode_any = msgspec.json.Decoder(dict[str, Any]).decode
encode = msgspec.json.encode
