"""Writes of one turn of the event loop, sent together.

A write to a socket wakes the process at its other end, unless that runs already. Waking an idle core of a
virtual machine costs the writer 5 to 18 us, more than all else in the system call. So the writes of a turn
wait for its end, or until `WRITES_MAX` of them wait: the first one wakes the other processes, and the rest
find them awake (decision 0089). The bound keeps the first of many writes from waiting for the whole turn. As
long as turns have one write each, it leaves at once.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary, proxy

Piece = bytes | bytearray | memoryview

WRITES_MAX = 64
"""Writes that wait. On sockets (W1) a request took 94, 94, 98 us with 8, 92, 89, 89 with 24, 88, 87, 86 with
64: work of one kind in a row finds its code in the caches. 500 save no more."""


class LateWrites:
    """The writes of one event loop that wait.

    Attributes:
        waiting: The writes in their order; a queue, so that a flush within a flush goes on with it.
        is_due: True if a write was made in this turn, and its end sends those that wait.
        is_quiet: True if the turn before had one write at most. Then the first write leaves at once: there is
            no wake-up to save, and what its turn has still to do would delay it.
    """

    __slots__ = ("_loop", "_were_many", "is_due", "is_quiet", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = proxy(loop)  # which is their key
        self.waiting: deque[tuple[asyncio.Transport, bytes | Sequence[Piece]]] = deque()
        self.is_due = self._were_many = False
        self.is_quiet = True

    def begin(self) -> None:
        """See to it that the writes of this turn leave; the first one is waiting."""
        self.is_due = True
        self._loop.call_soon(self._end)
        if self.is_quiet:
            self.flush()

    def _end(self) -> None:
        self.is_due = False
        # A quiet turn has sent its first write.
        self.is_quiet = not self._were_many and len(self.waiting) <= (not self.is_quiet)
        self._were_many = False
        self.flush()

    def send_many(self) -> None:
        """Send what waits, before the end of the turn: it is enough."""
        self._were_many = True
        self.flush()

    def flush(self) -> None:
        """Write what waits. A connection that was closed meanwhile takes nothing."""
        waiting = self.waiting
        while waiting:
            transport, data = waiting.popleft()
            if transport.is_closing():
                continue
            if isinstance(data, bytes):
                transport.write(data)
            else:
                transport.writelines(data)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LateWrites] = WeakKeyDictionary()


def late_writes(loop: asyncio.AbstractEventLoop) -> LateWrites:
    """Return the waiting writes of a loop: one turn of it is shared by clients and workers."""
    known = _of_loop.get(loop)
    if known is None:
        known = _of_loop[loop] = LateWrites(loop)
    return known


class LateTransport:
    """A transport whose writes wait for the end of the turn; all else is done at once, and in order.

    Methods of the transport that need no order are attributes, so that calling one costs no Python function.
    `get_write_buffer_size` does not count what waits.
    """

    __slots__ = (
        "_late",
        "_transport",
        "get_extra_info",
        "get_write_buffer_size",
        "is_closing",
        "pause_reading",
        "resume_reading",
        "set_write_buffer_limits",
    )

    def __init__(self, transport: asyncio.Transport, late: LateWrites) -> None:
        self._transport = transport
        self._late = late
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def write(self, data: bytes | Sequence[Piece]) -> None:
        """Write with the other writes of the turn; the first of a quiet one, at once."""
        late = self._late
        waiting = late.waiting
        waiting.append((self._transport, data))
        if not late.is_due:
            late.begin()
        elif len(waiting) >= WRITES_MAX:
            late.send_many()

    def writelines(self, pieces: Sequence[Piece]) -> None:
        """Write several pieces, which are not copied, in their turn."""
        self.write(pieces)

    def can_write_eof(self) -> bool:
        """Return True if the sending side can be closed alone."""
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """Close the sending side behind what waits."""
        self._late.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close behind what waits."""
        self._late.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once, when what waits is given to the system: an answer may be in it."""
        self._late.flush()
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection to another protocol."""
        self._transport.set_protocol(protocol)
