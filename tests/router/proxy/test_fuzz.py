"""The glue around the parsers, under random input.

Both protocols stand on fake transports, so that thousands of conversations take seconds and each can be cut
into any pieces. Two independent readers judge them: `read_answers` reads the client's answers, and h11 reads
the same requests and answers: if it sees other requests than the gateway served, a request could be smuggled
past one of them.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import h11
import pytest
import uvicorn
from fakes.answers import ReadAnswer, read_answers
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from router.proxy import (
    ClientConnection,
    ClientLimits,
    ClientRequest,
    GatewayProtocol,
    UpstreamRules,
    WorkerPool,
    make_protocol,
)
from router.proxy.connection import PooledRequest, WorkerConnection
from router.proxy.headers import ANSWER_HEADERS
from router.proxy.known_answers import KnownAnswers

Served = tuple[bytes, bytes, bytes]
"""Method, path and body of a request that was served."""


class Wire:
    """The end of a connection, as a protocol sees its transport."""

    def __init__(self) -> None:
        self.protocol: asyncio.Protocol
        self.written = b""
        self.closed = self.ended = self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.ended
        if not self.closed:
            self.written += data

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return _NoSocket() if name == "socket" else default

    def set_write_buffer_limits(self, **_: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    async def receive(self, pieces: Sequence[bytes]) -> None:
        """Let bytes arrive, as long as the protocol reads them."""
        for piece in pieces:
            await settle(lambda: self.closed or not self.paused)
            if self.closed or self.paused:
                break
            self.protocol.data_received(piece)
        await settle()


class _NoSocket:
    """The part of a socket that is needed here."""

    family = -1

    def setsockopt(self, *_: int) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname


async def settle(enough: Callable[[], bool] = lambda: False) -> None:
    """Run all due callbacks; nothing here takes more turns of the loop than this."""
    for _ in range(25):
        if enough():
            break
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run a function in an event loop; nothing may go wrong in its callbacks either."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, problem: problems.append(problem))

        def run(main: Coroutine[Any, Any, Any]) -> Any:
            result = runner.run(main)
            assert problems == []
            return result

        yield run


# A gateway on a wire: proxied routes are POST under /v1/, the rest is the application's.


@dataclass
class Talk:
    """The result of a conversation with the gateway."""

    served: list[Served] = field(default_factory=list)
    answers: list[ReadAnswer] = field(default_factory=list)
    closed: bool = False

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def refused(self) -> bool:
        return bool(self.answers) and b'"malformed_http"' in self.answers[-1].body


class Echo:
    """An exchange that answers at once."""

    def __init__(self, request: ClientRequest, connection: ClientConnection) -> None:
        connection.send_head(200, b"x-from: exchange\r\n", length=len(request.body))
        connection.send_body(request.body)
        connection.finish()

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def client_left(self) -> None: ...
    def interrupt(self) -> None: ...


async def application(scope: Any, receive: Any, send: Any) -> None:
    """An application that also echoes, after it has read the body."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    scope["state"]["served"].append((scope["method"].encode(), scope["raw_path"], body))
    head = [(b"x-from", b"application"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@functools.cache
def config() -> uvicorn.Config:
    config = uvicorn.Config(application, http=GatewayProtocol, loop="none", lifespan="off", log_config=None)
    config.load()
    return config


async def talk(pieces: Sequence[bytes]) -> Talk:
    """Send these bytes on a new connection."""
    talk = Talk()

    def start(request: ClientRequest, connection: ClientConnection) -> Echo:
        talk.served.append((request.head.method, request.head.path, request.body))
        return Echo(request, connection)

    protocol = make_protocol(
        start,
        lambda method, path: method == b"POST" and path.startswith(b"/v1/"),
        ClientLimits(header_bytes_max=4096, body_bytes_max=4096),
    )(config(), ServerState(), {"served": talk.served})
    wire = Wire()
    wire.protocol = protocol
    protocol.connection_made(cast("asyncio.Transport", wire))
    await wire.receive(pieces)
    talk.answers = read_answers(wire.written)
    talk.closed = wire.closed or wire.ended
    wire.close()
    await settle()
    return talk


async def second_opinion(data: bytes) -> tuple[list[Served], bool]:
    """Return the requests that h11 reads, and if it read to the end without an error."""
    served: list[Served] = []
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return served, False
        if isinstance(event, h11.Request):
            request, body = event, b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            served.append((request.method, request.target.partition(b"?")[0], body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return served, True
            connection.start_next_cycle()
        else:
            return served, True


# Requests.


def chunks(body: bytes, sizes: Sequence[int], extension: bytes, trailer: bytes) -> bytes:
    framed = b""
    for size in sizes:
        piece, body = body[:size], body[size:]
        if piece:
            framed += b"%x%b\r\n%b\r\n" % (len(piece), extension, piece)
    if body:
        framed += b"%X\r\n%b\r\n" % (len(body), body)
    return framed + b"0\r\n" + trailer + b"\r\n"


@st.composite
def legal(draw: st.DrawFn) -> bytes:
    """A request that any server would serve."""
    target = draw(st.sampled_from([b"/v1/x", b"/v1/y?a=b", b"/app", b"/app?c"]))
    lines = draw(
        st.lists(
            st.sampled_from(
                [
                    b"Connection: keep-alive",
                    b"Connection: Upgrade\r\nUpgrade: h2c",
                    b"Expect: 100-continue",
                    b"X-Request-Id: r1",
                    b"X:",
                    b"Content_Length: 5",
                ]
            ),
            max_size=3,
            unique=True,
        )
    )
    body = draw(st.binary(max_size=40) | st.just(b"POST /v1/smuggled HTTP/1.1\r\nHost: g\r\n\r\n"))
    framing = draw(st.sampled_from(["length", "chunked", "none"]))
    method = b"POST"
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        sizes = draw(st.lists(st.integers(1, 9), max_size=6))
        extension = draw(st.sampled_from([b"", b";a", b';a="b"']))
        body = chunks(body, sizes, extension, draw(st.sampled_from([b"", b"X: y\r\n", b"X: y\r\nZ:\r\n"])))
    else:
        method, body = b"GET", b""
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), b"Host: g", *lines, b"", body))


pipelines = st.lists(legal(), min_size=1, max_size=5).map(b"".join)
cuts = st.lists(st.integers(0, 2**16), max_size=12)

FRAGMENTS = [
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"\x7f",
        b"\xff",
        b"\x0b",
        b"0",
        b"-",
    ),
    *(
        b"+",
        b"_",
        b"1",
        b"a",
        b"F",
        b"0x",
        b'"',
        b"#",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"\r\nX: y",
        b"\r\n X: y",
    ),
    *(b"\r\nContent-Length: 5", b"\r\nContent-Length: 0", b"\r\nTransfer-Encoding: chunked", b"\r\nHost: h"),
    *(b"\r\nTransfer-Encoding: identity", b"\r\nTransfer-Encoding:\x0bchunked", b"\r\nConnection: close"),
    *(
        b"GET /v1/smuggled HTTP/1.1\r\nHost: g\r\n\r\n",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"HTTP/2.0",
        b"http://g",
    ),
]


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Legal bytes with a few of them changed, lost, doubled or inserted."""
    data = draw(originals)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        what = draw(st.sampled_from(["insert", "replace", "lose", "double"]))
        fragment = draw(st.sampled_from(FRAGMENTS) | st.binary(min_size=1, max_size=3))
        if what == "double":
            fragment = data[at : at + length] * 2
        keep = at if what == "insert" else at + (length if what != "replace" else len(fragment))
        data = data[:at] + (b"" if what == "lose" else fragment) + data[keep:]
    return data


garbage = st.lists(st.binary(max_size=60) | st.sampled_from(FRAGMENTS), max_size=8).map(b"".join)


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    places = sorted({place % (len(data) + 1) for place in at} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


# The client's side.


@given(data=pipelines, at=cuts)
def test_legal_requests_are_served_however_they_are_cut(run: Any, data: bytes, at: list[int]) -> None:
    whole = run(talk([data]))
    pieces = run(talk(cut(data, at)))

    assert whole.served == run(second_opinion(data))[0]
    assert len(whole.served) == whole.statuses.count(200) >= 1
    assert not whole.closed
    assert pieces.served == whole.served
    assert [a for a in pieces.answers if a.status != 100] == [a for a in whole.answers if a.status != 100]
    assert not pieces.closed


@given(data=mutated(pipelines) | garbage, at=cuts)
@example(
    data=b"POST /v1/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nConnection: close\r\n\r\n"
    * 2,
    at=[],
)
def test_no_request_is_read_otherwise_than_another_reader_would(run: Any, data: bytes, at: list[int]) -> None:
    """Nothing crashes or hangs, and each answer is well-formed, which `talk` asserts.

    h11 reads each served request the same way, unless it refuses it; those that it reads further, the gateway
    refused.
    """
    whole = run(talk([data]))
    pieces = run(talk(cut(data, at)))
    read, to_the_end = run(second_opinion(data))

    assert pieces.served == whole.served
    assert [s for s in pieces.statuses if s != 100] == [s for s in whole.statuses if s != 100]
    assert pieces.closed == whole.closed
    assert len(whole.served) == whole.statuses.count(200)
    for answer in whole.answers:
        assert (answer.status in (100, 200)) or answer is whole.answers[-1]
        assert (answer.headers.get(b"connection") == b"close") == (
            whole.closed and answer is whole.answers[-1]
        )
    common = min(len(read), len(whole.served))
    assert whole.served[:common] == read[:common]
    if len(whole.served) > common:
        assert not to_the_end
    if len(read) > common:
        assert whole.closed


FRAMING = [
    *(
        b"Content-Length: 0",
        b"Content-Length: 5",
        b"Content-Length: 60",
        b"content-length: 5",
        b"Content-Length: 05",
    ),
    *(b"Transfer-Encoding: chunked", b"transfer-encoding: CHUNKED", b"Transfer-Encoding: identity"),
    *(b"Transfer-Encoding: gzip", b"Transfer-Encoding:", b"Content-Length:", b"Content-Length: 5, 5"),
]


@given(
    before=st.lists(legal(), max_size=2),
    framing=st.lists(st.sampled_from(FRAMING), min_size=2, max_size=4),
    between=st.lists(
        st.sampled_from([b"X: y", b"Connection: Upgrade\r\nUpgrade: x", b"Accept: */*"]), max_size=2
    ),
    prefix=st.sampled_from([b"", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"hello"]),
    at=cuts,
    path=st.sampled_from([b"/v1/x", b"/app"]),
)
def test_a_request_with_two_lengths_is_never_served_nor_what_hides_behind_it(
    run: Any,
    before: list[bytes],
    framing: list[bytes],
    between: list[bytes],
    prefix: bytes,
    at: list[int],
    path: bytes,
) -> None:
    head = [b"POST %b HTTP/1.1" % path, b"Host: g", *framing[:1], *between, *framing[1:], b"", b""]
    hidden = b"POST /v1/hidden HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n"
    data = b"".join(before) + b"\r\n".join(head) + prefix + hidden
    result = run(talk(cut(data, at)))

    assert len(result.served) == len(before)
    assert result.refused
    assert result.answers[-1].status == 400
    assert result.closed


# The worker's side.


@dataclass
class Heard:
    """The parts of an answer that a request got, in legal order."""

    status: int = 0
    lines: bytes = b""
    length: int | None = None
    body: bytes = b""
    ended: bool = False
    error: Exception | None = None
    kept: bool = False

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        assert not self.status
        assert not self.ended
        assert self.error is None
        assert 200 <= status <= 999
        self.status, self.lines, self.length = status, lines, length

    def upstream_data(self, data: bytes) -> None:
        assert self.status
        assert data
        assert not self.ended
        assert self.error is None
        self.body += data
        assert self.length is None or len(self.body) <= self.length

    def upstream_end(self) -> None:
        assert self.status
        assert not self.ended
        assert self.error is None
        self.ended = True

    def upstream_failed(self, error: Exception) -> None:
        assert not self.ended
        assert self.error is None
        self.error = error


class OnePlace:
    """A pool with room for the one connection under test."""

    origin = "http://worker"
    rules = UpstreamRules()
    answer_headers = ANSWER_HEADERS

    def __init__(self) -> None:
        self.answers = KnownAnswers()
        self.free: list[WorkerConnection] = []

    def release(self, connection: WorkerConnection) -> None:
        self.free.append(connection)

    def lost(self, connection: WorkerConnection) -> None:
        if connection in self.free:
            self.free.remove(connection)

    def forget(self, request: PooledRequest) -> None:
        raise AssertionError("it has its connection")

    retry = forget

    def on_idle_closed(self) -> None: ...


async def hear(pieces: Sequence[bytes], *, closes: bool) -> Heard:
    """Ask a worker that gives this answer."""
    heard, place, wire = Heard(), OnePlace(), Wire()
    pool = cast("WorkerPool", place)
    connection = WorkerConnection(pool, asyncio.get_running_loop())
    wire.protocol = connection
    connection.connection_made(cast("asyncio.Transport", wire))
    connection.start(PooledRequest(pool, b"POST / HTTP/1.1\r\n\r\n{}", heard, is_head=False))
    await wire.receive(pieces)
    if closes and not wire.closed:
        connection.eof_received()
        wire.close()
        await settle()
        assert heard.ended or heard.error is not None
    heard.kept = bool(place.free)
    assert heard.kept <= heard.ended
    if not wire.closed:
        connection.drop()
        await settle()
    return heard


def h11_answer(data: bytes) -> tuple[int, bytes] | None:
    """Return h11's reading of an answer and the end of its connection; None if it is not complete."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "g"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, body = 0, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer that any client would understand."""
    interim = draw(
        st.sampled_from(
            [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nContent-Length: 9\r\n\r\n"]
        )
    )
    line = draw(
        st.sampled_from(
            [b"HTTP/1.1 200 OK", b"HTTP/1.1 500 Broken", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 None"]
        )
    )
    lines = [
        line,
        *draw(st.lists(st.sampled_from([b"Connection: close", b"X: y", b"Content-Type: a/b"]), unique=True)),
    ]
    body = draw(st.binary(max_size=40) | st.just(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    if b"204" in line:
        body = b""
    elif framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked" and b"1.0" not in line:
        lines.append(b"Transfer-Encoding: chunked")
        body = chunks(
            body,
            draw(st.lists(st.integers(1, 9), max_size=6)),
            b"",
            draw(st.sampled_from([b"", b"X: y\r\n"])),
        )
    return interim + b"\r\n".join((*lines, b"", body))


@given(data=answers(), at=cuts)
def test_a_legal_answer_is_heard_however_it_is_cut(run: Any, data: bytes, at: list[int]) -> None:
    whole = run(hear([data], closes=True))
    pieces = run(hear(cut(data, at), closes=True))

    assert whole.ended
    assert (whole.status, whole.body) == h11_answer(data)
    assert pieces == whole


@given(data=mutated(answers()) | garbage, at=cuts, closes=st.booleans())
def test_no_answer_is_complete_unless_another_reader_says_so(
    run: Any, data: bytes, at: list[int], closes: bool
) -> None:
    """Its order is legal, which `Heard` asserts, and the connection is kept only behind a complete answer."""
    whole = run(hear([data], closes=closes))
    pieces = run(hear(cut(data, at), closes=closes))

    assert (pieces.status, pieces.body, pieces.ended) == (whole.status, whole.body, whole.ended)
    assert type(pieces.error) is type(whole.error)
    theirs = h11_answer(data)
    if whole.ended and theirs is not None:
        assert (whole.status, whole.body) == theirs
    if whole.ended and not closes:
        assert whole.length in (None, len(whole.body)) or whole.status in (204, 304)
