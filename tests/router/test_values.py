"""Kinds of values: the accepted, normalised and refused ones, and the words of each refusal."""

import pytest
from pydantic import TypeAdapter, ValidationError

from router.values import HeaderName, HttpUrl, LogLevel, RedisUrl, Secret, is_loopback, token_count


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("https://engine.example/base/", "https://engine.example/base"),
        ("http://[::1]:9001", "http://[::1]:9001"),
    ],
)
def test_a_worker_url_loses_its_trailing_slash(text: str, url: str) -> None:
    assert TypeAdapter(HttpUrl).validate_python(text) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("grpc://10.0.0.1:8000", "must start with http://"),
        ("http://:8000", "names no valid host"),
        ("http://a b:8000", "names no valid host"),
        ("http://h:99999", "is not a URL"),
        ("http://h:8000?x=1", "drop what follows"),
        ("http://user:secret@h:8000", "use worker_api_key"),
    ],
)
def test_a_wrong_worker_url_is_refused_with_the_way_to_mend_it(text: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        TypeAdapter(HttpUrl).validate_python(text)
    assert "secret" not in str(caught.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://h",
        "rediss://h:1/0",
        "unix:///run/v.sock",
        "redis+sentinel://a,b/m",
        "rediss+cluster://a,b",
    ],
)
def test_the_redis_urls_that_the_client_understands_are_accepted(url: str) -> None:
    assert TypeAdapter(RedisUrl).validate_python(url) == url


def test_another_redis_scheme_is_refused_without_quoting_it() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(RedisUrl).validate_python("http://u:secret@h")
    assert "secret" not in caught.value.errors()[0]["msg"]
    assert "redis://" in caught.value.errors()[0]["msg"]


def test_header_names_are_lowered_and_checked() -> None:
    assert TypeAdapter(HeaderName).validate_python("X-Tenant-ID") == "x-tenant-id"
    with pytest.raises(ValidationError, match="not an HTTP header name"):
        TypeAdapter(HeaderName).validate_python("x tenant")


@pytest.mark.parametrize(("text", "level"), [("INFO", "info"), ("warn", "warning"), ("error", "error")])
def test_levels_are_accepted_as_the_peers_write_them(text: str, level: str) -> None:
    assert TypeAdapter(LogLevel).validate_python(text) == level


def test_a_secret_loses_the_line_break_of_its_file() -> None:
    secret = TypeAdapter(Secret).validate_python("hunter2\n")
    assert secret is not None
    assert secret.get_secret_value() == "hunter2"


def test_an_empty_secret_is_none() -> None:
    """Otherwise an empty key would accept every client with an empty token."""
    assert TypeAdapter(Secret).validate_python(" \n") is None


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "schlüssel"])
def test_a_secret_that_no_header_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="printable ASCII"):
        TypeAdapter(Secret).validate_python(text)


@pytest.mark.parametrize(("text", "tokens"), [("65536", 65_536), ("64K", 65_536), (" 1m ", 1_048_576)])
def test_tokens_may_be_written_in_ki_and_mi(text: str, tokens: int) -> None:
    assert token_count(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-1", "64KB", "1.5K", "K", "1" * 20])
def test_what_is_no_number_of_tokens_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write 65536 or 64K"):
        token_count(text)


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        *(("127.0.0.1", True), ("127.8.0.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("gateway.example", False)),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, only_here: bool) -> None:
    """A name may lead to another address tomorrow."""
    assert is_loopback(host) is only_here
