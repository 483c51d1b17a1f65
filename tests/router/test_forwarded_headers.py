"""Which headers of clients pass to workers. On sockets: `tests/integration/test_sessions.py`."""

import logging

import pytest

from router.forwarded_headers import (
    FORWARDED_HEADERS,
    REMEMBERED_MAX,
    PassedHeaders,
    header_pattern,
    never_passes,
)
from router.proxy import CONNECTION_HEADERS
from router.session_rules import SESSION_HEADERS


@pytest.mark.parametrize(
    "name",
    [
        *("accept", "authorization", "baggage", "content-type", "traceparent", "tracestate"),
        *("x-correlation-id", "anthropic-version", "anthropic-beta", *SESSION_HEADERS),
    ],
)
def test_these_pass_unless_the_operator_says_otherwise(name: str) -> None:
    assert PassedHeaders(FORWARDED_HEADERS, passes_keys=True)[name.encode()]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(CONNECTION_HEADERS),
        *(b"cookie", b"x-request-id", b"x-cacheway-hops", b"accept-encoding", b"content-encoding"),
        *(b"x-data-parallel-rank", b"x-data-parallel-host-port", b"x-prefiller-host-port"),
        *(b"x-encoder-hosts-ports", b"x-gateway-destination-endpoint", b"x-forwarded-for", b"forwarded"),
    ],
)
def test_these_never_pass(name: bytes) -> None:
    begin = f"{name.decode()[:1]}*"
    assert never_passes(name)
    assert not PassedHeaders((name.decode(), begin), passes_keys=True)[name]
    with pytest.raises(ValueError, match="never passes"):
        header_pattern(name.decode())


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key"])
def test_a_key_of_ours_does_not_pass(name: bytes) -> None:
    patterns = (name.decode(),)
    assert PassedHeaders(patterns, passes_keys=True)[name]
    assert not PassedHeaders(patterns, passes_keys=False)[name]


@pytest.mark.parametrize("pattern", ["", "*", "a b", "a*b", "a:", "ü", "x" * 300, "**"])
def test_what_is_no_name_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no name of a header"):
        header_pattern(pattern)


def test_names_are_lowered() -> None:
    assert header_pattern("X-Team-*") == "x-team-*"


def test_a_header_that_does_not_pass_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    headers = PassedHeaders(("x-team-*",), passes_keys=True)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            assert not headers[b"x-other"]
            assert headers[b"x-team-a"]
            assert not headers[b"host"]
    assert [record.header for record in caplog.records] == ["x-other"]  # type: ignore[attr-defined]
    assert headers.dropped == 2


def test_names_that_clients_make_up_take_no_memory() -> None:
    headers = PassedHeaders(("x-team",), passes_keys=True)
    for number in range(2 * REMEMBERED_MAX):
        assert not headers[b"x-%d" % number]
    assert not headers[b"y" * 1000]
    assert len(headers.judged) == REMEMBERED_MAX
    assert headers[b"x-team"]
