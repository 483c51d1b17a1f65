"""Heads that come again: the reads that are one, and those that the parser has to read."""

import pytest

from router.proxy.repeated_head import HEAD_BYTES_MAX, RepeatedHead, halves_of

HEAD = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length:  %b \r\nServer: e\r\n\r\n"


def repeated(head: bytes = HEAD, body: bytes = b"hello") -> RepeatedHead:
    halves = halves_of(head % b"%d" % len(body) + body, len(body))
    assert halves is not None
    return RepeatedHead(*halves)


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 123_456, HEAD, b"\r\n\r\n"])
def test_a_head_comes_again_with_another_body(body: bytes) -> None:
    assert repeated().body_in(HEAD % b"%d" % len(body) + body) == body


@pytest.mark.parametrize(
    "read",
    [
        b"",
        HEAD % b"5" + b"hell",
        HEAD % b"5" + b"hello!",
        HEAD % b"" + b"hello",
        HEAD % b"05" + b"hello",
        HEAD % b"+5" + b"hello",
        HEAD % b"5, 5" + b"hello",
        HEAD % "٥".encode() + b"hello",
        HEAD % b"5\r\nContent-Length: 5" + b"hello",
        HEAD.replace(b"now", b"new") % b"5" + b"hello",
        HEAD.replace(b": e", b": f") % b"5" + b"hello",
        (HEAD % b"5")[:-2] + b"hello",
        b"\r\n" + HEAD % b"5" + b"hello",
    ],
)
def test_any_other_read_is_for_the_parser(read: bytes) -> None:
    assert repeated().body_in(read) is None


@pytest.mark.parametrize(
    "read",
    [
        HEAD % b"5" + b"hell",
        HEAD % b"5" + b"hello!",
        HEAD % b"5" + b"hello" + HEAD % b"5" + b"hello",
        HEAD.replace(b"\r\nServer", b"\r\ncontent-length: 5\r\nServer") % b"5" + b"hello",
        HEAD.replace(b"Content-Length", b"Length") % b"5" + b"hello",
        HEAD.replace(b"now", b"x" * HEAD_BYTES_MAX) % b"5" + b"hello",
        HEAD.replace(b"\r\n", b"\n") % b"5" + b"hello",
    ],
)
def test_only_a_read_of_one_whole_message_has_halves(read: bytes) -> None:
    assert halves_of(read, 5) is None
