"""Raw connections to a gateway, for clients that mean it no good."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from fakes.answers import ReadAnswer, read_answers
from fakes.running import WITHIN_S, RunningGateway

HOST = "127.0.0.1"
HEALTH = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Attacker:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, gateway: RunningGateway, address: str = HOST) -> Self:
        """Connect from an address of this machine."""
        port = gateway.process.settings.server.port
        return cls(*await asyncio.open_connection(HOST, port, local_addr=(address, 0), limit=2**24))

    def send(self, data: bytes) -> Self:
        """Send bytes; that the gateway hung up meanwhile shows when the answer is read."""
        self.writer.write(data)
        return self

    async def received(self) -> bytes:
        """All that comes until the gateway closes the connection."""
        data = b""
        async with asyncio.timeout(WITHIN_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(2**20):
                    data += piece
        self.close()
        return data

    async def answers(self) -> list[ReadAnswer]:
        """The same, taken apart."""
        return read_answers(await self.received())

    async def is_served(self) -> bool:
        """True if a request on this connection is answered; the connection then stays open."""
        self.send(HEALTH)
        try:
            async with asyncio.timeout(WITHIN_S):
                head = await self.reader.readuntil(b"\r\n\r\n")
                await self.reader.readexactly(15)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            return False
        return head.startswith(b"HTTP/1.1 200 ")

    def close(self) -> None:
        """Leave. Idempotent."""
        self.writer.transport.abort()


def post(
    body: bytes, *lines: bytes, path: bytes = b"/v1/completions", length: int | None = None, last: bool = True
) -> bytes:
    """A request with a body."""
    head = [
        b"POST %b HTTP/1.1" % path,
        b"host: g",
        *([b"connection: close"] if last else []),
        b"content-length: %d" % (len(body) if length is None else length),
        *lines,
    ]
    return b"\r\n".join([*head, b"", body])


@contextlib.asynccontextmanager
async def worker(serve_post: Serve) -> AsyncIterator[str]:
    """A worker of the model ``m`` whose answers to POST a test writes; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{"data":[{"id":"m"}]}')
                    continue
                lengths = [
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                ]
                await reader.readexactly(int(lengths[0].partition(b":")[2]))
                await serve_post(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0, limit=2**24) as server:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
