"""A WebSocket's client."""

import asyncio
import contextlib
from typing import Any

import wsproto
from wsproto.connection import ConnectionType
from wsproto.events import Request


class Socket:
    """One connection, by wsproto."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.ws = wsproto.WSConnection(ConnectionType.CLIENT)

    @classmethod
    async def at(cls, url: str, target: str = "/v1/realtime", **more: str) -> "Socket":
        host, port = url.removeprefix("http://").split(":")
        socket = cls(*await asyncio.open_connection(host, int(port)))
        headers = [(name.encode(), value.encode()) for name, value in more.items()]
        request = Request(host=f"{host}:{port}", target=target, extra_headers=headers)
        socket.writer.write(socket.ws.send(request))
        return socket

    async def event(self) -> Any:
        while True:
            for event in self.ws.events():
                return event
            data = await self.reader.read(65536)
            self.ws.receive_data(data or None)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
