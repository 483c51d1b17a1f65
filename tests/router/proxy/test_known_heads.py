"""Repeated heads: the reads that count as one, and requests that are served the same with and without."""

from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.proxy import ClientLimits, HeldBytes
from router.proxy.known_heads import KNOWN_MAX, LEARNED_MAX, KnownHead, KnownHeads
from router.proxy.ports import RequestHead
from router.proxy.repeated_head import HEAD_BYTES_MAX

Read = Callable[..., Awaitable[tuple[bytes, bytes]]]
Until = Callable[..., Awaitable[None]]

LIMITS = ClientLimits()
HEAD = b"POST /v1/x?a=1 HTTP/1.1\r\nHost: g\r\nContent-Length: %b\r\nX-Kind: one\r\n\r\n"


class Parsed:
    """A request as llhttp reads it."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body, self.url, self.complete = b"", b"", 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        path, _, query = self.url.partition(b"?")
        keep_alive = parser.should_keep_alive()
        self.head = RequestHead(parser.get_method(), path, query, self.headers, keep_alive=keep_alive)
        self.length = int(dict(self.headers).get(b"content-length", b"0"))

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def request(body: bytes, head: bytes = HEAD) -> bytes:
    return head % b"%d" % len(body) + body


def known(head: bytes = HEAD, body: bytes = b"hello", heads: KnownHeads | None = None) -> KnownHead | None:
    data = request(body, head)
    return learned(data, Parsed(data), heads or KnownHeads())


def learned(data: bytes, parsed: Parsed, heads: KnownHeads) -> KnownHead | None:
    return heads.learned(data, parsed.head, parsed.length, LIMITS)


def test_a_repeated_head_gives_the_headers_and_the_body_of_its_request() -> None:
    found = known()
    assert found is not None
    body = b"x" * 123_456
    assert found.body_in(request(body)) == body
    head = found.head
    assert head.headers == ((b"host", b"g"), (b"x-kind", b"one"))
    assert (head.method, head.path, head.query, head.keep_alive) == (b"POST", b"/v1/x", b"a=1", True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(b"hello")[:-1],
        request(b"hello") + b"x",
        request(b"hello") * 2,
        request(b"hello")[:-6],
        HEAD % b"+5" + b"hello",
        HEAD % b" 5" + b"hello",
        HEAD % b"5 " + b"hello",
        HEAD % b"" + b"",
        HEAD % b"5\r\ncontent-length: 5" + b"hello",
        HEAD % "٥".encode() + b"hello",
        HEAD % b"05" + b"hello",
        HEAD % b"0000000000005" + b"hello",
        request(b"hello", HEAD.replace(b"one", b"two")),
        request(b"hello", HEAD.replace(b"Host: g", b"host: g")),
        request(b"hello", HEAD.replace(b"X-Kind: one", b"Transfer-Encoding: chunked")),
    ],
)
def test_any_other_read_goes_to_the_parser(data: bytes) -> None:
    head = known()
    assert head is not None
    assert head.body_in(data) is None


@given(st.data())
def test_a_read_that_counts_as_known_is_what_the_parser_reads(data: st.DataObject) -> None:
    """Also after a piece of it was cut out, doubled or replaced."""
    head = known()
    assert head is not None
    sent = request(data.draw(st.binary(max_size=300)))
    start = data.draw(st.integers(0, len(sent)))
    end = data.draw(st.integers(start, min(len(sent), start + 8)))
    middle = data.draw(
        st.one_of(st.just(sent[start:end]), st.text("0123456789 \r\n:x", max_size=8).map(str.encode))
    )
    sent = sent[:start] + middle + sent[end:]
    body = head.body_in(sent)
    if body is not None:
        parsed = Parsed(sent)
        headers = list(head.head.headers)
        headers.insert(1, (b"content-length", b"%d" % len(body)))
        assert (parsed.headers, parsed.body, parsed.complete) == (headers, body, 1)
        theirs, ours = parsed.head, head.head
        assert (theirs.method, theirs.path, theirs.query) == (ours.method, ours.path, ours.query)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"X-Kind: one", b"Expect: 100-continue"),
        HEAD.replace(b"X-Kind: one", b"Content-Encoding: gzip"),
        HEAD.replace(b"one", b"x" * HEAD_BYTES_MAX),
    ],
)
def test_heads_of_other_ways_and_long_ones_are_not_remembered(head: bytes) -> None:
    assert known(head) is None


def test_a_read_that_is_not_one_whole_request_is_not_remembered() -> None:
    data = request(b"hello")
    parsed = Parsed(data)
    for read in (data[10:], data[:-1], data + b"x", data + data):
        head = learned(read, parsed, KnownHeads())
        assert head is None or not read.startswith(b"POST"), read
    chunked = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert learned(chunked, Parsed(chunked), KnownHeads()) is None


def test_connections_share_heads_and_their_number_is_bounded() -> None:
    heads = KnownHeads()
    assert known(heads=heads) is known(heads=heads, body=b"another")
    for number in range(2 * KNOWN_MAX):
        known(HEAD.replace(b"one", b"%d" % number), heads=heads)
    assert len(heads._shared) <= KNOWN_MAX


# On a connection.


async def test_a_repeated_head_is_served_without_the_parser(
    gateway: Any, read_answer: Read, until: Until
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    await gateway.start()
    reader, writer = await gateway.connect(request(b"first"))
    assert (await read_answer(reader))[1] == b"first"
    (connection,) = gateway.connections
    parser, connection.parser = connection.parser, None
    for body in (b"second", b"x" * 5_000):
        writer.write(request(body))
        assert (await read_answer(reader))[1] == body
    connection.parser = parser
    writer.write(request(b"other", HEAD.replace(b"one", b"two")))
    assert (await read_answer(reader))[1] == b"other"
    writer.write(b"GET /hello HTTP/1.1\r\nHost: g\r\n\r\n" + request(b"behind"))
    assert (await read_answer(reader))[1] == b'{"from":"app"}'
    assert (await read_answer(reader))[1] == b"behind"
    first, second, *_ = (exchange.request for exchange in gateway.exchanges)
    before, after = first.head, second.head
    assert after.headers == tuple(header for header in before.headers if header[0] != b"content-length")
    assert (after.method, after.path, after.query) == (before.method, before.path, before.query)
    assert (second.client, after.hop_names) == (first.client, before.hop_names)


async def test_a_known_request_waits_for_its_turn(gateway: Any, read_answer: Read, until: Until) -> None:
    await gateway.start()
    reader, writer = await gateway.connect(request(b"one"))
    await until(lambda: gateway.exchanges)
    gateway.exchanges[0].answer(b"1")
    assert (await read_answer(reader))[1] == b"1"
    writer.write(request(b"two"))
    await until(lambda: len(gateway.exchanges) == 2)
    writer.write(request(b"three"))
    await until(lambda: gateway.connections[0].pipeline)
    assert len(gateway.exchanges) == 2
    gateway.exchanges[1].answer(b"2")
    await until(lambda: len(gateway.exchanges) == 3)
    gateway.exchanges[2].answer(b"3")
    assert [(await read_answer(reader))[1] for _ in range(2)] == [b"2", b"3"]
    assert gateway.exchanges[2].request.body == b"three"


async def test_a_head_is_not_learned_as_that_of_an_earlier_request_which_waits(
    gateway: Any, read_answer: Read
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    await gateway.start()
    reader, writer = await gateway.connect(b"GET /hello HTTP/1.1\r\nHost: g\r\n\r\n")
    await read_answer(reader)
    (connection,) = gateway.connections
    connection.pause_writing()
    connection.data_received(request(b"first", HEAD.replace(b"/v1/x", b"/v1/other")))
    connection.data_received(request(b"later"))
    connection.resume_writing()
    for body in (b"first", b"later"):
        assert (await read_answer(reader))[1] == body
    reader, writer = await gateway.connect()
    for body in (b"third", b"fifth"):
        writer.write(request(body))
        assert (await read_answer(reader))[1] == body
    paths = [exchange.request.head.path for exchange in gateway.exchanges]
    assert paths == [b"/v1/other", b"/v1/x", b"/v1/x", b"/v1/x"]


async def test_limits_hold_for_known_heads(gateway: Any, read_answer: Read) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    await gateway.start(ClientLimits(body_bytes_max=2_000))
    reader, writer = await gateway.connect(request(b"first"))
    await read_answer(reader)
    writer.write(request(b"x" * 2_001))
    assert (await read_answer(reader))[0].startswith(b"http/1.1 413")


async def test_new_limits_of_heads_hold_for_known_ones(gateway: Any, read_answer: Read) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    await gateway.start()
    reader, writer = await gateway.connect(request(b"first"))
    await read_answer(reader)
    type(gateway.connections[0]).limits = ClientLimits(header_count_max=2)
    writer.write(request(b"second"))
    assert (await read_answer(reader))[0].startswith(b"http/1.1 431")


async def test_a_known_request_without_room_is_refused(gateway: Any, read_answer: Read) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    refused: list[None] = []
    await gateway.start(held=HeldBytes(1_000, lambda: refused.append(None)))
    reader, writer = await gateway.connect(request(b"first"))
    await read_answer(reader)
    writer.write(request(b"x" * 1_500))
    await read_answer(reader)
    refusal = gateway.exchanges[1].request.refusal
    assert refusal is not None
    assert refusal.code == "held_bytes_exceeded"
    assert gateway.held.count == 0
    assert len(refused) == 1


async def test_a_client_with_new_heads_each_time_costs_a_bounded_number_of_looks(
    gateway: Any, read_answer: Read
) -> None:
    gateway.on_start = lambda exchange: exchange.answer(exchange.request.body)
    await gateway.start()
    reader, writer = await gateway.connect()
    for number in range(2 * LEARNED_MAX):
        writer.write(request(b"x", HEAD.replace(b"one", b"%d" % number)))
        await read_answer(reader)
    assert gateway.connections[0]._heads_learned == LEARNED_MAX
    assert len(gateway.connections[0].heads._shared) == LEARNED_MAX
