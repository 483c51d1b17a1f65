"""The account of bodies: what counts, what is refused, and that it ends at zero."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.errors import InvalidKey, RequestRejected
from router.proxy import Header, HeldBytes
from router.proxy.client_protocol import APP_BYTES_FREE
from router.proxy.intake import LARGE_BODY_BYTES

Until = Callable[..., Awaitable[None]]
ReadAnswer = Callable[..., Awaitable[tuple[bytes, bytes]]]
MIB = 1 << 20


def head(length: int, *lines: bytes, path: bytes = b"/v1/x") -> bytes:
    declared = b"Content-Length: %d" % length if length >= 0 else b"Transfer-Encoding: chunked"
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, b"Host: g", declared, *lines, b"", b""])


def test_a_body_counts_what_has_come_and_as_much_again_up_to_its_length() -> None:
    held = HeldBytes(10 * MIB)
    counted = held.grow(0, 1000, 5000)
    assert (counted, held.count) == (2000, 2000)
    counted = held.grow(counted, 4000, 5000)
    assert (counted, held.count) == (5000, 5000)
    held.release(counted)
    assert held.count == 0


def test_a_body_of_unknown_length_counts_what_has_come() -> None:
    held = HeldBytes(10 * MIB)
    assert held.grow(0, 1000, 0) == 1000


def test_a_promise_holds_nothing_and_what_is_there_is_never_refused_for_a_promise() -> None:
    """With 2 MB of room, 1.5 MB of 3 have come: there is no room for as much again, but for what is there."""
    held = HeldBytes(2 * MIB)
    assert held.grow(0, 3 * MIB // 2, 3 * MIB) == 3 * MIB // 2


def test_beyond_the_bound_a_body_is_refused_and_nothing_is_counted() -> None:
    refused: list[int] = []
    held = HeldBytes(MIB, lambda: refused.append(1))
    held.grow(0, MIB - 1, 0)
    with pytest.raises(RequestRejected) as caught:
        held.grow(0, LARGE_BODY_BYTES, 0)
    with pytest.raises(RequestRejected):
        held.check(0, LARGE_BODY_BYTES)
    assert (caught.value.status, caught.value.code) == (429, "held_bytes_exceeded")
    assert caught.value.retry_after_s > 0
    assert (held.count, len(refused)) == (MIB - 1, 2)


def test_small_bodies_have_room_when_large_ones_fill_the_account() -> None:
    held = HeldBytes(8 * MIB)
    held.grow(0, 8 * MIB, 0)
    for _ in range(8):
        held.check(0, MIB // 8)
        held.grow(0, MIB // 8, MIB // 8)
    with pytest.raises(RequestRejected):
        held.grow(0, 1, 1)
    assert held.count == 9 * MIB


def test_another_bound_counts_from_the_next_body_on_and_none_is_no_bound() -> None:
    held = HeldBytes()
    held.grow(0, 1 << 40, 0)
    held.use(MIB)
    with pytest.raises(RequestRejected):
        held.check(0, 1)
    held.use(0)
    held.check(0, 1 << 40)


async def test_a_declared_length_without_room_is_refused_at_the_head(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """No body is asked for; the exchange answers, so that the refusal is counted like any other."""
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.refusal.code.encode(), status=429)
    await gateway.start(held=HeldBytes(MIB))
    first, writer = await gateway.connect(head(MIB) + bytes(600_000))
    await until(lambda: gateway.held.count == MIB)
    second, _ = await gateway.connect(head(MIB, b"Expect: 100-continue"))
    answer, body = await read_answer(second)
    assert answer.startswith(b"http/1.1 429 ")
    assert b"connection: close" in answer
    assert body == b"held_bytes_exceeded"
    assert await second.read() == b""
    assert gateway.exchanges[0].request.body == b""

    gateway.on_start = lambda exchange: exchange.answer(b"%d" % len(exchange.request.body))
    writer.write(bytes(MIB - 600_000))
    assert (await read_answer(first))[1] == b"%d" % MIB, "what was let in is not turned away"
    assert gateway.held.count == 0


async def test_a_chunked_body_is_refused_when_it_has_grown_beyond_the_bound(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.refusal.code.encode(), status=429)
    await gateway.start(held=HeldBytes(MIB))
    reader, writer = await gateway.connect(head(-1))
    for _ in range(20):
        writer.write(b"10000\r\n%b\r\n" % bytes(65536))
    assert (await read_answer(reader))[1] == b"held_bytes_exceeded"
    assert gateway.held.count == 0


async def test_declared_lengths_that_never_come_keep_nobody_out(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """Thirty clients declare nearly all there is, and send a byte."""
    await gateway.start(held=HeldBytes(MIB))
    for _ in range(30):
        await gateway.connect(head(MIB - 1000) + b"x")
    await until(lambda: len(gateway.connections) == 30 and gateway.held.count == 60)
    gateway.on_start = lambda exchange: exchange.answer(b"%d" % len(exchange.request.body))
    reader, writer = await gateway.connect(head(MIB - 1000))
    writer.write(bytes(MIB - 1000))
    assert (await read_answer(reader))[1] == b"%d" % (MIB - 1000)


async def test_a_body_counts_until_its_exchange_lets_it_go(gateway: Any, until: Until) -> None:
    await gateway.start(held=HeldBytes(MIB))
    await gateway.connect(head(1000) + bytes(1000))
    await until(lambda: gateway.exchanges)
    assert gateway.held.count == 1000
    gateway.exchanges[0].connection.release_body()
    assert gateway.held.count == 0
    gateway.exchanges[0].answer(b"done")
    assert gateway.held.count == 0


async def test_the_application_s_large_bodies_count_and_small_ones_always_come_in(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start(held=HeldBytes(MIB))
    _, holder = await gateway.connect(head(-1))
    for _ in range(16):
        holder.write(b"10000\r\n%b\r\n" % bytes(65536))
    await until(lambda: gateway.held.count == MIB)
    reader, _ = await gateway.connect(head(APP_BYTES_FREE, path=b"/size") + bytes(APP_BYTES_FREE))
    assert (await read_answer(reader))[1] == b'{"bytes":%d}' % APP_BYTES_FREE

    large, writer = await gateway.connect(head(2 * MIB, path=b"/size"))
    writer.write(bytes(MIB))
    answer, body = await read_answer(large)
    assert answer.startswith(b"http/1.1 429 ")
    assert b"held_bytes_exceeded" in body
    await until(lambda: gateway.held.count == MIB)

    holder.transport.abort()
    await until(lambda: gateway.held.count == 0)
    reader, writer = await gateway.connect(head(MIB, path=b"/size") + bytes(MIB))
    assert (await read_answer(reader))[1] == b'{"bytes":%d}' % MIB
    assert gateway.held.count == 0


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_stays_counted_whatever_becomes_of_clients(
    gateway: Any, until: Until, seed: int
) -> None:
    """Ends, resets, half bodies, pipelining, refusals, errors of the exchange, answers that are cut."""
    draw = random.Random(seed)
    waiting: list[Any] = []

    def start(exchange: Any) -> None:
        match draw.randrange(6):
            case 0:
                raise RuntimeError("a mistake of the exchange")
            case 1:
                exchange.connection.send_head(200, b"", length=5, body=b"ab")
                exchange.connection.abort()
            case 2:
                exchange.connection.release_body()
                asyncio.get_running_loop().call_soon(exchange.answer, b"later")
            case 3:
                waiting.append(exchange)
            case _:
                exchange.answer(b"done")

    gateway.on_start = start
    await gateway.start(held=HeldBytes(MIB))
    for _ in range(200):
        length = draw.choice((0, 10, 5000, 300_000, 2 * MIB))
        whole = head(length, path=draw.choice((b"/v1/x", b"/v1/x", b"/size"))) + bytes(length)
        if draw.randrange(4) == 0:
            chunk = b"%x\r\n%b\r\n" % (length, bytes(length)) if length else b""
            whole = head(-1) + chunk + draw.choice((b"0\r\n\r\n", b"zz\r\n"))
        data = whole * draw.choice((1, 1, 3))
        _, writer = await gateway.connect(data[: draw.choice((len(data), draw.randrange(len(data))))])
        match draw.randrange(3):
            case 0:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case 1:
                with contextlib.suppress(ConnectionError):
                    writer.write_eof()
            case _:
                await asyncio.sleep(0)
    for writer in gateway._writers:
        writer.transport.abort()
    gateway.on_start = lambda exchange: exchange.answer(b"done")
    for exchange in waiting:  # who has pipelined is not read meanwhile: it has left when an answer is written
        exchange.answer(b"done")
    await until(lambda: not gateway.connections)
    assert gateway.held.count == 0
    assert gateway.all_unread.count == 0


class _Judge:
    """Lets in who says the word."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, headers: Any) -> None:
        self.asked += 1
        found: Header
        for found in headers:
            if found == (b"authorization", b"Bearer good"):
                return
        raise InvalidKey


@pytest.mark.parametrize("lines", [(), (b"Authorization: Bearer bad",)])
@pytest.mark.parametrize("length", [60_000_000, -1])
@pytest.mark.parametrize("expects", [True, False])
async def test_who_may_not_send_a_body_is_answered_at_the_head(
    gateway: Any, read_answer: ReadAnswer, lines: tuple[bytes, ...], length: int, expects: bool
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.refusal.code.encode(), status=401)
    await gateway.start(judge=_Judge())
    expect = (b"Expect: 100-continue",) if expects else ()
    reader, writer = await gateway.connect(head(length, *lines, *expect))
    answer, body = await read_answer(reader)
    assert answer.startswith(b"http/1.1 401 "), "and not 100"
    assert b"connection: close" in answer
    assert body == b"invalid_api_key"
    writer.write(bytes(100_000) + head(0))
    assert await reader.read() == b""
    assert len(gateway.exchanges) == 1
    assert gateway.held.count == 0


async def test_who_may_send_a_body_is_judged_once(gateway: Any, read_answer: ReadAnswer) -> None:
    """A request that is complete with its head is judged by its exchange alone."""
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    judge = _Judge()
    await gateway.start(judge=judge)
    good = b"Authorization: Bearer good"
    reader, writer = await gateway.connect(head(2, good, b"Expect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"a")
    await asyncio.sleep(0)
    writer.write(b"b" + head(2, good) + b"cd")
    assert [(await read_answer(reader))[1] for _ in range(2)] == [b"ab", b"cd"]
    assert judge.asked == 1


async def test_a_refusal_at_the_head_waits_for_the_answers_before_it(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start(judge=_Judge())
    reader, _ = await gateway.connect(head(1) + b"a" + head(1000, b"Expect: 100-continue") + b"b")
    await until(lambda: gateway.exchanges)
    assert len(gateway.exchanges) == 1
    gateway.on_start = lambda exchange: exchange.answer(b"no", status=401)
    gateway.exchanges[0].answer(b"first")
    assert [(await read_answer(reader))[1] for _ in range(2)] == [b"first", b"no"]
    assert await reader.read() == b""
