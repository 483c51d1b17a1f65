"""Places of fields in the JSON that they were decoded from, and edits at such places.

msgspec decodes a field of type `msgspec.Raw` without a copy, but does not report its place; the distance of
two addresses does. A search for the bytes of the field would not: a prompt may hold the same ones. A body of
1 MB takes 0.35 ms to decode with msgspec, and 2.2 ms with `json`, which does not report places either.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

Buffer = bytes | memoryview | msgspec.Raw

Edit = tuple[int, int, bytes]
"""Begin and end in bytes, and the replacement."""


def offset(field: Buffer, text: Buffer) -> int:
    """Return the begin of a field in the text that it is a view of, in bytes; the text must still be held."""
    start = _address(field) - _address(text)
    assert 0 <= start <= memoryview(text).nbytes
    return start


def edited(body: bytes | memoryview, edits: Sequence[Edit]) -> tuple[bytes | memoryview, ...]:
    """Return a body with ordered, disjoint edits, in pieces of which the large ones are its own."""
    if not edits:
        return (body,)
    view, at = memoryview(body), 0
    pieces: list[bytes | memoryview] = []
    for start, end, value in edits:
        pieces += (view[at:start], value)
        at = end
    pieces.append(view[at:])
    return tuple(piece for piece in pieces if len(piece))


def _address(buffer: Buffer) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)
