"""Fields of bodies that may name a session, decoded together with the rest of the body (decision 0085).

    session_id            text: OpenRouter's clients, vllm-router's
    metadata.session_id   text: clients of LiteLLM and of observers of traces
    metadata.user_id      Claude Code: "user_..._session_{uuid}", or JSON with a session_id; else a user
    user                  OpenAI's, deprecated: a user
    safety_identifier     OpenAI's: a user

They stay raw, so a value of any type passes to the engine. `router.sessions` chooses among them.
SGLang's ``session_params`` is no hint: it opens a session at an engine, which could be another client's, so
clients may not send it (`router.gateway.bodies.HandoverFields`).
"""

import re
from typing import Any, TypeGuard

import msgspec

from radix import NAME_CHARS_MAX

NO_FIELD = msgspec.Raw()
"""Value of a field that the body does not have."""

METADATA_BYTES_MAX = 16 * 1024
"""OpenAI takes 16 entries of 576 characters."""

_TEXT_BYTES_MAX = 6 * NAME_CHARS_MAX + 2
"""A name, each of its characters written as an escape."""

_CLAUDE_CODE = re.compile(r"_session_([0-9a-fA-F-]{36})")

Hints = tuple[tuple[str, str], ...]
"""Names of sessions by their fields."""


class SessionFields(msgspec.Struct, gc=False):
    """The fields as they are in the body."""

    session_id: msgspec.Raw = NO_FIELD
    metadata: msgspec.Raw = NO_FIELD
    user: msgspec.Raw = NO_FIELD
    safety_identifier: msgspec.Raw = NO_FIELD


class _Metadata(msgspec.Struct, gc=False):
    session_id: Any = None
    user_id: Any = None


class _ClaudeCodeUser(msgspec.Struct, gc=False):
    session_id: Any = None


_text = msgspec.json.Decoder(str).decode
_metadata = msgspec.json.Decoder(_Metadata).decode
_claude_code_user = msgspec.json.Decoder(_ClaudeCodeUser).decode


def hints_in(fields: SessionFields) -> Hints:
    """Return the names that a body gives; a value that is no name is passed over."""
    found: list[tuple[str, object]] = [
        ("session_id", _text_of(fields.session_id)),
        ("user", _text_of(fields.user)),
        ("safety_identifier", _text_of(fields.safety_identifier)),
    ]
    metadata = fields.metadata
    if metadata is not NO_FIELD and len(bytes(metadata)) <= METADATA_BYTES_MAX:
        try:
            values = _metadata(metadata)
        except (ValueError, RecursionError):
            values = _Metadata()
        found.append(("metadata.session_id", values.session_id))
        found.append(("metadata.user_id", _claude_code_session(values.user_id)))
    return tuple([(field, name) for field, name in found if is_name(name)])


def is_name(value: object) -> TypeGuard[str]:
    """Return True for text that may name a session: printable ASCII, and not too long."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_CHARS_MAX
        and value.isascii()
        and value.isprintable()
    )


def drop_cut(fields: SessionFields, mark: bytes) -> None:
    """Drop the fields of a large body from which text was cut out: it was longer than a name may be."""
    for name in SessionFields.__struct_fields__:
        if mark in bytes(getattr(fields, name)):
            setattr(fields, name, NO_FIELD)


def _text_of(raw: msgspec.Raw) -> str:
    if raw is NO_FIELD or len(bytes(raw)) > _TEXT_BYTES_MAX:
        return ""
    try:
        return _text(raw)
    except ValueError:
        return ""


def _claude_code_session(user_id: object) -> object:
    """Return the session in Claude Code's id of a user; empty for any other user's id."""
    if not isinstance(user_id, str):
        return ""
    if user_id.startswith("{"):
        try:
            return _claude_code_user(user_id).session_id
        except (ValueError, RecursionError):
            return ""
    match = _CLAUDE_CODE.search(user_id)
    return "" if match is None or match.end() < len(user_id) else match[1]
