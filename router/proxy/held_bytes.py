"""Memory that request bodies take in one process: one account for all.

    first byte comes in ──> waits for a worker ──> is at a worker ──first byte of its answer──> released
    `────────────────────── counted, once, for every end of the request ───────────────────────'

A body counts twice the bytes received, up to its declared length, which alone reserves nothing: a client has
to send half of what it holds, and a body is sure of its room once half of it has come. A body without room as
a whole is refused at its head, with 429; so is one that grows beyond the bound.
"""

import sys
from collections.abc import Callable

from router.errors import RequestRejected
from router.proxy.intake import LARGE_BODY_BYTES

RETRY_AFTER_S = 1.0
"""Seconds until a refused client may try again: requests end all the time."""

SMALL_SHARE = 8
"""Bodies below `LARGE_BODY_BYTES` may exceed the bound by this part of it: large ones do not keep them
out."""


class HeldBytes:
    """Count of bodies' bytes; 0 is no bound. `refused` is called on each refusal."""

    __slots__ = ("_bytes_max", "_refused", "_small_bytes_max", "count")

    def __init__(self, bytes_max: int = 0, refused: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._refused = refused
        self.use(bytes_max)

    def use(self, bytes_max: int) -> None:
        """Apply another bound from now on; the count stays."""
        self._bytes_max = bytes_max or sys.maxsize
        self._small_bytes_max = self._bytes_max + self._bytes_max // SMALL_SHARE

    def check(self, counted: int, length: int) -> None:
        """Raise `RequestRejected` without room for all of a body of which some is counted."""
        bound = self._small_bytes_max if length < LARGE_BODY_BYTES else self._bytes_max
        if self.count - counted + length > bound:
            raise self._rejected()

    def grow(self, counted: int, received: int, length: int) -> int:
        """Count a body's growth to `received` bytes of `length` (0 if unknown), and return its new count.

        Raises:
            RequestRejected: There is no room for `received`; nothing is changed.
        """
        others = self.count - counted
        bound = self._small_bytes_max if received < LARGE_BODY_BYTES else self._bytes_max
        wanted = received if length <= received else min(2 * received, length)
        if others + wanted > bound:
            wanted = received
            if others + wanted > bound:
                raise self._rejected()
        self.count = others + wanted
        return wanted

    def release(self, counted: int) -> None:
        """Count a body no longer."""
        self.count -= counted

    def _rejected(self) -> RequestRejected:
        self._refused()
        return RequestRejected(
            f"The requests that are held here have {self.count} bytes, and there is no room for more.",
            retry_after_s=RETRY_AFTER_S,
            code="held_bytes_exceeded",
        )
