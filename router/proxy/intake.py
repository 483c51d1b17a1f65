"""Bound on the bytes of large bodies that one pass of the event loop reads, over all clients.

    reading ──more than `TURN_BYTES` in this pass──> waiting ──its turn, in order──> reading

Without it 200 clients that upload at once held the loop for 0.4 s, and every stream with it. TCP slows
waiting clients down.
"""

import asyncio
import itertools

from uvicorn.protocols.http.flow_control import FlowControl

TURN_BYTES = 1024 * 1024
"""Bytes read in one pass: half a millisecond. One read of a socket, 256 KB at most, may exceed it."""

LARGE_BODY_BYTES = 256 * 1024
"""Bytes of a body from which on it is held back; smaller ones are soon complete and no burden."""

RESUMED_MAX = 4
"""Clients that go on in one pass: enough to fill `TURN_BYTES`."""


class Intake:
    """Shares reading between the clients of one process. For use from the event loop's thread."""

    def __init__(self) -> None:
        self._taken_bytes = 0
        self._waiting: dict[FlowControl, None] = {}
        self._turn_due = False

    def took(self, client: FlowControl, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count a piece of an incomplete body; pause its client if this pass has read enough."""
        self._taken_bytes += size
        if self._taken_bytes > TURN_BYTES and not client.read_paused:
            client.pause_reading()
            self._waiting[client] = None
        self._await_turn(loop)

    def forget(self, client: FlowControl) -> None:
        """Forget a client that is gone."""
        self._waiting.pop(client, None)

    def _await_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._turn_due:
            self._turn_due = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_due = False
        self._taken_bytes = 0
        for client in tuple(itertools.islice(self._waiting, RESUMED_MAX)):
            del self._waiting[client]
            client.resume_reading()
        if self._waiting:
            self._await_turn(loop)
