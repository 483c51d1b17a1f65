"""Bodies that come while their exchange runs, and tunnels, on both loops."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.errors import ClientError, RouterError
from router.proxy import ClientLimits, HeldBytes, error_answer

Until = Callable[..., Awaitable[None]]
Read = Callable[..., Awaitable[tuple[bytes, bytes]]]

OFFER = (
    b"GET /tunnel HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n"
    b"sec-websocket-key: k\r\n\r\n"
)


def form(length: int) -> bytes:
    return b"POST /up/x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length


class Sink:
    """Takes a body, and answers it with its length."""

    def __init__(self, exchange: Any) -> None:
        self.exchange, self.client = exchange, exchange.connection
        self.body = bytearray()  # bytes would be copied with each piece, 32 GB of them for one long body
        self.pieces = 0
        self.ended = False
        self.error: RouterError | None = None
        self.client.read_body(self)

    def body_data(self, data: bytes) -> None:
        self.body += data
        self.pieces += 1

    def body_end(self) -> None:
        assert not self.ended
        self.ended = True
        self.exchange.answer(b"%d" % len(self.body))

    def body_failed(self, error: RouterError) -> None:
        self.error = error
        lines, body = error_answer(error)
        self.client.send_head(error.status, lines, length=len(body), body=body)
        self.client.finish()


class Echo(Sink):
    """Accepts a tunnel and sends its bytes back."""

    def __init__(self, exchange: Any) -> None:
        exchange.connection.switch_protocols(b"x-a: b\r\n")
        super().__init__(exchange)

    def body_data(self, data: bytes) -> None:
        super().body_data(data)
        self.client.send_body(data)


async def serving(gateway: Any, kind: type[Sink] = Sink, **options: Any) -> list[Sink]:
    sinks: list[Sink] = []
    gateway.on_start = lambda exchange: sinks.append(kind(exchange))
    await gateway.start(**options)
    return sinks


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_comes_while_its_exchange_runs(
    gateway: Any, until: Until, read_answer: Read, framing: str
) -> None:
    sinks = await serving(gateway)
    head = (
        form(6)
        if framing == "length"
        else form(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    )
    first, second = (b"abc", b"def") if framing == "length" else (b"3\r\nabc\r\n", b"3\r\ndef\r\n0\r\n\r\n")
    reader, writer = await gateway.connect(head)
    await until(lambda: len(sinks) == 1)
    writer.write(first)
    await until(lambda: sinks[0].body == b"abc")
    writer.write(second + b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    answer, body = await read_answer(reader)
    assert (sinks[0].body, body) == (b"abcdef", b"6")
    assert b"connection: close" not in answer
    assert (await read_answer(reader))[1] == b'{"from":"app"}', "the next request on this connection"
    assert gateway.held.count == 0


async def test_requests_behind_an_upload_wait_for_their_turn(gateway: Any, read_answer: Read) -> None:
    sinks = await serving(gateway)
    reader, _ = await gateway.connect(form(3) + b"abc" + form(2) + b"de" + form(0))
    assert [(await read_answer(reader))[1] for _ in range(3)] == [b"3", b"2", b"0"]
    assert [sink.body for sink in sinks] == [b"abc", b"de", b""]


async def test_an_answer_that_comes_early_ends_the_connection(gateway: Any, read_answer: Read) -> None:
    """The rest of the body is discarded for a while, so that the answer arrives."""
    gateway.on_start = lambda exchange: exchange.answer(b"no", status=400)
    await gateway.start()
    reader, writer = await gateway.connect(form(10_000_000) + b"x" * 1000)
    head, body = await read_answer(reader)
    assert (head[:12], body) == (b"http/1.1 400", b"no")
    assert b"connection: close" in head
    writer.write(b"x" * 1000 + b"\r\n\r\nGET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await reader.read() == b""


async def test_a_body_beyond_the_limit_fails_where_the_limit_is(
    gateway: Any, read_answer: Read, until: Until
) -> None:
    sinks = await serving(gateway, limits=ClientLimits(body_bytes_max=2000))
    head = form(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    reader, writer = await gateway.connect(head)
    await until(lambda: sinks)
    for _ in range(3):
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await writer.drain()
    answer, _ = await read_answer(reader)
    assert answer.startswith(b"http/1.1 413")
    assert isinstance(sinks[0].error, ClientError)
    assert not sinks[0].ended
    assert gateway.held.count == 0


async def test_a_body_that_does_not_come_fails_in_time(gateway: Any, read_answer: Read) -> None:
    sinks = await serving(gateway, limits=ClientLimits(read_timeout_s=0.2))
    reader, _ = await gateway.connect(form(10) + b"x")
    answer, _ = await read_answer(reader)
    assert answer.startswith(b"http/1.1 408")
    assert sinks[0].error is not None


async def test_a_body_whose_framing_breaks_fails(gateway: Any, until: Until, read_answer: Read) -> None:
    sinks = await serving(gateway)
    head = form(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    reader, writer = await gateway.connect(head + b"1\r\na\r\n")
    await until(lambda: sinks and sinks[0].body == b"a")
    writer.write(b"nonsense\r\n")
    assert (await read_answer(reader))[0].startswith(b"http/1.1 400")
    assert not sinks[0].ended


async def test_a_client_that_leaves_is_told_once(gateway: Any, until: Until) -> None:
    sinks = await serving(gateway)
    _, writer = await gateway.connect(form(10) + b"x")
    await until(lambda: sinks and sinks[0].body)
    writer.close()
    await until(lambda: "client_left" in gateway.exchanges[0].calls)
    assert gateway.exchanges[0].calls.count("client_left") == 1
    assert not sinks[0].ended
    await until(lambda: gateway.held.count == 0)


async def test_a_client_is_held_back_while_nobody_takes_its_body(gateway: Any, until: Until) -> None:
    sinks = await serving(gateway)
    size = 64 << 20
    _, writer = await gateway.connect(form(size))
    await until(lambda: len(sinks) == 1)
    sinks[0].client.pause_body()
    writer.write(b"x" * size)
    await until(lambda: gateway.connections[0].flow.held)
    assert len(sinks[0].body) < size // 2
    sinks[0].client.resume_body()
    await until(lambda: len(sinks[0].body) == size)


class Pausing(Sink):
    """Takes one piece, and never asks for more."""

    def body_data(self, data: bytes) -> None:
        super().body_data(data)
        self.client.pause_body()


async def test_a_connection_goes_on_after_a_body_that_nobody_asked_to_resume(
    gateway: Any, read_answer: Read
) -> None:
    """The body came in one read, which is parsed in pieces: only the first is held back in time."""
    sinks = await serving(gateway, Pausing)
    reader, writer = await gateway.connect(form(9000) + b"x" * 9000)
    assert (await read_answer(reader))[1] == b"9000"
    assert sinks[0].pieces > 0
    writer.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await read_answer(reader))[1] == b'{"from":"app"}'


async def test_a_body_that_nobody_read_is_not_kept_with_the_connection(
    gateway: Any, read_answer: Read
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(b"no")
    await gateway.start()
    reader, _ = await gateway.connect(b"POST /up/x HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhello")
    await read_answer(reader)
    (connection,) = gateway.connections
    assert connection.cycle._pieces is None


async def test_room_for_a_streamed_body_is_counted(gateway: Any, read_answer: Read) -> None:
    await serving(gateway, held=HeldBytes(100_000))
    reader, _ = await gateway.connect(form(10))
    assert (await read_answer(reader))[0].startswith(b"http/1.1 429")


async def test_a_tunnel_passes_bytes_both_ways(gateway: Any, until: Until) -> None:
    sinks = await serving(gateway, Echo)
    reader, writer = await gateway.connect(OFFER + b"early\x00")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nx-a: b\r\n\r\n"
    )
    assert await reader.readexactly(6) == b"early\x00"
    sent = b"POST / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 4000
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    assert sinks[0].body == b"early\x00" + sent
    sinks[0].client.finish()
    assert await reader.read() == b""
    writer.close()
    await until(lambda: not gateway.connections)
    assert gateway.held.count == 0


async def test_a_tunnel_is_only_where_the_route_says_so(gateway: Any, read_answer: Read) -> None:
    """Other routes ignore the offer, as well as one with a body, or of another protocol."""
    gateway.on_start = lambda exchange: exchange.answer(b"%d" % exchange.connection.tunnels)
    await gateway.start()
    for offer, answered in (
        (OFFER.replace(b"/tunnel", b"/hello"), b'{"from":"app"}'),
        (OFFER.replace(b"WebSocket", b"h2c"), b"0"),
        (OFFER.replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\nab"), b"0"),
        (OFFER.replace(b"keep-alive, Upgrade", b"keep-alive"), b"0"),
    ):
        reader, writer = await gateway.connect(offer)
        assert (await read_answer(reader))[1] == answered, offer
        writer.close()


async def test_a_refused_offer_ends_the_connection(gateway: Any, read_answer: Read) -> None:
    """The next bytes were meant for a tunnel: they are no request."""
    gateway.on_start = lambda exchange: exchange.answer(b"no", status=404)
    await gateway.start()
    reader, _ = await gateway.connect(OFFER + b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await read_answer(reader))[1] == b"no"
    assert await reader.read() == b""


async def test_tunnels_end_with_the_process(gateway: Any, until: Until) -> None:
    sinks = await serving(gateway, Echo)
    reader, _ = await gateway.connect(OFFER)
    await reader.readuntil(b"\r\n\r\n")
    gateway.exchanges[0].on_interrupt = sinks[0].client.finish
    gateway.end(0.05)
    assert await reader.read() == b""
    await until(lambda: not gateway.connections)


async def test_two_loops_of_garbage_in_a_tunnel_are_only_bytes(gateway: Any, until: Until) -> None:
    sinks = await serving(gateway, Echo)
    reader, writer = await gateway.connect(OFFER)
    await reader.readuntil(b"\r\n\r\n")
    for piece in (b"\r\n\r\n", b"\x00" * 5000, b"CONNECT x HTTP/1.1\r\n\r\n", b"a"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    await until(lambda: len(sinks[0].body) == 4 + 5000 + 22 + 1)
