"""Names of sessions in bodies: those of clients are found, and no value of a field is refused."""

from collections import deque
from collections.abc import Generator
from typing import Any

import msgspec
import orjson
import pytest
from fakes.gateway import chat

from router.gateway.endpoints import Endpoint
from router.gateway.large import parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.session_fields import METADATA_BYTES_MAX, NO_FIELD, SessionFields, drop_cut, hints_in

UUID = "57a121ec-f78c-48c3-a745-e3036a3ecc33"
LEGACY = f"user_{'a' * 64}_account__session_{UUID}"
"""Claude Code before 2.1.86 (github.com/coder/aibridge, pull request 241, which shows both)."""
JSON = orjson.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}).decode()


def parsed(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> ParsedRequest:
    return Identifier("test").parse(endpoint, orjson.dumps(chat(**fields)))


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({"session_id": "s-1"}, {"session_id": "s-1"}),
        ({"metadata": {"session_id": "s-1"}}, {"metadata.session_id": "s-1"}),
        ({"metadata": {"user_id": LEGACY}}, {"metadata.user_id": UUID}),
        ({"metadata": {"user_id": JSON}}, {"metadata.user_id": UUID}),
        ({"user": "u", "safety_identifier": "h"}, {"user": "u", "safety_identifier": "h"}),
        (
            {"session_id": "s", "metadata": {"session_id": "m"}},
            {"session_id": "s", "metadata.session_id": "m"},
        ),
    ],
)
def test_a_name_is_found_by_its_field(fields: dict[str, Any], hints: dict[str, str]) -> None:
    for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.COMPLETIONS):
        assert dict(parsed(endpoint, **fields).session_hints) == hints


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "user-17"}},
        {"metadata": {"user_id": "bob_session_manager"}},
        {"metadata": {"user_id": f"{LEGACY}x"}},
        {"metadata": {"user_id": "{"}},
        {"metadata": {"user_id": '{"device_id": "d"}'}},
        {"metadata": {"user_id": "[" * 100_000}},
        {"metadata": {"user_id": "{" + '"a":{' * 5_000}},
        {"metadata": {"session_id": "s", "more": "x" * METADATA_BYTES_MAX}},
        *({"metadata": value} for value in (None, 5, "s", [], {}, [{"session_id": "s"}])),
        *(
            {name: value}
            for name in ("session_id", "user", "safety_identifier")
            for value in (None, 5, "", "x" * 257, "ü", "a\nb", "\x00", ["s"], {"id": "s"}, True)
        ),
    ],
)
def test_any_other_value_names_no_session_and_passes(fields: dict[str, Any]) -> None:
    assert parsed(**fields).session_hints == ()


def test_a_name_may_be_written_with_escapes() -> None:
    body = orjson.dumps(chat()).replace(b"{", b'{"session_id": "\\u0061\\u0062",', 1)
    assert Identifier("test").parse(Endpoint.CHAT, body).session_hints == (("session_id", "ab"),)
    lone = orjson.dumps(chat()).replace(b"{", b'{"session_id": "\\ud800",', 1)
    assert Identifier("test").parse(Endpoint.CHAT, lone).session_hints == ()


def test_names_do_not_change_the_identity_of_a_prompt() -> None:
    text = "word " * 2000
    plain = parsed(messages=[{"role": "user", "content": text}])
    named = parsed(
        messages=[{"role": "user", "content": text}], session_id="s", metadata={"session_id": "t"}, user="u"
    )
    assert (plain.paths, plain.key, plain.edits) == (named.paths, named.key, named.edits)
    assert plain.session_hints == ()


def test_a_body_that_does_not_fit_its_types_has_names_too() -> None:
    """``n`` as text is decoded leniently."""
    assert parsed(n="1", session_id="s", metadata={"session_id": "t"}).session_hints == (
        ("session_id", "s"),
        ("metadata.session_id", "t"),
    )


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        (
            {"session_id": "s", "metadata": {"session_id": "t"}},
            {"session_id": "s", "metadata.session_id": "t"},
        ),
        ({"session_id": "x" * 5_000, "user": "u"}, {"user": "u"}),
        ({"metadata": {"session_id": "t", "more": "x" * 5_000}}, {}),
        ({"metadata": {"session_id": "x" * 5_000}}, {}),
    ],
)
def test_a_large_body_has_names_too_and_long_values_are_none(
    fields: dict[str, Any], hints: dict[str, str]
) -> None:
    """Values of more than 2 KB are cut out of a large body; what stands in their place is no name."""
    content = "word " * 1_200_000
    body = orjson.dumps(chat(messages=[{"role": "user", "content": content}], **fields))
    found: list[ParsedRequest] = []

    def run() -> Generator[None, None, None]:
        found.append((yield from parse_in_steps(Identifier("test"), Endpoint.CHAT, body)))

    deque(run(), maxlen=0)
    assert dict(found[0].session_hints) == hints


def test_fields_of_which_text_was_cut_out_are_dropped() -> None:
    fields = SessionFields(session_id=msgspec.Raw(b'"a-mark-1"'), user=msgspec.Raw(b'"b"'))
    drop_cut(fields, b"mark")
    assert fields.session_id is NO_FIELD
    assert hints_in(fields) == (("user", "b"),)
