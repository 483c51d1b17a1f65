"""The last bytes of an answer, in which the engine's counts are, and a few of its first.

    first HEAD_BYTES_MAX | dropped | old chunks | new chunks
                                   `-- at least the last bytes_max, at most three times as many --'

Nothing is looked at per chunk but its length: when the new chunks are enough, the old ones go at once.
"""

TAIL_BYTES_MAX = 16 << 10
HEAD_BYTES_MAX = 2 << 10
"""Anthropic's ``message_start``, the first event of a stream, is some 400 bytes."""


class TailBuffer:
    """Keeps at least the last ``bytes_max`` bytes of an answer, at most three times as many, and its first.

    Chunks are kept whole and by reference: the new ones, and the old ones until there are enough new ones.
    """

    __slots__ = ("_bytes_max", "_dropped_bytes", "_head", "_new", "_new_bytes", "_old")

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._old: list[bytes] = []
        self._new: list[bytes] = []
        self._new_bytes = self._dropped_bytes = 0
        self._head = b""

    def append(self, chunk: "bytes") -> None:
        """Add the next bytes."""
        self._new.append(chunk)
        self._new_bytes += len(chunk)
        if self._new_bytes >= self._bytes_max:
            self._turn()

    def extend(self, chunks: "list[bytes]", size: int) -> None:
        """Add some chunks of ``size`` bytes in all, fewer than ``bytes_max`` each."""
        self._new += chunks
        self._new_bytes += size
        if self._new_bytes >= self._bytes_max:
            self._turn()

    def _turn(self) -> None:
        """Drop the old chunks; the new ones are old from now on."""
        dropped = b"".join(self._old)
        if self._new_bytes > 2 * self._bytes_max:
            dropped += b"".join(self._new)
            self._new = [dropped[-self._bytes_max :]]
            dropped = dropped[: -self._bytes_max]
        if len(self._head) < HEAD_BYTES_MAX:
            self._head += dropped[: HEAD_BYTES_MAX - len(self._head)]
        self._dropped_bytes += len(dropped)
        self._old, self._new, self._new_bytes = self._new, [], 0

    def bytes(self) -> "bytes":
        """Return the kept bytes, with a line break where some are missing."""
        gap = b"\n" if self._dropped_bytes > len(self._head) else b""
        return b"".join((self._head, gap, *self._old, *self._new))
