"""Messages on their way to the proxy: a stream decides them at once, its writer sends them in order.

`put` takes messages that are made when they are sent, so that a large body is not held a second time in
pieces. A reader that awaits `room` before each message it reads keeps the number of batches small.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from router.picker.proto import ext_proc_pb2 as pb

BATCHES_MAX = 16
"""Batches from which on nothing more is read from the proxy."""


class Outbox:
    """The messages of one stream. ``failed`` is why its answer cannot be completed; empty if it can."""

    __slots__ = ("_batches", "_ended", "_room", "_wake", "failed")

    def __init__(self) -> None:
        self.failed = ""
        self._batches: deque[Iterable[pb.ProcessingResponse]] = deque()
        self._ended = False
        self._wake, self._room = asyncio.Event(), asyncio.Event()

    def put(self, messages: Iterable[pb.ProcessingResponse]) -> None:
        """Send these, unless the stream has ended."""
        if not self._ended:
            self._batches.append(messages)
            self._wake.set()

    def end(self, failed: str = "") -> None:
        """End the stream after its messages; at once, as failed, if ``failed`` gives a reason."""
        if failed and not self._ended:
            self.failed = failed
            self._batches.clear()
        self._ended = True
        self._wake.set()
        self._room.set()

    async def room(self) -> None:
        """Wait until few messages are left."""
        while len(self._batches) >= BATCHES_MAX and not self._ended:
            self._room.clear()
            await self._room.wait()

    def taken(self) -> Iterator[pb.ProcessingResponse]:
        """Take out the messages, one by one."""
        while self._batches:
            yield from self._batches.popleft()

    @property
    def ended(self) -> bool:
        """True once nothing more is put."""
        return self._ended

    async def messages(self) -> AsyncIterator[pb.ProcessingResponse]:
        """Yield the messages until the end."""
        while True:
            for message in self.taken():
                yield message
                self._room.set()
            if self._ended:
                return
            self._wake.clear()
            await self._wake.wait()
