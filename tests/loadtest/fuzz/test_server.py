"""The server of scripted bytes outlives clients that leave and servings that fail."""

import asyncio

import httpx
import pytest

from loadtest.fuzz.server import RawServer


class Echo(RawServer):
    """Echoes its input; an empty line is a mistake."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line.strip():
            raise ValueError(line)
        writer.write(line)
        await writer.drain()
        await reader.read()


async def asked(url: str, line: bytes) -> bytes:
    parts = httpx.URL(url)
    reader, writer = await asyncio.open_connection(parts.host, parts.port)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_connection_that_fails_is_closed_and_the_next_is_served() -> None:
    async with Echo() as server:
        assert await asked(server.url, b"\n") == b""
        assert await asked(server.url, b"one\n") == b"one\n"


async def test_open_connections_end_with_the_server() -> None:
    async with Echo() as server:
        parts = httpx.URL(server.url)
        reader, writer = await asyncio.open_connection(parts.host, parts.port)
        writer.write(b"one\n")
        assert await reader.readline() == b"one\n"
    assert await reader.read() == b""
    writer.close()


async def test_serving_is_left_to_the_kinds_of_servers() -> None:
    with pytest.raises(NotImplementedError):
        await RawServer().serve(asyncio.StreamReader(), None)  # type: ignore[arg-type]
