"""The opening of an event stream: events before the first token, or an error.

    silent events ──> a token          the answer has begun
        │    └──────> the end          it has begun, too: an empty answer is one
        └───────────> an error event   it has failed, and the client has seen nothing yet

An engine may begin to stream before it knows that the KV did not come. vLLM's chat stream opens with an event
that names the role, even if the next one is the error: both come of the same first output
(``entrypoints/openai/chat_completion/serving.py``). Its ``/v1/messages`` opens with ``message_start``
(``entrypoints/anthropic/serving.py``). The next engine would send these, too, so they are held back until
there is more.
"""

import re
from enum import Enum, auto

import msgspec

OPENING_BYTES_MAX = 16 << 10
"""Longest opening held back: silent events have some 300 bytes each."""


class Opening(Enum):
    """Kind of the first bytes of a stream."""

    SILENT = auto()
    """Complete events without any of the answer."""
    FAILED = auto()
    """At most such events, and then an error that is not the client's fault."""
    BEGUN = auto()
    """Anything else."""


class _Choice(msgspec.Struct, gc=False):
    delta: dict[str, msgspec.Raw]
    finish_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    type: str = ""


_decode = msgspec.json.Decoder(_Event).decode

_EVENT = re.compile(rb"(?:event: ?\w+\n)?data: ?(\{[^\n]*\})\n\n")

_NOTHING = frozenset((b'""', b"null", b"[]"))

_FAILED = re.compile(
    rb'(?:event: error\s+)?data: ?\{(?=\s*"(?:error"|type"\s*:\s*"error"))(?!.{0,2000}"code"\s*:\s*4)',
    re.DOTALL,
)
"""An error event without a code of 4xx, the client's fault: ``create_streaming_error_response`` in vLLM."""


def opening(data: bytes) -> Opening:
    """Classify the bytes of a stream so far."""
    at = 0
    while (event := _EVENT.match(data, at)) and _silent(event[1]):
        at = event.end()
    if at == len(data) < OPENING_BYTES_MAX:
        return Opening.SILENT
    return Opening.FAILED if _FAILED.match(data, at) else Opening.BEGUN


def _silent(payload: bytes) -> bool:
    if b'"role"' not in payload:
        return False
    try:
        event = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return event.type == "message_start" or (bool(event.choices) and all(map(_says_nothing, event.choices)))


def _says_nothing(choice: _Choice) -> bool:
    """Return True if a choice only names its role: without a role, an empty text may be a token's."""
    values = dict(choice.delta)
    role = values.pop("role", msgspec.Raw(b"null"))
    if choice.finish_reason is not None or bytes(role) == b"null":
        return False
    return all(bytes(value) in _NOTHING for value in values.values())
