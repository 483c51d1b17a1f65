"""Memory that request bodies take in one process: one account for all of them.

    first byte comes in ──> waits for a worker ──> is at a worker ──first byte of its answer──> let go
    `────────────────────── counted, once, whatever becomes of the request ──────────────────'

A body counts from its first byte until its exchange lets it go: until then it may have to be sent again.
Beyond the bound a new body is refused with 429, and so is one that grows beyond it.

A declared length alone reserves nothing: a client could fill the account with promises that cost it nothing.
A body counts what has come of it and as much again, up to its declared length. So a client that wants to hold
the account full has to send half of it, and a body is sure of its room once half of it has come. A body for
which there is no room as a whole is refused at its head, before it is sent.

Small bodies may go an eighth beyond the bound, so that large ones do not keep small requests out.
"""

import sys
from collections.abc import Callable

from router.errors import RequestRejected
from router.proxy.intake import LARGE_BODY_BYTES

RETRY_AFTER_S = 1.0
"""A client that is refused may come back so soon, in seconds: requests end all the time."""

SMALL_SHARE = 8
"""Bodies below `LARGE_BODY_BYTES` may go beyond the bound by this part of it."""


class HeldBytes:
    """Counts the bytes of bodies. For use from the event loop's thread.

    Args:
        bytes_max: How many there may be; 0 for no bound.
        refused: Told of each refusal.

    Attributes:
        count: How many there are.
    """

    __slots__ = ("_bytes_max", "_refused", "_small_bytes_max", "count")

    def __init__(self, bytes_max: int = 0, refused: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._refused = refused
        self.use(bytes_max)

    def use(self, bytes_max: int) -> None:
        """Take another bound from now on; what is counted stays."""
        self._bytes_max = bytes_max or sys.maxsize
        self._small_bytes_max = self._bytes_max + self._bytes_max // SMALL_SHARE

    def check(self, counted: int, length: int) -> None:
        """See whether there is room for a whole body.

        Args:
            counted: What is counted of it already.
            length: What it will have.

        Raises:
            RequestRejected: There is none.
        """
        bound = self._small_bytes_max if length < LARGE_BODY_BYTES else self._bytes_max
        if self.count - counted + length > bound:
            raise self._rejected()

    def grow(self, counted: int, received: int, length: int) -> int:
        """Count a body of which more has come.

        Args:
            counted: What is counted of it already.
            received: What has come of it.
            length: What it will have; 0 if nobody says so.

        Returns:
            What is counted of it now.

        Raises:
            RequestRejected: There is no room for what has come; nothing is changed.
        """
        others = self.count - counted
        bound = self._small_bytes_max if received < LARGE_BODY_BYTES else self._bytes_max
        wanted = min(2 * received, length) if length > received else received
        if others + wanted > bound:
            wanted = received
            if others + wanted > bound:
                raise self._rejected()
        self.count = others + wanted
        return wanted

    def release(self, counted: int) -> None:
        """Forget what was counted of a body."""
        self.count -= counted

    def _rejected(self) -> RequestRejected:
        self._refused()
        return RequestRejected(
            f"The requests that are held here have {self.count} bytes, and there is no room for more.",
            retry_after_s=RETRY_AFTER_S,
            code="held_bytes_exceeded",
        )
