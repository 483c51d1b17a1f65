"""Position of a field in the JSON that it was decoded from.

msgspec decodes a field of type `msgspec.Raw` without a copy, but does not say where it found it. The distance
of two addresses says so. A search for the field's bytes would not: a prompt may hold the same ones. A body of
1 MB takes 0.35 ms to decode with msgspec, and 2.2 ms with `json`, which does not tell positions either.
"""

import msgspec
import numpy as np

Buffer = bytes | memoryview | msgspec.Raw


def offset(field: Buffer, text: Buffer) -> int:
    """Return where a field begins in the text that it is a view of, in bytes; the text must still be held."""
    return _address(field) - _address(text)


def _address(buffer: Buffer) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)
