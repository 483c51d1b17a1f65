r"""A chunk of HTTP/1.1 (RFC 9112, section 7.1) that passes from worker to client as it came.

    1f CR LF data: {"token":"a"...} LF LF CR LF

Nearly every read of a stream is one such chunk. To parse it, to copy its payload and to frame that again took
a third of the gateway's own time per chunk. A read is such a chunk if the parser is between two chunks, the
first line is one of `SIZES` (no extension, one reading), the read has that size, and an event ends with it.
All else goes through the parser, which then says again where chunks begin.
"""

import contextlib
from collections.abc import Callable

CHUNK_BYTES_MAX = 4096
"""Longest payload in bytes that passes without the parser."""

EVENT_END = b"\n\n"

CHUNK_END = EVENT_END + b"\r\n"
"""End of a chunk that ends with an event."""

SIZE_DIGITS_MAX = len(b"%x" % CHUNK_BYTES_MAX)


class _Sizes(dict[bytes, int]):
    """Payload bytes by the first line of a chunk, of those met so far: all would be 0.7 MB.

    In a shorter chunk than an `EVENT_END` the end of that line would look like a part of `CHUNK_END`.
    """

    def __missing__(self, line: bytes) -> int:
        """Read a line, and keep its size; -1 if it has another form or size."""
        if len(line) <= SIZE_DIGITS_MAX and line.isalnum():
            with contextlib.suppress(ValueError):
                size = int(line, 16)
                if line in (b"%x" % size, b"%X" % size) and len(EVENT_END) <= size <= CHUNK_BYTES_MAX:
                    self[line] = size
                    return size
        return -1


SIZES = _Sizes()

WAITING_MAX = 32
"""Passed chunks that wait to be counted: 8 KB of tokens, 128 KB at most."""


class PassedChunks:
    """The chunks of one stream that passed as they came.

    Of a chunk that passes, the gateway only looks at its frame, writes it, and keeps it: the objects of its
    request would have to be fetched into caches for each token of each stream. They are told later.

    Attributes:
        waiting: Chunks that passed and are not counted; the connection settles after `WAITING_MAX`.
        write: Passes a chunk on to the client.
    """

    __slots__ = ("_count", "waiting", "write")

    def __init__(self, write: Callable[[bytes], None], count: Callable[[list[bytes]], None]) -> None:
        """Begin; ``count`` takes the payloads of chunks in their order."""
        self.waiting: list[bytes] = []
        self.write = write
        self._count = count

    def settle(self) -> None:
        """Have the chunks that passed counted. Call it before anything else of the answer is looked at."""
        if self.waiting:
            payloads = [chunk[chunk.find(b"\n") + 1 : -2] for chunk in self.waiting]
            self.waiting.clear()
            self._count(payloads)
