"""A client on a bare socket, which a test stops, closes or resets wherever it wants."""

import asyncio
import contextlib
from typing import Any, Self

import httptools
import orjson
from fakes.scripted_worker import set_reset


class ScriptedClient:
    """One connection with one request; its attributes gather the answer.

    Attributes:
        status: Status of the answer; 0 before its head.
        body: Body of the answer so far, without framing.
        complete: True if the answer has ended, by its own framing.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body = b""
        self.complete = False

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to a gateway."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer, or of the event that ends a stream."""
        error: dict[str, Any] = orjson.loads(self.body[self.body.rindex(b'{"error"') :])["error"]
        return error

    def send(self, body: bytes, *, path: str = "/v1/chat/completions") -> None:
        """Send a whole request, after which the gateway closes the connection."""
        self._writer.write(_head(path, body, "connection: close"))
        self._writer.write(body)

    async def send_half(self, body: bytes, *, path: str = "/v1/chat/completions") -> None:
        """Send the head, wait until the gateway wants the body, and send half of that."""
        self._writer.write(_head(path, body, "expect: 100-continue"))
        async with asyncio.timeout(60):
            assert b" 100 " in await self._reader.readuntil(b"\r\n\r\n")
        self._writer.write(body[: len(body) // 2])
        await self._writer.drain()

    def send_rest(self, body: bytes) -> None:
        """Send the other half."""
        self._writer.write(body[len(body) // 2 :])

    async def receive(self, body_bytes: int) -> None:
        """Read until so much of the answer's body has come."""
        async with asyncio.timeout(60):
            while len(self.body) < body_bytes:
                assert await self._read(), f"the answer ended: {self.status} {self.body!r}"

    async def finished(self) -> Self:
        """Read to the end of the connection."""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while await self._read():
                    pass
        self.close()
        return self

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection, before this returns."""
        set_reset(self._writer.get_extra_info("socket"))
        self._writer.transport.abort()

    async def _read(self) -> bool:
        data = await self._reader.read(1 << 20)
        if data:
            self._parser.feed_data(data)
            self.status = self._parser.get_status_code()
        return bool(data)

    # Parser callbacks.

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def _head(path: str, body: bytes, header: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: x", header, f"content-length: {len(body)}", "", "")
    return "\r\n".join(lines).encode()
