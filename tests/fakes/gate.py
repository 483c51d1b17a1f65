"""A door in front of an engine: requests may be held there, or changed on their way in.

gateway ──> gate ──> engine      a held request waits with its head; others pass, health checks too
"""

import asyncio
from collections.abc import Callable
from typing import Self

CHUNK_BYTES = 1 << 16


class Gate:
    """Forwards connections to a port of this machine; an async context manager.

    Args:
        port: The engine's.

    Attributes:
        held: Requests that wait at the moment.
        change: Replaces incoming bytes, head and body as they come, by as many others.
    """

    def __init__(self, port: int) -> None:
        self.held = 0
        self.change: Callable[[bytes], bytes] = bytes
        self._engine_port = port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        """Its address."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Hold requests from now on."""
        self._open.clear()

    def open(self) -> None:
        """Let all go."""
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends its connection, which ends the other one."""
        to_engine, from_engine = await asyncio.open_connection("127.0.0.1", self._engine_port)
        inwards = asyncio.create_task(self._inwards(reader, from_engine))
        outwards = asyncio.create_task(self._outwards(to_engine, writer))
        try:
            await asyncio.wait((inwards, outwards), return_when=asyncio.FIRST_COMPLETED)
        finally:
            inwards.cancel()
            outwards.cancel()
            await asyncio.gather(inwards, outwards, return_exceptions=True)
            from_engine.transport.abort()

    async def _inwards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if data.startswith(b"POST ") and not self._open.is_set():
                self.held += 1
                try:
                    await self._open.wait()
                finally:
                    self.held -= 1
            changed = self.change(data)
            assert len(changed) == len(data)
            writer.write(changed)
            await writer.drain()

    async def _outwards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
