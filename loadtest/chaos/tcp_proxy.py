"""A network that fails: a TCP proxy in front of a TCP port or a Unix socket.

    pass        bytes go through, each way `delay_s` later
    blackhole   connections open, nothing arrives; what was sent arrives when the network heals
    refuse      the port is closed and every connection reset
    cut         every connection is reset once; new ones pass

Buffers here and in the kernel are bounded, so a sender feels a blackhole as a real one: at first not at all,
then by its own full buffer.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

READ_BYTES = 64 * 1024
CHUNKS_MAX = 64

# A close that lingers for zero seconds is a reset (socket(7), SO_LINGER).
_RESET = struct.pack("ii", 1, 0)


class TcpProxy:
    """Proxy on a port of 127.0.0.1 to a (host, port) or the path of a Unix socket; an async context manager.

    Attributes:
        delay_s: Added each way; may be changed at any time.
    """

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay_s = 0.0

    @property
    def port(self) -> int:
        """Its port, in every mode but ``refuse``."""
        return self._port

    @property
    def url(self) -> str:
        """Value for ``--redis-url``."""
        return f"redis://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """Clients that are connected now."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    async def heal(self) -> None:
        """Pass bytes on again, after any of the others."""
        self._open.set()
        if self._server is None:
            await self._listen()

    def blackhole(self) -> None:
        """Deliver nothing until `heal`."""
        self._open.clear()

    async def refuse(self) -> None:
        """Close the port and reset every connection, until `heal`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.cut()

    async def cut(self) -> None:
        """Reset every connection; new ones pass."""
        for writer in tuple(self._writers):
            connected: socket.socket = writer.get_extra_info("socket")
            if connected.family == socket.AF_INET and connected.fileno() >= 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer), name="tcp-proxy")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, both ways, until either side ends it."""
        pair = [writer]
        self._writers.add(writer)
        try:
            await self._open.wait()
            to_reader, to_writer = await self._dial()
            pair.append(to_writer)
            self._writers.add(to_writer)
            async with asyncio.TaskGroup() as group:
                for source, sink in ((reader, to_writer), (to_reader, writer)):
                    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)
                    group.create_task(self._take(source, chunks))
                    group.create_task(self._deliver(chunks, sink))
        except* (OSError, EOFError):
            pass
        finally:
            for end in pair:
                end.transport.abort()
                self._writers.discard(end)
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    def _dial(self) -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        if isinstance(self._target, str):
            return asyncio.open_unix_connection(self._target)
        return asyncio.open_connection(*self._target)

    async def _take(self, source: asyncio.StreamReader, chunks: asyncio.Queue[tuple[float, bytes]]) -> None:
        clock: Callable[[], float] = asyncio.get_running_loop().time
        while data := await source.read(READ_BYTES):
            await chunks.put((clock() + self.delay_s, data))
        await chunks.put((clock() + self.delay_s, b""))

    async def _deliver(self, chunks: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        clock: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            due_s, data = await chunks.get()
            await asyncio.sleep(max(0.0, due_s - clock()))
            await self._open.wait()
            if not data:
                with contextlib.suppress(OSError):
                    sink.close()
                    await sink.wait_closed()
                raise EOFError
            sink.write(data)
            await sink.drain()
