"""Answers on the wire: framing by HTTP version, method and status, and ends that are not ends."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.errors import ClientError, RequestRejected
from router.proxy import RequestHead, UpstreamRules, WorkerPool, error_answer, retry_after

Until = Callable[..., Awaitable[None]]
ReadAnswer = Callable[..., Awaitable[tuple[bytes, bytes]]]
POST = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n"
POST_1_0 = b"POST /v1/x HTTP/1.0\r\nContent-Length: 0\r\n\r\n"


async def start(gateway: Any, until: Until, request: bytes = POST) -> tuple[asyncio.StreamReader, Any]:
    """Connect, send one request; returns the client's reader and the exchange's connection."""
    await gateway.start()
    reader, _ = await gateway.connect(request)
    await until(lambda: gateway.exchanges)
    return reader, gateway.exchanges[0].connection


async def test_an_answer_of_unknown_length_is_chunked(gateway: Any, until: Until) -> None:
    reader, connection = await start(gateway, until)
    large = bytes(100_000)
    connection.send_head(200, b"a: b\r\n", length=None)
    connection.send_body(b"hello")
    connection.send_body(b"")
    connection.send_body(large)
    connection.finish()

    expected = (
        b"HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n186a0\r\n" + large + b"\r\n0\r\n\r\n"
    )
    assert await reader.readexactly(len(expected)) == expected


@pytest.mark.parametrize("asks", [b"", b"Connection: keep-alive\r\n"])
async def test_an_http_1_0_client_gets_no_chunks_and_a_closed_connection(
    gateway: Any, until: Until, asks: bytes
) -> None:
    """The client's wish to keep the connection does not matter (RFC 9112 section 9.3)."""
    reader, connection = await start(gateway, until, POST_1_0.replace(b"\r\n", b"\r\n" + asks, 1))
    connection.send_head(200, b"", length=None)
    connection.send_body(b"hello")
    connection.finish()

    assert await reader.read() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"


async def test_a_client_that_asks_for_what_is_usual_gets_it(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    reader, connection = await start(
        gateway, until, POST.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
    )
    connection.send_head(200, b"", length=None, body=b"hello")
    connection.finish()
    head, body = await read_answer(reader)

    assert (head, body) == (b"http/1.1 200 ok\r\ntransfer-encoding: chunked\r\n\r\n", b"hello")


async def test_a_client_that_asks_to_close_is_obeyed(gateway: Any, until: Until) -> None:
    request = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    reader, _ = await start(gateway, until, request)
    gateway.exchanges[0].answer(b"bye")

    answer = await reader.read()
    assert answer.endswith(b"content-length: 3\r\nconnection: close\r\n\r\nbye")


@pytest.mark.parametrize(
    ("status", "length", "head"),
    [
        (204, None, b"HTTP/1.1 204 No Content\r\n\r\n"),
        (204, 0, b"HTTP/1.1 204 No Content\r\n\r\n"),
        (304, 7, b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n"),
        (599, 0, b"HTTP/1.1 599 \r\ncontent-length: 0\r\n\r\n"),
        (799, 0, b"HTTP/1.1 799 \r\ncontent-length: 0\r\n\r\n"),
    ],
)
async def test_statuses_without_a_body_keep_the_connection_in_step(
    gateway: Any, until: Until, read_answer: ReadAnswer, status: int, length: int | None, head: bytes
) -> None:
    """The answer to a second, pipelined request follows at once."""
    reader, connection = await start(gateway, until, POST + POST)
    connection.send_head(status, b"", length=length)
    connection.send_body(b"")
    connection.finish()
    assert await reader.readexactly(len(head)) == head
    await until(lambda: len(gateway.exchanges) == 2)
    gateway.exchanges[1].answer(b"next")

    assert (await read_answer(reader))[1] == b"next"


async def test_a_head_and_the_first_body_bytes_leave_in_one_write(gateway: Any, until: Until) -> None:
    """With either framing; a write is a system call."""
    await gateway.start()
    _, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    (connection,) = gateway.connections
    writes: list[bytes] = []
    connection.transport = Recording(connection.transport, writes)
    gateway.exchanges[0].answer(b"all")
    writer.write(POST)
    await until(lambda: len(gateway.exchanges) == 2)
    gateway.exchanges[1].connection.send_head(200, b"", length=None, body=b"first")
    gateway.exchanges[1].connection.send_body(b"second")

    assert [data.partition(b"\r\n\r\n")[2] or data for data in writes] == [
        b"all",
        b"5\r\nfirst\r\n",
        b"6\r\nsecond\r\n",
    ]


class Recording:
    """A transport that also remembers its writes."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_a_body_that_nobody_may_see_is_dropped(gateway: Any, until: Until) -> None:
    reader, connection = await start(gateway, until)
    connection.send_head(304, b"", length=4, body=b"body")
    connection.send_body(b"body")
    connection.finish()
    gateway.connections[0].transport.close()

    assert await reader.read() == b"HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\n"


async def test_a_head_does_not_wait_for_its_body(gateway: Any, until: Until) -> None:
    """A streaming client may act on the head long before the first token."""
    reader, connection = await start(gateway, until)
    connection.send_head(200, b"", length=None)

    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_an_exchange_that_starts_towards_a_slow_client_is_paused_at_once(
    gateway: Any, until: Until
) -> None:
    def flood(exchange: Any) -> None:
        exchange.connection.send_head(200, b"", length=None)
        exchange.connection.send_body(bytes(64 * 2**20))

    gateway.on_start = flood
    _, _ = await start(gateway, until)
    await until(lambda: gateway.exchanges[0].calls)

    assert gateway.exchanges[0].calls[0] == "pause"


async def test_an_answer_shorter_than_announced_is_aborted(gateway: Any, until: Until) -> None:
    reader, connection = await start(gateway, until)
    connection.send_head(200, b"", length=10)
    connection.send_body(b"short")
    connection.finish()
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readexactly(1000)

    assert gateway.exchanges[0].calls == []


async def test_an_aborted_chunked_answer_has_no_end(gateway: Any, until: Until) -> None:
    reader, connection = await start(gateway, until)
    connection.send_head(200, b"", length=None)
    connection.send_body(b"part")
    await reader.readuntil(b"part")
    connection.abort()
    connection.abort()

    assert b"0\r\n\r\n" not in await reader.read()
    assert gateway.exchanges[0].calls == [], "an exchange is not told of what it did itself"


async def test_an_aborted_answer_that_ends_with_the_connection_is_reset(gateway: Any, until: Until) -> None:
    reader, connection = await start(gateway, until, POST_1_0)
    connection.send_head(200, b"", length=None)
    connection.send_body(b"part")
    await reader.readuntil(b"part")
    connection.abort()

    with pytest.raises(ConnectionResetError):
        await reader.read()


class Forwarding:
    """The smallest exchange: it passes everything to one worker."""

    def __init__(self, pool: WorkerPool, exchange: Any) -> None:
        request, self.connection = exchange.request, exchange.connection
        self.failed = False
        self.handle = pool.send(RequestHead(b"POST", b"/v1/x"), b"", [request.body], self)
        exchange.pause, exchange.resume = self.handle.pause, self.handle.resume
        exchange.client_left = self.handle.abort

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        self.connection.send_head(status, lines, length=length)

    def upstream_data(self, data: bytes) -> None:
        self.connection.send_body(data)

    def upstream_end(self) -> None:
        self.connection.finish()

    def upstream_failed(self, error: Exception) -> None:
        self.failed = True
        self.connection.abort()


async def test_a_client_that_does_not_read_stops_the_worker(gateway: Any, worker: Any, until: Until) -> None:
    """The worker sends only what buffers hold of an endless answer, until the client reads or leaves."""
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await worker.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()
            written += 65536

    pool = WorkerPool(await worker.start(script))
    gateway.on_start = lambda exchange: Forwarding(pool, exchange)
    await gateway.start()
    reader, writer = await gateway.connect()
    writer.transport.pause_reading()
    writer.write(POST)
    await until(lambda: written)
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.1)
    assert written < 64 * 2**20
    writer.transport.resume_reading()
    while written < before + 2**20:
        await reader.read(2**20)
    writer.close()
    await until(lambda: worker.closed_connections == 1)

    assert pool.open == 0
    pool.close()


async def test_a_stream_passes_through_chunk_by_chunk(
    gateway: Any, worker: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """Each event reaches the client before the worker writes the next."""
    next_event = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            writer.write(b"7\r\nevent %d\r\n" % number)
            await next_event.wait()
            next_event.clear()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    pool = WorkerPool(await worker.start(script))
    gateway.on_start = lambda exchange: Forwarding(pool, exchange)
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    await reader.readuntil(b"\r\n\r\n")
    for number in range(3):
        assert await reader.readexactly(12) == b"7\r\nevent %d\r\n" % number
        next_event.set()

    assert await reader.readexactly(5) == b"0\r\n\r\n"
    pool.close()


async def test_nothing_stays_behind_whatever_clients_and_workers_do(
    gateway: Any, worker: Any, until: Until
) -> None:
    """Seeded: 200 clients leave at random moments, workers break off at random moments; all is released."""
    chance = random.Random(7)
    lengths = [1, 100, 70_000]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await worker.request(reader)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            fate = chance.random()
            if fate < 0.1:
                return
            for part in (head, *(b"%x\r\n%b\r\n" % (n, bytes(n)) for n in chance.choices(lengths, k=8))):
                writer.write(part)
                await asyncio.sleep(0)
                if fate < 0.3 and chance.random() < 0.2:
                    return
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    pool = WorkerPool(await worker.start(script), UpstreamRules(connections_max=8))
    forwardings: list[Forwarding] = []
    gateway.on_start = lambda exchange: forwardings.append(Forwarding(pool, exchange))
    await gateway.start()

    async def client() -> None:
        _, writer = await gateway.connect(POST)
        patience = chance.randrange(30)
        for _ in range(patience):
            await asyncio.sleep(0.001)
        writer.close()

    async with asyncio.TaskGroup() as clients:
        for _ in range(200):
            clients.create_task(client())
    await until(lambda: not gateway.state.connections)

    assert (pool.in_use, pool.waiting) == (0, 0)
    assert pool.open <= 8
    pool.close()
    await until(lambda: worker.closed_connections == worker.connections)


@pytest.mark.parametrize(
    ("seconds", "value"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.1, b"2"), (30.0, b"30")]
)
def test_retry_after_is_whole_seconds_and_never_at_once(seconds: float, value: bytes) -> None:
    assert retry_after(seconds) == value


def test_who_may_come_back_is_told_when() -> None:
    lines, body = error_answer(RequestRejected("full", retry_after_s=2.5))
    assert lines == b"content-type: application/json\r\nretry-after: 3\r\n"
    assert json.loads(body)["error"]["message"] == "full"

    lines, _ = error_answer(ClientError("no", code="nonsense"))
    assert lines == b"content-type: application/json\r\n"
