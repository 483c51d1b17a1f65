r"""Passes a stream on in whole events, so that an error event can follow.

    data: {"a":1}\n\n                    whole: passes at once, as it came
    data: {"a":2}\n\ndata: {"b       the whole event passes, ``data: {"b`` is held until its end comes
    the worker breaks off             what is held is dropped, and an error event stands alone

A client takes a blank line for the end of an event (HTML, 9.2.6): behind half an event, an error would make
it parse the half, and fail before it sees the error.

Engines write an event at a time, and most reads end with one, which costs one look at the last bytes. An
event of more than `HELD_BYTES_MAX` passes as it comes; a stream that breaks within it can only be cut off.
Comments, which keep connections open, are never held.
"""

import re

HELD_BYTES_MAX = 64 * 1024
"""Longest begin of an event that is held, per stream."""

BLANK = b"\n\n"

_BLANKS = (BLANK, b"\n\r\n", b"\r\r")
"""The end of an event, with the end of its last line."""

_COMMENTS = re.compile(rb"(?::[^\r\n]*(?:\r\n|\n|\r(?!\Z)))+")


class WholeEvents:
    """The events of one stream.

    Attributes:
        held: The begin of an event, not passed on.
        torn: A part of an event has been passed on, and its end has not.
        between: Neither: the worker is between two events.
    """

    __slots__ = ("between", "held", "torn")

    def __init__(self) -> None:
        self.held = b""
        self.torn = False
        self.between = True

    def passed(self, data: bytes) -> bytes:
        """Return the bytes to pass on now; data that ends with `BLANK` passes whole while `between`."""
        data = self.held + data
        end = max(start + len(blank) if (start := data.rfind(blank)) >= 0 else 0 for blank in _BLANKS)
        if (end or not self.torn) and (comments := _COMMENTS.match(data, end)) is not None:
            end = comments.end()
        if end:
            self.torn = False
        if self.torn or len(data) - end > HELD_BYTES_MAX:
            self.torn = True
            end = len(data)
        self.held = data[end:]
        self.between = not (self.held or self.torn)
        return data[:end]
