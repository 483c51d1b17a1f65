"""The server side on real sockets: routing, order, and limits."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httptools
import pytest
import trustme
import uvicorn
from fakes.answers import read_answers

from router.proxy import ClientLimits, ClientQuota, Clients
from router.proxy.client_protocol import PIECE_BYTES, WAITING_MAX
from router.proxy.late_writes import late_writes

Until = Callable[..., Awaitable[None]]
ReadAnswer = Callable[..., Awaitable[tuple[bytes, bytes]]]
POST = b"POST /v1/x?a=1 HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\nContent-Length: 2\r\n\r\nhi"
HELLO = b"GET /hello HTTP/1.1\r\nHost: g\r\n\r\n"


def echo(exchange: Any) -> None:
    exchange.answer(exchange.request.body)


def error_code(body: bytes) -> str:
    return json.loads(body)["error"]["code"]


async def test_a_proxied_request_reaches_its_exchange_whole(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    request = gateway.exchanges[0].request
    gateway.exchanges[0].answer(b"done")
    head, body = await read_answer(reader)

    asked = request.head
    assert (asked.method, asked.path, asked.query, request.body) == (b"POST", b"/v1/x", b"a=1", b"hi")
    assert asked.headers == [(b"host", b"g"), (b"x-request-id", b"r1"), (b"content-length", b"2")]
    assert request.client == "127.0.0.1"
    assert asked.hop_names == frozenset()
    assert head == b"http/1.1 200 ok\r\nx-served-by: exchange\r\ncontent-length: 4\r\n\r\n"
    assert body == b"done"


async def test_headers_that_connection_names_are_named(gateway: Any, until: Until) -> None:
    """The number of lines does not matter."""
    await gateway.start()
    await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: Accept\r\nAccept: 1\r\n"
        b"Connection: keep-alive, X-A\r\nContent-Length: 0\r\n\r\n"
    )
    await until(lambda: gateway.exchanges)

    assert gateway.exchanges[0].request.head.hop_names >= {b"accept", b"x-a"}


async def test_a_request_may_arrive_byte_by_byte(gateway: Any, read_answer: ReadAnswer) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect()
    for byte in POST:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)

    assert (await read_answer(reader))[1] == b"hi"


async def test_exchanges_and_the_application_share_a_connection_in_order(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    """Nine pipelined requests in one packet, answered in the order in which they came."""
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect((POST + HELLO + POST) * 3)

    bodies = [(await read_answer(reader))[1] for _ in range(9)]
    assert bodies == [b"hi", b'{"from":"app"}', b"hi"] * 3


async def test_a_pipelined_request_waits_for_the_answer_before_it(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST + POST)
    await until(lambda: gateway.exchanges)
    await asyncio.sleep(0)
    assert len(gateway.exchanges) == 1
    gateway.exchanges[0].answer(b"1")
    await until(lambda: len(gateway.exchanges) == 2)
    gateway.exchanges[1].answer(b"2")

    assert [(await read_answer(reader))[1] for _ in range(2)] == [b"1", b"2"]


async def test_thousands_of_pipelined_requests_do_not_exhaust_the_stack(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect(b"POST /v1/ HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n" * 3000)

    for _ in range(3000):
        assert (await read_answer(reader))[1] == b""


class _CountingParser(httptools.HttpRequestParser):
    """Counts its instances, and the bytes that all of them get."""

    made = 0
    fed_bytes = 0

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        type(self).made += 1

    def feed_data(self, data: Any) -> None:
        type(self).fed_bytes += len(data)
        super().feed_data(data)


@pytest.mark.parametrize(
    ("path", "upgrade", "body"),
    [
        (b"/v1/x", b"", b""),
        (b"/v1/x", b"Connection: upgrade\r\nUpgrade: a\r\n", b""),
        (b"/v1/x", b"Connection: upgrade\r\nUpgrade: a\r\n", b"Content-Length: 1\r\n\r\nx"),
        (b"/v1/x", b"", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (b"/hello", b"Connection: upgrade\r\nUpgrade: a\r\n", b""),
    ],
)
async def test_one_read_of_pipelined_requests_is_parsed_a_few_at_a_time_and_once(
    gateway: Any,
    until: Until,
    read_answer: ReadAnswer,
    monkeypatch: pytest.MonkeyPatch,
    path: bytes,
    upgrade: bytes,
    body: bytes,
) -> None:
    """A read of 64 KB once made thousands of requests in one turn, and copied the rest for each upgrade."""
    counting = type("Counting", (_CountingParser,), {})
    monkeypatch.setattr(httptools, "HttpRequestParser", counting)
    turns = [0]
    gateway.on_start = lambda exchange: (turns.__setitem__(-1, turns[-1] + 1), echo(exchange))
    await gateway.start()
    reader, _ = await gateway.connect()
    await until(lambda: gateway.connections)
    (connection,) = gateway.connections
    method = b"POST" if path == b"/v1/x" else b"GET"
    request = b"%b %b HTTP/1.1\r\nHost: g\r\n%b%b" % (method, path, upgrade, body or b"\r\n")
    data = request * (2**16 // len(request))
    connection.data_received(data)
    assert len(connection.pipeline) + len(gateway.exchanges) <= WAITING_MAX + PIECE_BYTES // 18

    def turn() -> None:
        turns.append(0)
        if connection.flow.unread:
            loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    loop.call_soon(turn)
    for _ in range(2**16 // len(request)):
        head, _ = await read_answer(reader)
        assert head.startswith(b"http/1.1 200 ")
    assert max(turns) <= WAITING_MAX + PIECE_BYTES // 18
    assert counting.made <= 1 + bool(upgrade) * 2**16 // len(request)
    assert counting.fed_bytes <= 2 * len(data) + counting.made * PIECE_BYTES
    assert (connection.flow.unread, gateway.all_unread.count) == (False, 0)


async def test_what_is_pipelined_is_served_however_requests_are_cut_and_mixed(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    """Bodies with blank lines, chunks and the application's requests between them, in reads of 256 KB."""
    gateway.on_start = lambda exchange: asyncio.get_running_loop().call_soon(echo, exchange)
    await gateway.start()
    blank = b"\r\n\r\n" * 3000
    sized = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(blank), blank)
    chunked = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    chunked %= (len(blank), blank)
    upload = b"POST /size HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(blank), blank)
    size = b'{"bytes":%d}' % len(blank)
    parts = [(sized, blank), (POST, b"hi"), (chunked, blank), (HELLO, b'{"from":"app"}'), (upload, size)]
    some = [*parts, *[(POST, b"hi")] * 100, *parts[::-1], *[(HELLO, b'{"from":"app"}')] * 100] * 3
    reader, _ = await gateway.connect(b"".join(data for data, _ in some))
    for _, body in some:
        assert (await read_answer(reader))[1] == body


async def test_behind_a_pipelined_request_that_is_refused_nothing_is_parsed(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect(POST * 200 + b"POST /v1/x HTTP/1.1\r\n\r\n" + POST * 2000)
    for _ in range(200):
        assert (await read_answer(reader))[1] == b"hi"
    assert error_code((await read_answer(reader))[1]) == "malformed_http"
    assert await reader.read() == b""
    assert len(gateway.exchanges) == 200


async def test_what_all_clients_have_pipelined_is_bounded(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """Their first requests are not answered yet, so nothing of it is parsed."""
    await gateway.start()
    gateway.all_unread.use(300_000)
    first, _ = await gateway.connect()
    await until(lambda: len(gateway.connections) == 1)
    (one,) = gateway.connections
    second, _ = await gateway.connect()
    await until(lambda: len(gateway.connections) == 2)
    (other,) = [connection for connection in gateway.connections if connection is not one]
    one.data_received(POST * 2500)
    other.data_received(POST * 2500)
    assert len(gateway.exchanges) == 2
    gateway.on_start = echo
    for exchange in gateway.exchanges[:2]:
        echo(exchange)
    assert len(read_answers(await second.read())) < 2500
    for _ in range(2500):
        assert (await read_answer(first))[1] == b"hi"


@pytest.mark.parametrize("request_bytes", [POST, HELLO])
async def test_a_client_that_pipelines_for_ever_is_not_read_ahead(
    gateway: Any, until: Until, read_answer: ReadAnswer, request_bytes: bytes
) -> None:
    """The waiting requests came with one read; without the limit each answer lets another one in."""
    gateway.on_start = lambda exchange: asyncio.get_running_loop().call_soon(echo, exchange)
    await gateway.start()
    reader, writer = await gateway.connect()

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(request_bytes * 1000)
                await writer.drain()

    sending = asyncio.create_task(send())
    waiting: list[int] = []
    for _ in range(1000):
        await read_answer(reader)
        waiting.append(len(gateway.connections[0].pipeline))
    sending.cancel()
    writer.transport.abort()

    assert 0 < max(waiting) <= WAITING_MAX + PIECE_BYTES / len(request_bytes)


async def test_the_last_pipelined_request_may_be_incomplete(gateway: Any, read_answer: ReadAnswer) -> None:
    """The request waits for its turn, and then for its body."""
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect(POST * 3 + POST[:-1])
    for _ in range(3):
        await read_answer(reader)
    writer.write(b"o")

    assert (await read_answer(reader))[1] == b"ho"


async def test_a_chunked_body_is_put_together(gateway: Any, until: Until) -> None:
    """Small and large chunks, an extension and a trailer, which is dropped."""
    await gateway.start()
    large = bytes(range(256)) * 64
    _, writer = await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;x=y\r\na\r\n" * 3
    )
    writer.write(b"%x\r\n%b\r\n2\r\nbc\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(large), large))
    await until(lambda: gateway.exchanges)

    request = gateway.exchanges[0].request
    assert request.body == b"aaa" + large + b"bc"
    assert type(request.body) is bytes
    assert b"x-trailer" not in dict(request.head.headers)


async def test_a_large_body_ends_where_its_length_says(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """The body looks like requests, and is cut anywhere; only the bytes behind it are one."""
    gateway.on_start = echo
    await gateway.start()
    large = (POST + HELLO) * 10_000
    request = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large)
    reader, writer = await gateway.connect()
    sent = (request + POST) * 2 + HELLO
    for size in (100, 70_000, 1, 300_000, len(sent)):
        writer.write(sent[:size])
        sent = sent[size:]
        await writer.drain()
        await asyncio.sleep(0)

    bodies = [(await read_answer(reader))[1] for _ in range(5)]
    assert bodies == [large, b"hi", large, b"hi", b'{"from":"app"}']
    assert type(gateway.exchanges[0].request.body) is bytes


async def test_the_parser_gets_a_body_of_known_length_only_with_its_head(
    gateway: Any, until: Until, read_answer: ReadAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser would copy it. Bytes behind it in the same read are the next request."""
    counting = type("Counting", (_CountingParser,), {})
    monkeypatch.setattr(httptools, "HttpRequestParser", counting)
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect()
    await until(lambda: gateway.connections)
    (connection,) = gateway.connections
    begin = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 200001\r\n\r\n1"
    for read in (begin, b"2" * 100_000, b"3" * 100_000 + HELLO, begin, b"4" * 200_000):
        connection.data_received(read)
    assert counting.fed_bytes == 2 * len(begin) + len(HELLO)
    assert (await read_answer(reader))[1] == b"1" + b"2" * 100_000 + b"3" * 100_000
    assert (await read_answer(reader))[1] == b'{"from":"app"}'
    assert (await read_answer(reader))[1] == b"1" + b"4" * 200_000


async def test_what_follows_the_last_body_of_a_connection_is_discarded(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """However it came: it neither counts as a request nor is found malformed."""
    await gateway.start()
    reader, _ = await gateway.connect()
    await until(lambda: gateway.connections)
    (connection,) = gateway.connections
    head = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: 3\r\n\r\n"
    for read in (head, b"12", b"3" + POST, POST):
        connection.data_received(read)
    assert not connection.pipeline
    gateway.exchanges[0].answer(b"done")
    assert (await read_answer(reader))[1] == b"done"
    assert await reader.read() == b""


async def test_a_large_body_that_stops_coming_is_refused_in_time(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    await gateway.start(ClientLimits(read_timeout_s=0.2))
    reader, _ = await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 400000\r\n\r\n" + bytes(200_000)
    )
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 408 ")
    assert error_code(body) == "request_timeout"
    assert await reader.read() == b""


async def test_the_application_reads_its_own_large_bodies(gateway: Any, read_answer: ReadAnswer) -> None:
    """The body is larger than any buffer on the way, so the application takes it piece by piece."""
    await gateway.start()
    reader, writer = await gateway.connect(
        b"POST /size HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\n"
    )
    writer.write(bytes(1_000_000))

    assert (await read_answer(reader))[1] == b'{"bytes":1000000}'


async def test_a_client_that_expects_continue_gets_it(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hi")

    assert (await read_answer(reader))[1] == b"hi"


async def test_an_offered_upgrade_is_ignored_and_the_body_is_not_lost(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start()
    upgrade = (
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n"
    )
    reader, writer = await gateway.connect(upgrade + b"h")
    await asyncio.sleep(0)
    writer.write(b"i" + POST)

    assert [(await read_answer(reader))[1] for _ in range(2)] == [b"hi", b"hi"]
    writer.write((upgrade + b"ho") * 2000)
    for _ in range(2000):
        assert (await read_answer(reader))[1] == b"ho"
    assert b"upgrade" not in dict(gateway.exchanges[0].request.head.headers)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nConnection: close\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nHost: g\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a/b\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: +2\r\n\r\nhi",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\nContent-Length: 0\n\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /size HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n",
        POST.replace(b"?", b"#"),
        POST.replace(b"/v1", b"ftp://g/v1"),
        POST.replace(b"/v1", b"http://user@g/v1"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_ambiguous_or_malformed_requests_are_refused_and_the_connection_ends(
    gateway: Any, read_answer: ReadAnswer, request_bytes: bytes
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(request_bytes + HELLO)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 400 ")
    assert b"connection: close\r\n" in head
    assert b"x-request-id: " in head
    assert error_code(body) == "malformed_http"
    assert await reader.read() == b"", "nothing after the refusal is served"
    assert gateway.exchanges == []


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
async def test_other_versions_of_http_are_not_served(
    gateway: Any, read_answer: ReadAnswer, version: bytes
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST.replace(b"1.1", version) + HELLO)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 505 ")
    assert error_code(body) == "http_version_not_supported"
    assert await reader.read() == b""
    assert gateway.exchanges == []


async def test_a_refusal_waits_for_the_answers_before_it(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(POST + b"nonsense\r\n\r\n")
    await until(lambda: gateway.exchanges)
    gateway.exchanges[0].answer(b"first")

    assert (await read_answer(reader))[1] == b"first"
    assert error_code((await read_answer(reader))[1]) == "malformed_http"
    assert await reader.read() == b""


@pytest.mark.parametrize("path", [b"/v1/x", b"/size"])
async def test_a_refusal_within_a_body_waits_for_the_answers_before_it(
    gateway: Any, until: Until, read_answer: ReadAnswer, path: bytes
) -> None:
    await gateway.start()
    broken = b"POST %b HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n" % path
    reader, _ = await gateway.connect(POST + broken)
    await until(lambda: gateway.exchanges)
    gateway.exchanges[0].answer(b"first")

    assert (await read_answer(reader))[1] == b"first"
    assert error_code((await read_answer(reader))[1]) == "malformed_http"
    assert await reader.read() == b""
    assert len(gateway.exchanges) == 1


async def test_a_request_that_is_answered_is_not_refused_as_well(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    """The application answers 404 without reading the body, whose framing breaks later."""
    await gateway.start()
    reader, writer = await gateway.connect(
        b"POST /nowhere HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    )
    assert (await read_answer(reader))[0].startswith(b"http/1.1 404 ")
    writer.write(b"zz\r\n" + HELLO)

    assert await reader.read() == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\nContent-Length: 101\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"32\r\n%b\r\n" % bytes(50) * 3,
        (
            b"POST /v1/x HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\n"
            b"Expect: 100-continue\r\nContent-Length: 101\r\n\r\n"
        ),
        b"POST /size HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\nContent-Length: 101\r\n\r\n",
        b"POST /size HTTP/1.1\r\nHost: g\r\nX-Request-Id: r1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"32\r\n%b\r\n" % bytes(50) * 3,
    ],
)
async def test_a_body_over_the_limit_is_refused_before_it_is_read(
    gateway: Any, read_answer: ReadAnswer, request_bytes: bytes
) -> None:
    await gateway.start(ClientLimits(body_bytes_max=100))
    reader, _ = await gateway.connect(request_bytes)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 413 ")
    assert b"x-request-id: r1\r\n" in head
    assert error_code(body) == "request_too_large"
    assert await reader.read() == b""


async def test_a_client_still_sending_hears_why_it_was_refused(gateway: Any, read_answer: ReadAnswer) -> None:
    """40 MB on their way when the refusal is sent: closing at once would reset the connection."""
    await gateway.start(ClientLimits(body_bytes_max=100))
    reader, writer = await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 40000000\r\n\r\n"
    )
    writer.write(bytes(40_000_000))
    await writer.drain()

    assert error_code((await read_answer(reader))[1]) == "request_too_large"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /hello HTTP/1.1\r\nHost: g\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(101)) + b"\r\n",
        b"GET /hello HTTP/1.1\r\nHost: g\r\nX: " + b"y" * 66_000 + b"\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nHost: g\r\nX: " + b"y" * 600_000,
    ],
)
async def test_a_head_over_the_limits_is_refused(
    gateway: Any, read_answer: ReadAnswer, request_bytes: bytes
) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(request_bytes)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 431 ")
    assert error_code(body) == "too_many_headers"


@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\nHost: g\r\n\r\n"])
async def test_a_target_over_the_limit_is_refused(gateway: Any, read_answer: ReadAnswer, end: bytes) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(b"GET /hello?" + b"y" * 600_000 + end)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 414 ")
    assert error_code(body) == "uri_too_long"


async def test_endless_framing_is_refused(gateway: Any, read_answer: ReadAnswer) -> None:
    await gateway.start()
    reader, writer = await gateway.connect(
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    )
    writer.write(b"y" * 600_000)

    assert error_code((await read_answer(reader))[1]) == "malformed_http"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/x HT",
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhe",
        b"POST /size HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhe",
    ],
)
async def test_a_request_that_does_not_come_in_time_is_refused(
    gateway: Any, read_answer: ReadAnswer, request_bytes: bytes
) -> None:
    await gateway.start(ClientLimits(read_timeout_s=0.05))
    reader, _ = await gateway.connect(request_bytes)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 408 ")
    assert error_code(body) == "request_timeout"
    assert await reader.read() == b""


@pytest.mark.parametrize("data", [b"", b"\r\n"])
async def test_a_connection_on_which_nothing_begins_is_closed(gateway: Any, data: bytes) -> None:
    await gateway.start(ClientLimits(read_timeout_s=0.05))
    reader, _ = await gateway.connect(data)

    async with asyncio.timeout(60):
        assert await reader.read() == b""


async def test_a_long_answer_is_not_a_late_request(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    """The next request has begun, but is not read on while this answer lasts two limits."""
    await gateway.start(ClientLimits(read_timeout_s=0.5))
    reader, writer = await gateway.connect(POST + POST[:20])
    await until(lambda: gateway.exchanges)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await until(lambda: loop.time() - started_s > 1.0)
    gateway.exchanges[0].answer(b"slow")
    assert (await read_answer(reader))[1] == b"slow"
    gateway.on_start = echo
    writer.write(POST[20:])

    assert (await read_answer(reader))[1] == b"hi"


async def test_an_idle_connection_is_closed_after_uvicorns_keep_alive_time(
    gateway: Any, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start(timeout_keep_alive=0)
    reader, _ = await gateway.connect(POST)
    await read_answer(reader)

    async with asyncio.timeout(60):
        assert await reader.read() == b""


async def test_a_client_that_leaves_is_reported_once(gateway: Any, until: Until) -> None:
    await gateway.start()
    _, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    exchange = gateway.exchanges[0]
    writer.transport.abort()
    await until(lambda: exchange.calls)
    await until(lambda: not gateway.state.connections)
    exchange.answer(b"too late")
    exchange.connection.abort()

    assert exchange.calls == ["client_left"]


async def test_a_client_that_resets_has_left(gateway: Any, until: Until) -> None:
    await gateway.start()
    _, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await until(lambda: not gateway.state.connections)

    assert gateway.exchanges[0].calls == ["client_left"]


async def test_a_client_that_closes_its_side_has_left(gateway: Any, until: Until) -> None:
    await gateway.start()
    _, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    writer.write_eof()
    await until(lambda: not gateway.state.connections)

    assert gateway.exchanges[0].calls == ["client_left"]


@pytest.mark.parametrize("end", ["eof_received", "vacate"])
async def test_an_answer_that_is_complete_arrives_though_its_connection_closes_in_the_same_turn(
    gateway: Any, read_answer: ReadAnswer, end: str
) -> None:
    gateway.on_start = echo
    gateway.clients = Clients(ClientQuota(), time.monotonic, lambda _: None)
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    await read_answer(reader)
    (connection,) = gateway.connections
    late_writes(asyncio.get_running_loop()).is_quiet = False
    connection.data_received(POST)
    getattr(connection, end)()
    connection.transport._transport.close()  # as the loop does after ``eof_received``
    async with asyncio.timeout(10):
        assert (await read_answer(reader))[1] == b"hi"


async def test_a_client_that_leaves_after_its_answer_is_not_reported(
    gateway: Any, until: Until, read_answer: ReadAnswer
) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, writer = await gateway.connect(POST)
    await read_answer(reader)
    writer.close()
    await until(lambda: not gateway.state.connections)

    assert gateway.exchanges[0].calls == []


async def test_a_slow_client_pauses_the_exchange_until_it_reads(gateway: Any, until: Until) -> None:
    await gateway.start()
    reader, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    exchange = gateway.exchanges[0]
    writer.transport.pause_reading()
    exchange.connection.send_head(200, b"", length=None)
    while "pause" not in exchange.calls:
        exchange.connection.send_body(bytes(65536))
        await asyncio.sleep(0)
    assert exchange.calls == ["pause"]
    writer.transport.resume_reading()
    reading = asyncio.create_task(reader.read())
    await until(lambda: "resume" in exchange.calls)
    exchange.connection.finish()
    writer.close()
    await reading

    assert exchange.calls[:2] == ["pause", "resume"]


async def test_a_client_that_takes_nothing_for_too_long_has_left(gateway: Any, until: Until) -> None:
    await gateway.start(ClientLimits(stall_s_max=0.05))
    _, writer = await gateway.connect(POST)
    await until(lambda: gateway.exchanges)
    exchange = gateway.exchanges[0]
    writer.transport.pause_reading()
    exchange.connection.send_head(200, b"", length=None)
    while not exchange.calls:
        exchange.connection.send_body(bytes(65536))
        await asyncio.sleep(0)
    await until(lambda: not gateway.state.connections)

    assert exchange.calls == ["pause", "client_left"]


async def test_a_failing_exchange_is_an_internal_error(gateway: Any, read_answer: ReadAnswer) -> None:
    def fail(exchange: Any) -> None:
        raise LookupError("our own mistake")

    gateway.on_start = fail
    await gateway.start()
    reader, _ = await gateway.connect(POST)
    head, body = await read_answer(reader)

    assert head.startswith(b"http/1.1 500 ")
    assert error_code(body) == "internal_error"
    assert b"mistake" not in body


async def test_connect_is_not_served(gateway: Any, read_answer: ReadAnswer) -> None:
    await gateway.start()
    reader, _ = await gateway.connect(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")

    assert (await read_answer(reader))[0].startswith(b"http/1.1 405 ")


async def test_an_absolute_target_is_understood(gateway: Any, read_answer: ReadAnswer) -> None:
    gateway.on_start = echo
    await gateway.start()
    reader, _ = await gateway.connect(POST.replace(b"/v1/x", b"http://gateway/v1/x"))

    assert (await read_answer(reader))[1] == b"hi"
    asked = gateway.exchanges[0].request.head
    assert (asked.path, asked.query) == (b"/v1/x", b"a=1")
    reader, _ = await gateway.connect(HELLO.replace(b"/hello", b"HTTP://gateway/hello?b=1"))
    assert (await read_answer(reader))[1] == b'{"from":"app"}'
    reader, _ = await gateway.connect(HELLO.replace(b"/hello", b"http://gateway"))
    assert (await read_answer(reader))[0].startswith(b"http/1.1 404 ")


async def test_everything_works_behind_tls(gateway: Any, read_answer: ReadAnswer) -> None:
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    gateway.on_start = echo
    await gateway.start(ssl=serving)
    reader, _ = await gateway.connect(POST + HELLO + b"nonsense\r\n\r\n", ssl=trusting)

    assert (await read_answer(reader))[1] == b"hi"
    assert (await read_answer(reader))[1] == b'{"from":"app"}'
    assert error_code((await read_answer(reader))[1]) == "malformed_http"
    assert await reader.read() == b""


@pytest.fixture
async def server(gateway: Any, until: Until) -> AsyncIterator[Any]:
    """A whole uvicorn server around the protocol; the test stops it, or the fixture does."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(**options: Any) -> tuple[uvicorn.Server, asyncio.Task[None]]:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        gateway.port = sock.getsockname()[1]
        server = uvicorn.Server(gateway.config(**options))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        tasks.append(task)
        await until(lambda: server.started)
        return server, task

    yield serve
    for task in tasks:
        await task


async def test_shutdown_lets_the_answer_in_flight_finish(
    gateway: Any, server: Any, until: Until, read_answer: ReadAnswer
) -> None:
    uvicorn_server, task = await server()
    reader, _ = await gateway.connect(POST)
    idle_reader, _ = await gateway.connect(HELLO)
    await read_answer(idle_reader)
    await until(lambda: gateway.exchanges)
    uvicorn_server.should_exit = True
    assert await idle_reader.read() == b"", "idle connections are closed"
    assert not task.done()
    gateway.exchanges[0].answer(b"last")
    head, body = await read_answer(reader)

    assert body == b"last"
    assert b"connection: close\r\n" in head
    assert await reader.read() == b""
    await task
    assert gateway.exchanges[0].calls == []
