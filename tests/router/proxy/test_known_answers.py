"""Repeated heads of answers: they are read as llhttp would read them, or by llhttp."""

import asyncio
from typing import Any, cast

import httptools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import StreamBroken
from router.proxy import PooledRequest, RequestHead, UpstreamSink, WholeSink, WorkerPool
from router.proxy.connection import Upload, WorkerConnection
from router.proxy.known_answers import LEARN_S, KnownAnswer, KnownAnswers
from router.proxy.repeated_head import halves_of

HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: Sat, 28 Nov 2026 03:22:12 GMT\r\nServer: engine\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json\r\n\r\n"
)


def answer(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


class Transport(asyncio.Transport):
    """Takes all, and sends nothing."""

    closed = False

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_: int) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class Line:
    """A connection to a worker without a socket, and the reads that its parser got."""

    def __init__(self, new_sink: Any) -> None:
        self.new_sink = new_sink
        self.pool = WorkerPool("http://127.0.0.1:1")
        self.connection = WorkerConnection(self.pool, asyncio.get_running_loop())
        self.connection.connection_made(Transport())
        self.pool._connections.add(self.connection)
        self.pool.release(self.connection)
        self.parsed: list[bytes] = []
        parser = self.connection._parser

        class Watched:
            def feed_data(_, data: bytes) -> None:  # noqa: N805
                self.parsed.append(data)
                parser.feed_data(data)

            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(parser, name)

        self.connection._parser = Watched()  # type: ignore[assignment]

    def ask(self, *reads: bytes, method: bytes = b"POST") -> Any:
        """Send a request, and let the worker answer with these reads."""
        sink = self.new_sink()
        sink.handle = self.pool.send(RequestHead(method, b"/v1/x"), b"", [b"{}"], sink)
        assert sink.handle.connection is self.connection
        for read in reads:
            if not self.connection.closed:
                self.connection.data_received(read)
        return sink


@pytest.fixture
async def line(new_sink: Any) -> Line:
    return Line(new_sink)


async def test_a_repeated_head_is_not_parsed_again(line: Line) -> None:
    first = line.ask(answer(b"hello"))
    line.parsed.clear()
    for body in (b"x", b"hello", b"x" * 123_456):
        sink = line.ask(answer(body))
        assert (sink.status, sink.lines, sink.body) == (200, first.lines, body)
        assert (sink.length, sink.ended, line.pool.idle) == (len(body), True, 1)
    assert line.parsed == []
    assert first.lines == b"date: Sat, 28 Nov 2026 03:22:12 GMT\r\ncontent-type: application/json\r\n"


async def test_answers_of_other_heads_and_reads_are_parsed_beside_it(line: Line) -> None:
    line.ask(answer(b"hello"))
    known = answer(b"hello")
    for reads in (
        [known[:20], known[20:]],
        [known[:-5], known[-5:]],
        [b"HTTP/1.1 100 Continue\r\n\r\n", known],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
        [known.replace(b"200 OK", b"201 Created")],
    ):
        line.parsed.clear()
        sink = line.ask(*reads)
        assert (sink.body, sink.ended, line.pool.idle) == (b"hello", True, 1)
        assert line.parsed == reads
        assert line.ask(known).body == b"hello"
        assert line.parsed == reads


async def test_more_bytes_than_announced_are_not_delivered_and_end_the_connection(line: Line) -> None:
    line.ask(answer(b"hello"))
    sink = line.ask(answer(b"hello") + b"more")
    assert (sink.body, sink.ended, line.pool.open) == (b"hello", True, 0)


async def test_an_answer_to_head_is_parsed(line: Line) -> None:
    line.ask(answer(b"hello"))
    line.parsed.clear()
    sink = line.ask(answer(b"hello"), method=b"HEAD")
    assert line.parsed == [answer(b"hello")]
    assert (sink.body, sink.ended, line.pool.open) == (b"", True, 0)


async def test_an_answer_before_the_end_of_its_request_ends_the_connection(line: Line) -> None:
    line.ask(answer(b"hello"))

    class Source:
        def worker_connected(self) -> None: ...
        def worker_slow(self) -> None: ...
        def worker_ready(self) -> None: ...

    sink = line.new_sink()
    line.pool._idle.clear()
    line.connection.start(PooledRequest(line.pool, b"POST", sink, is_head=False, upload=Upload(Source())))
    line.connection.data_received(answer(b"hello"))
    assert (sink.body, sink.ended, line.pool.open) == (b"hello", True, 0)


async def test_a_sink_that_takes_answers_whole_hears_one_call_when_the_connection_is_free(line: Line) -> None:
    line.ask(answer(b"hello"))

    class Whole(WholeSink):
        heard: tuple[Any, ...] = ()

        def upstream_whole(self, *told: Any) -> None:
            self.heard = (*told, line.pool.idle)

    sink = Whole()
    line.pool.send(RequestHead(b"POST", b"/v1/x"), b"", [b"{}"], cast("UpstreamSink", sink))
    line.connection.data_received(answer(b"x"))
    lines = b"date: Sat, 28 Nov 2026 03:22:12 GMT\r\ncontent-type: application/json\r\n"
    assert sink.heard == (200, lines, b"x", 1)


async def test_a_sink_may_abort_at_any_piece_of_a_known_answer(line: Line) -> None:
    line.ask(answer(b"hello"))
    sink = line.new_sink()
    sink.on_head = lambda: sink.handle.abort()
    sink.handle = line.pool.send(RequestHead(b"POST", b"/v1/x"), b"", [b"{}"], sink)
    line.connection.data_received(answer(b"hello"))
    assert (sink.status, sink.body, sink.ended, line.pool.open) == (200, b"", False, 0)


@pytest.mark.parametrize("when", ["on_head", "on_data"])
async def test_a_request_whose_known_answer_could_not_be_delivered_is_not_sent_again(
    line: Line, when: str
) -> None:
    """A mistake in a sink ends the connection at once, as if it were stale."""
    line.ask(answer(b"hello"))
    sink = line.new_sink()
    setattr(sink, when, lambda: 1 / 0)
    sink.handle = line.pool.send(RequestHead(b"POST", b"/v1/x"), b"", [b"{}"], sink)
    with pytest.raises(ZeroDivisionError):
        line.connection.data_received(answer(b"hello"))
    line.connection.connection_lost(ZeroDivisionError())
    assert (type(sink.error), line.pool.retried, sink.handle.data) == (StreamBroken, 0, b"")


@pytest.mark.parametrize(
    "read",
    [
        answer(b"hello", HEAD.replace(b"200 OK", b"503 Unavailable")),
        answer(b"hello", HEAD.replace(b"Server: engine", b"Connection: close")),
        answer(b"hello", HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")),
        answer(b"hello", HEAD.replace(b"engine", b"x" * 5000)),
        answer(b""),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"hello"),
        answer(b"hello") + b"more",
    ],
)
async def test_other_answers_are_not_remembered(line: Line, read: bytes) -> None:
    line.ask(read)
    assert line.pool.answers.known is None


async def test_the_second_read_of_an_answer_is_not_remembered_as_one(line: Line) -> None:
    line.ask(b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"hello"))
    assert line.pool.answers.known is None


def test_a_pool_learns_a_few_heads_a_second() -> None:
    answers = KnownAnswers()
    for number in range(10):
        head = HEAD.replace(b"engine", b"%d" % number)
        answers.learn(answer(b"hello", head), 200, [], 5, number * LEARN_S / 4)
    assert answers.known is not None
    assert b"Server: 8" in answers.known.before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
async def test_a_read_is_told_as_llhttp_reads_it(data: st.DataObject, new_sink: Any) -> None:
    """Also after a piece of it was cut out, doubled or replaced: known or not, the sink hears the same."""
    head = data.draw(st.sampled_from([HEAD, b"HTTP/1.1 200 OK\r\ncontent-length:%d\r\n\r\n"]))
    sent = answer(data.draw(st.binary(max_size=300)), head)
    start = data.draw(st.integers(0, len(sent)))
    end = data.draw(st.integers(start, min(len(sent), start + 8)))
    middle = data.draw(
        st.one_of(st.just(sent[start:end]), st.text("0123456789 \r\n:xt", max_size=8).map(str.encode))
    )
    sent = sent[:start] + middle + sent[end:]
    told = []
    for knows in (True, False):
        line = Line(new_sink)
        line.ask(answer(b"hello", head))
        assert isinstance(line.pool.answers.known, KnownAnswer)
        if not knows:
            line.pool.answers.known = None
        sink = line.ask(sent)
        told.append(
            (sink.status, sink.lines, sink.length, sink.body, sink.ended, repr(sink.error), line.pool.idle)
        )
        if line.pool.open:
            line.connection.drop()
    assert told[0] == told[1]


def test_llhttp_refuses_a_second_length() -> None:
    """A head with two of them has no halves either."""
    read = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello"
    with pytest.raises(httptools.HttpParserError):
        httptools.HttpResponseParser(object()).feed_data(read)
    assert halves_of(read, 5) is None
