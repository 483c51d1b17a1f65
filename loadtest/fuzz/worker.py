"""Scripted workers on one port; the first part of a path names the script: ``/c17/v1/models``.

Each script is a worker of its own to a gateway (its URL has a path).
"""

import asyncio
from collections import Counter

from loadtest.fuzz.actions import Script
from loadtest.fuzz.answers import answer
from loadtest.fuzz.server import RawServer

READ_S = 30.0

_FINE = answer(b'{"status":"ok"}')


class HostileWorker(RawServer):
    """Answers scripts by the first part of the path; ``asked`` counts calls of each by path."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, Script] = {}
        self.asked: Counter[tuple[str, str]] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, within a while."""
        async with asyncio.timeout(READ_S):
            await self._serve(reader, writer)

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
