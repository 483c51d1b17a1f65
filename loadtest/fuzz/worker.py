"""A worker that answers as scripts say; the first part of a path says which: ``/c17/v1/models``.

Each script is a worker of its own to a gateway (its URL has a path), and all share one port.
"""

import asyncio
import contextlib
from collections import Counter
from types import TracebackType
from typing import Self

from loadtest.fuzz.actions import Script
from loadtest.fuzz.answers import answer

HEAD_BYTES_MAX = 1 << 20
READ_S = 30.0

_FINE = answer(b'{"status":"ok"}')


class HostileWorker:
    """Listens on a port of this machine; an async context manager.

    Attributes:
        scripts: What is answered, by the first part of the path.
        asked: How often each of them was asked for each path.
    """

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(READ_S):
                await self._serve(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the gateway left, or sent what we need not understand; `TimeoutError` is an `OSError`
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        _, _, length = head.partition("content-length:")
        if length:
            await reader.readexactly(int(length.split("\r\n", 1)[0]))
        name, _, path = head.split(" ", 2)[1].removeprefix("/").partition("/")
        path = "/" + path.partition("?")[0]
        self.asked[name, path] += 1
        script = self.scripts.get(name)
        writer.write(_FINE if script is None else script.answers.get(path, _FINE))
        await writer.drain()
        if script is not None and path in script.hangs:
            await reader.read()
