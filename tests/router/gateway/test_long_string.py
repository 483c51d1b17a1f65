import json
from typing import Any

import pytest

from router.errors import ClientError
from router.gateway.endpoints import Endpoint
from router.gateway.long_string import LONG_BYTES_MIN, MARK, cut, is_plain_ascii, put_back
from router.gateway.parsing import Identifier

identifier = Identifier("test", block_tokens=4, block_bytes=16)
LONG = "words and more " * 1500
DATA_URL = f"data:image/png;base64,{'QUJD' * 8000}"


def outcome(endpoint: Endpoint, body: bytes, *, whole: bool) -> object:
    try:
        return identifier.parse(endpoint, body, whole=whole)
    except ClientError as error:
        return error.code, error.param


def user(content: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
    }


@pytest.mark.parametrize(
    "body",
    [
        user(LONG),
        user([{"type": "text", "text": LONG}, {"type": "text", "text": "short"}]),
        user([{"type": "image_url", "image_url": {"url": DATA_URL}}]),
        user([{"type": "image", "source": {"type": "base64", "data": "QUJD" * 8000}}]),
        {"model": "m", "messages": [{"role": LONG, "content": "x"}]},
        {"model": "m", "messages": [{"role": "user", "name": LONG}]},
        user([{"type": "tool_use", "id": "c", "name": "f", "input": {"text": LONG}}]),
        user([{"type": "unknown", "text": LONG}]),
        user("x") | {"model": LONG},
        user("x") | {"prompt_cache_key": LONG},
        user("x") | {"user": LONG},
        user("x") | {"stop": LONG},
        user("x") | {LONG: 1},
        user("x") | {"tools": [{"name": LONG}]},
        user("x") | {"system": [{"type": "text", "text": f"x-anthropic-billing-header{LONG}"}]},
        user(f'"{LONG}'),
        user(f"{LONG}é{LONG}"),
        user("x") | {"numbers": list(range(20_000))},
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES])
def test_a_body_is_the_same_request_without_its_longest_string(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """Wherever the string stands; where it cannot be put back, the body is decoded whole."""
    if endpoint is Endpoint.RESPONSES:
        body = {"input" if name == "messages" else name: value for name, value in body.items()}
    written = json.dumps(body, ensure_ascii=False).encode()
    assert outcome(endpoint, written, whole=False) == outcome(endpoint, written, whole=True)


@pytest.mark.parametrize("wrong", [b"\n", b"\x00", b"\xff", b"\xed\xa0\x80"])
def test_characters_that_no_string_may_have_are_refused_in_a_long_one_too(wrong: bytes) -> None:
    body = json.dumps(user(LONG)).encode().replace(b"more words", b"more" + wrong + b"words", 1)
    assert outcome(Endpoint.CHAT, body, whole=False) == ("invalid_json", None)


def test_only_a_long_plain_string_around_the_middle_is_cut() -> None:
    text = b"x" * LONG_BYTES_MIN
    assert cut(b'{"a":"%b"}' % text) == (b'{"a":"%b"}' % MARK, text)
    for body in (b'{"a":"%b"}' % text[1:], b'{"a":"%b\\n"}' % text, b'{"a":"%b\x1f"}' % text, text):
        assert cut(body) == (body, b"")


def test_a_string_goes_where_its_mark_is_a_piece() -> None:
    assert put_back([b"role", MARK, b"more"], memoryview(b"text")) == b"roletextmore"
    assert put_back([b"role", b"more " + MARK], memoryview(b"text")) == b""


@pytest.mark.parametrize("before", [0, 1, 300, 70_000])
def test_only_printable_ascii_without_a_backslash_is_plain(before: int) -> None:
    """One byte decides, wherever it is; bytes outside of the part do not count."""
    plain = set(range(0x20, 0x80)) - {ord("\\")}
    for value in range(256):
        body = b"\0" + b"~" * before + bytes([value]) + b" ~" * 200 + b"\xff"
        assert is_plain_ascii(body, 1, len(body) - 1) == (value in plain), value
