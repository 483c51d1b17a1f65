"""The network that fails on purpose fails as ordered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from fakes.running import until

from loadtest.chaos import TcpProxy

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def echo() -> AsyncIterator[tuple[str, int]]:
    """A server that echoes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()


@pytest.fixture
async def proxy(echo: tuple[str, int]) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(echo) as proxy:
        yield proxy


@pytest.fixture
async def dial(proxy: TcpProxy) -> AsyncIterator[Dial]:
    """Connects to the proxy; closes its connections in the end."""
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


async def test_bytes_pass_unchanged_both_ways(proxy: TcpProxy, dial: Dial) -> None:
    """More of them than the proxy and the kernel buffer; the end of a connection passes too."""
    sent = bytes(range(256)) * 100_000
    reader, writer = await dial()
    assert await echoed(reader, writer, sent) == sent
    writer.close()
    await until(lambda: not proxy.connections)


async def test_each_way_takes_the_delay_and_keeps_the_order(proxy: TcpProxy, dial: Dial) -> None:
    """Ten chunks are on their way together, and not each one after the delay of the one before."""
    proxy.delay_s = 0.2
    reader, writer = await dial()
    started_s = asyncio.get_running_loop().time()
    for number in range(10):
        writer.write(bytes((number,)))
        await asyncio.sleep(0.001)
    assert await reader.readexactly(10) == bytes(range(10))
    assert asyncio.get_running_loop().time() - started_s >= 0.4


async def test_a_blackhole_delivers_nothing_until_it_heals(proxy: TcpProxy, dial: Dial) -> None:
    old_reader, old_writer = await dial()
    assert await echoed(old_reader, old_writer, b"before") == b"before"
    proxy.blackhole()
    new_reader, new_writer = await dial()
    echoes = [
        asyncio.create_task(echoed(*streams, b"during"))
        for streams in ((old_reader, old_writer), (new_reader, new_writer))
    ]
    done, _ = await asyncio.wait(echoes, timeout=0.2)
    assert not done
    await proxy.heal()
    assert await asyncio.gather(*echoes) == [b"during"] * 2


async def test_a_closed_port_refuses_and_comes_back_at_the_same_place(proxy: TcpProxy, dial: Dial) -> None:
    reader, writer = await dial()
    assert await echoed(reader, writer, b"before") == b"before"
    await proxy.refuse()
    with pytest.raises(OSError):
        await reader.readexactly(1)
    with pytest.raises(ConnectionRefusedError):
        await dial()
    await proxy.heal()
    assert await echoed(*await dial(), b"after") == b"after"


async def test_a_cut_resets_what_is_open_and_nothing_else(proxy: TcpProxy, dial: Dial) -> None:
    reader, writer = await dial()
    assert await echoed(reader, writer, b"before") == b"before"
    await proxy.cut()
    with pytest.raises(OSError):
        await reader.readexactly(1)
    assert await echoed(*await dial(), b"after") == b"after"
