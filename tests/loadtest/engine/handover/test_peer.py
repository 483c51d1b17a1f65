"""Peers that answer, refuse, die, or are not there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from loadtest.engine.handover.peer import PeerLost, PeerRefused, call


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def test_an_answer_is_decoded() -> None:
    async with answering(b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"a": [1]}') as (port, heard):
        assert await call("127.0.0.1", port, "/kv", {"room": 1}) == {"a": [1]}
        assert await call("127.0.0.1", port, "/query?x=1") == {"a": [1]}

    assert heard[0].startswith(b"POST /kv HTTP/1.1\r\n")
    assert heard[1].startswith(b"GET /query?x=1 HTTP/1.1\r\n")


async def test_an_error_is_a_refusal() -> None:
    async with answering(b"HTTP/1.1 404 Not Found\r\n\r\nno such thing") as (port, _):
        with pytest.raises(PeerRefused, match="no such thing"):
            await call("127.0.0.1", port, "/kv", {})


@pytest.mark.parametrize("raw", [b"", b"nonsense", b'HTTP/1.1 200 OK\r\n\r\n{"a": '])
async def test_less_than_an_answer_is_none(raw: bytes) -> None:
    async with answering(raw) as (port, _):
        with pytest.raises(PeerLost):
            await call("127.0.0.1", port, "/kv", {})


async def test_nobody_is_lost() -> None:
    async with answering(b"") as (port, _):
        pass
    with pytest.raises(PeerLost):
        await call("127.0.0.1", port, "/health")


async def test_a_call_that_is_given_up_closes_at_once() -> None:
    closed = asyncio.Event()
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with suppress(ConnectionResetError):
            await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        waiting = asyncio.create_task(call("127.0.0.1", server.sockets[0].getsockname()[1], "/kv"))
        await asked.wait()
        waiting.cancel()
        await closed.wait()
        await asyncio.gather(waiting, return_exceptions=True)
