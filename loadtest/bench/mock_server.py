"""Servers of the benchmarks on raw protocols: requests one after the other, whole bodies."""

import asyncio
from collections.abc import Callable, Iterable

import httptools

from router.open_files import raise_open_files


def answered(body: bytes, status: bytes = b"200 OK") -> bytes:
    """An answer of JSON in one piece."""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def framed(data: bytes) -> bytes:
    """A chunk of an answer in chunks."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class MockConnection(asyncio.Protocol):
    """One connection of a router; a subclass answers."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []

    def asked(self, transport: asyncio.WriteTransport, path: bytes, body: bytes) -> None:
        """Answer one request, now or later; ``path`` is without a query, ``body`` is complete."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse; a router that tries HTTP/2 first falls back."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        """Keep the path."""
        self._path = url.partition(b"?")[0]

    def on_body(self, data: bytes) -> None:
        """Collect the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Answer."""
        body, self._body = b"".join(self._body), []
        self.asked(self._transport, self._path, body)


async def listening(makers: Iterable[Callable[[], MockConnection]]) -> list[int]:
    """Serve on a port of 127.0.0.1 for each kind of connection, until the loop ends; return the ports."""
    raise_open_files(0)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(make, "127.0.0.1", 0, backlog=4096) for make in makers]
    return [server.sockets[0].getsockname()[1] for server in servers]
