"""The head of a message, request or answer, that comes again and again with other bodies.

    head = before the digits of the length + digits + behind them       ``content-length: 123``

A read is the next message of that head if it begins with the same bytes, has other digits of the length at
most, and ends where its body ends. llhttp would read the same, since digits cannot change where a head ends;
anything else is for the parser.
"""

import re

import msgspec

HEAD_BYTES_MAX = 4096
"""Longest head that is remembered."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)


class RepeatedHead(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A head that the parser has read, without its length: its bytes before and behind the digits."""

    before: bytes
    after: bytes

    def body_in(self, data: bytes) -> bytes | None:
        """Return the body if the read is this head with its whole body; None if it is anything else.

        The length has no zeros before it: then it follows from the body.
        """
        before = self.before
        if not data.startswith(before):
            return None
        head, behind, body = data.partition(self.after)  # which ends with the first blank line
        return body if behind and head == b"%b%d" % (before, len(body)) else None


def halves_of(data: bytes, body_bytes: int) -> tuple[bytes, bytes] | None:
    """Return the halves of the head of a read; None if the read is not one whole message, or too long."""
    start = len(data) - body_bytes
    if not 0 < start <= HEAD_BYTES_MAX or data.find(b"\r\n\r\n") != start - 4:
        return None
    head = data[:start]
    found = _LENGTH.search(head)
    if found is None or head.lower().count(b"content-length") != 1:
        return None
    return head[: found.start(1)], head[found.end(1) :]
