"""Ends of connections with their process: every client with an accepted request gets its answer.

``idle_s`` is an hour if a connection must not close by itself, and 0 if it must.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.proxy import Ending

Until = Callable[..., Awaitable[None]]
ReadAnswer = Callable[..., Awaitable[tuple[bytes, bytes]]]

POST = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\nhi"
HELLO = b"GET /hello HTTP/1.1\r\nHost: g\r\n\r\n"
CLOSE = b"connection: close\r\n"
HOUR_S = 3600.0


def echo(exchange: Any) -> None:
    exchange.answer(exchange.request.body)


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(60):
        return await reader.read() == b""


def test_what_is_said_first_holds() -> None:
    """The server signals connections again when its listener is closed, then without a delay."""
    ending = Ending()
    assert not ending.begun
    ending.begin(3.0)
    ending.begin()
    assert (ending.begun, ending.idle_s) == (True, 3.0)


async def test_an_answer_that_has_not_begun_is_the_last(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    gateway.end(HOUR_S)
    gateway.exchanges[0].answer(b"last")
    head, body = await read_answer(reader)

    assert CLOSE in head
    assert body == b"last"
    assert await closed(reader)


async def test_the_head_of_a_stream_says_that_it_is_the_last(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    gateway.end(HOUR_S)
    connection = gateway.exchanges[0].connection
    connection.send_head(200, b"", length=None)
    connection.send_body(b"one")
    connection.send_body(b"two")
    connection.finish()

    head, body = await read_answer(reader)
    assert CLOSE in head
    assert body == b"onetwo"
    assert await closed(reader)


@pytest.mark.parametrize("second", [POST, HELLO], ids=["proxied", "application"])
async def test_a_client_whose_head_promised_the_connection_may_use_it_once_more(
    gateway: Any, until: Until, read_answer: ReadAnswer, second: bytes
) -> None:
    """Its next request may be on the way when the first answer ends."""
    await gateway.start()
    reader, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    connection = gateway.exchanges[0].connection
    connection.send_head(200, b"", length=5)
    gateway.end(HOUR_S)
    connection.send_body(b"first")
    connection.finish()
    head, body = await read_answer(reader)
    assert CLOSE not in head
    assert body == b"first"

    gateway.on_start = echo
    writer.write(second)
    head, _ = await read_answer(reader)
    assert CLOSE in head
    assert await closed(reader)


@pytest.mark.parametrize("second", [POST, HELLO], ids=["proxied", "application"])
async def test_an_idle_connection_serves_one_more_request(
    gateway: Any, read_answer: ReadAnswer, second: bytes
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect(POST)
    assert CLOSE not in (await read_answer(reader))[0]
    gateway.end(HOUR_S)
    writer.write(second)

    assert CLOSE in (await read_answer(reader))[0]
    assert await closed(reader)


@pytest.mark.parametrize("data", [b"", POST], ids=["never used", "used"])
async def test_an_idle_connection_closes_after_a_while(
    gateway: Any, until: Until, read_answer: ReadAnswer, data: bytes
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect(data)
    if data:
        await read_answer(reader)
    await until(lambda: gateway.connections)
    gateway.end(0.0)

    assert await closed(reader)


async def test_a_new_connection_is_served_once_or_closes_after_a_while(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    """Half a second: enough for a request to come, and little to wait for."""
    gateway.on_start = echo
    await gateway.start()
    gateway.end(0.5)
    used, _ = await gateway.connect(POST)
    unused, _ = await gateway.connect()

    assert CLOSE in (await read_answer(used))[0]
    assert await closed(used)
    assert await closed(unused)


async def test_a_request_that_has_begun_is_read_to_its_end(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """One connection lacks half of its head, and one half of its body, when idle connections close."""
    gateway.on_start = echo
    await gateway.start()
    halves = (POST[:20], POST[20:]), (POST[:-1], POST[-1:])
    clients = [await gateway.connect(half) for half, _ in halves]
    await until(lambda: sum(connection._receives() for connection in gateway.connections) == 2)
    idle, _ = await gateway.connect()
    gateway.end(0.0)
    assert await closed(idle)
    for (reader, writer), (_, rest) in zip(clients, halves, strict=True):
        writer.write(rest)
        head, body = await read_answer(reader)
        assert CLOSE in head
        assert body == b"hi"


async def test_a_request_that_nobody_has_read_yet_keeps_its_connection(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """It arrives in the system's buffer at the moment when the connection has been idle for too long."""
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect()
    await until(lambda: gateway.connections)
    gateway.end(HOUR_S)
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as directly:
        directly.sendall(POST)
    gateway.connections[0].timeout_keep_alive_handler()
    head, body = await read_answer(reader)

    assert CLOSE in head
    assert body == b"hi"


async def test_of_pipelined_requests_only_the_last_is_told_to_close(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST + POST + HELLO)
    await until(lambda: gateway.exchanges)
    gateway.on_start = echo
    gateway.end(HOUR_S)
    gateway.exchanges[0].answer(b"hi")
    heads = [(await read_answer(reader))[0] for _ in range(3)]

    assert [CLOSE in head for head in heads] == [False, False, True]
    assert await closed(reader)


async def test_an_application_request_in_flight_is_told_to_close(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, writer = await gateway.connect(b"POST /size HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n")
    await until(lambda: gateway.state.tasks)
    gateway.end(HOUR_S)
    writer.write(b"hi")
    head, body = await read_answer(reader)

    assert CLOSE in head
    assert body == b'{"bytes":2}'


async def test_a_cut_interrupts_the_exchange_and_its_error_arrives(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """A request that waits its turn does not begin any more."""
    await gateway.start()
    reader, _ = await gateway.connect(POST + POST)
    await until(lambda: gateway.exchanges)
    gateway.end(HOUR_S)
    gateway.connections[0].cut()

    assert (await read_answer(reader))[1] == b"interrupted"
    assert await closed(reader)
    assert [exchange.calls for exchange in gateway.exchanges] == [["interrupt"]]


async def test_a_cut_does_not_wait_for_a_client_that_reads_nothing(gateway: Any, until: Until) -> None:
    await gateway.start()
    _, writer = await gateway.connect(POST)
    writer.transport.pause_reading()
    await until(lambda: gateway.exchanges)
    connection = gateway.exchanges[0].connection
    connection.send_head(200, b"", length=None)
    connection.send_body(bytes(64 * 1024 * 1024))
    gateway.exchanges[0].on_interrupt = connection.finish
    gateway.end(HOUR_S)
    gateway.connections[0].cut()

    await until(lambda: not gateway.connections)


@pytest.mark.parametrize("data", [b"", POST[:20], POST[:-1], HELLO[:10]])
async def test_a_cut_closes_what_has_not_begun(gateway: Any, until: Until, data: bytes) -> None:
    await gateway.start()
    await gateway.connect(data)
    await until(lambda: gateway.connections)
    gateway.end(HOUR_S)
    gateway.connections[0].cut()

    await until(lambda: not gateway.connections)
    assert gateway.exchanges == []
