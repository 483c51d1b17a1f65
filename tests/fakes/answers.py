"""Answers as a client reads them from a connection, parsed strictly by RFC 9112.

This is a second opinion: it uses no code and no parser of the gateway.
"""

import re
from dataclasses import dataclass

_HEAD = re.compile(
    rb"HTTP/1\.1 (?P<status>[1-5][0-9]{2}) [\t -~]*\r\n"
    rb"(?P<fields>(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[\t -~\x80-\xff]*\r\n)*)\r\n"
)
_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One complete answer; names in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def read_answers(data: bytes) -> list[ReadAnswer]:
    """Take apart all answers on a connection, interim ones included; none of them is to a HEAD request.

    Raises:
        AssertionError: If the bytes are anything but complete, well-formed answers with lengths of their own.
    """
    answers = []
    while data:
        head = _HEAD.match(data)
        assert head is not None, f"no head of an answer: {data[:200]!r}"
        lines = head["fields"].split(b"\r\n")[:-1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        assert len(headers) == len(lines), f"a header twice: {lines}"
        body, data = _split_body(int(head["status"]), headers, data[head.end() :])
        answers.append(ReadAnswer(int(head["status"]), headers, body))
    return answers


def _split_body(status: int, headers: dict[bytes, bytes], data: bytes) -> tuple[bytes, bytes]:
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    assert length is None or coding is None, "two lengths"
    if status < 200 or status in (204, 304):
        return b"", data
    if coding is None:
        assert length is not None, "an answer without a length"
        assert length.isdigit()
        assert len(data) >= int(length), "a body that is too short"
        return data[: int(length)], data[int(length) :]
    assert coding == b"chunked"
    body = b""
    while True:
        line = _CHUNK.match(data)
        assert line is not None, f"no chunk: {data[:200]!r}"
        size = int(line[1], 16)
        chunk, end = data[line.end() : line.end() + size], data[line.end() + size : line.end() + size + 2]
        assert (len(chunk), end) == (size, b"\r\n"), "a chunk that is too short"
        body, data = body + chunk, data[line.end() + size + 2 :]
        if size == 0:
            return body, data
