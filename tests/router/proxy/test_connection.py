"""One connection: all framings of an answer, and its failures."""

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.chunks import CHUNK_BYTES_MAX, WAITING_MAX, PassedChunks
from router.errors import StreamBroken, WorkerSilent, WorkerUnreachable
from router.proxy import PooledRequest, RequestHead, UpstreamRules, WorkerPool
from router.proxy.connection import WorkerConnection

Until = Callable[..., Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.fixture
async def fetch(new_sink: Any, until: Until) -> AsyncIterator[Any]:
    """Send one request to a URL through a new pool; return pool and sink when it is over."""
    pools: list[WorkerPool] = []

    async def fetch(url: str, *, method: bytes = b"POST", body: bytes = b"{}", **options: Any) -> Any:
        pool = WorkerPool(url, **options)
        pools.append(pool)
        sink = new_sink()
        sink.handle = pool.send(RequestHead(method, b"/v1/x"), b"", [body], sink)
        await until(lambda: sink.done)
        return pool, sink

    yield fetch
    for pool in pools:
        pool.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an orderly end."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "body", "length", "kept"),
    [
        (HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello", 5, True),
        (HEAD + b"Content-Length: 0\r\n\r\n", b"", 0, True),
        (CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\n\r\n", b"hello", None, True),
        (CHUNKED + b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\n\r\n", b"hello", None, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", None, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b"", 7, True),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", 2, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", 2, False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", b"hi", 2, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nhi", b"hi", 2, True),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nhi",
            b"hi",
            2,
            True,
        ),
        (
            b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + CHUNKED + b"2\r\nhi\r\n0\r\n\r\n",
            b"hi",
            None,
            True,
        ),
        (HEAD + b"Content-Length: 2\r\n\r\nhi-and-more", b"hi", 2, False),
        (HEAD + b"Content-Length: 2\r\n\r\nhi" + HEAD + b"Content-Length: 2\r\n\r\nno", b"hi", 2, False),
    ],
)
async def test_an_answer_ends_where_its_framing_says_and_only_clean_connections_are_kept(
    worker: Any, fetch: Any, answer: bytes, body: bytes, length: int | None, kept: bool
) -> None:
    pool, sink = await fetch(await worker.answer_with(answer))

    assert (sink.ended, sink.body, sink.length) == (True, body, length)
    assert pool.idle == (1 if kept else 0)
    assert pool.in_use == 0
    for name in (b"content-length", b"transfer-encoding", b"connection", b"x-checksum", b"link"):
        assert name not in sink.lines


async def test_an_answer_may_arrive_byte_by_byte(worker: Any, fetch: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        for byte in CHUNKED + b"5\r\nhello\r\n0\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await reader.read()

    pool, sink = await fetch(await worker.start(script))

    assert (sink.status, sink.body, sink.ended, pool.idle) == (200, b"hello", True, 1)
    assert sink.lines == b"content-type: text/event-stream\r\n"


async def test_of_an_answers_headers_those_on_the_list_cross(worker: Any, fetch: Any) -> None:
    """Removed: the connection's headers, those that ``connection`` names, and those of the gateway itself."""
    url = await worker.answer_with(
        HEAD + b"Date: now\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Set-Cookie: a\r\nContent-Length: 2\r\nX-Request-Id: theirs\r\nX-Engine: 1\r\n"
        b"OPENAI-Processing-MS: 7\r\nX-Cacheway-Prefill-Worker: evil\r\n\r\nhi"
    )

    _, sink = await fetch(url)

    assert sink.lines == b"date: now\r\nopenai-processing-ms: 7\r\n"


async def test_an_answer_without_a_length_ends_with_the_connection(worker: Any, fetch: Any) -> None:
    pool, sink = await fetch(await worker.answer_once_with(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"))

    assert (sink.body, sink.length, sink.ended, pool.open) == (b"until the end", None, True, 0)


async def test_the_answer_to_head_has_a_length_and_no_body(worker: Any, fetch: Any) -> None:
    url = await worker.answer_with(HEAD + b"Content-Length: 5\r\n\r\n")

    _, sink = await fetch(url, method=b"HEAD", body=b"")

    assert (sink.length, sink.body, sink.ended) == (5, b"", True)
    assert b"content-length" not in worker.requests[0][0]


async def test_a_connection_is_not_kept_after_an_answer_to_head(
    worker: Any, new_sink: Any, until: Until
) -> None:
    pool = WorkerPool(await worker.answer_with(HEAD + b"Content-Length: 0\r\n\r\n"))
    for method, kept in ((b"POST", 1), (b"HEAD", 0)):
        sink = new_sink()
        pool.send(RequestHead(method, b"/v1/x"), b"", [], sink)
        await until(lambda sink=sink: sink.ended)
        assert (pool.idle, pool.opened) == (kept, 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", WorkerUnreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Le", WorkerUnreachable),
        (b"nonsense\r\n\r\n", WorkerUnreachable),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", WorkerUnreachable),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", WorkerUnreachable),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", WorkerUnreachable),
        (b"HTTP/1.1 099 What\r\nContent-Length: 2\r\n\r\nhi", WorkerUnreachable),
        (b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", WorkerUnreachable),
        (HEAD + b"X: " + b"y" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n", WorkerUnreachable),
        (HEAD + b"X: " + b"y" * 2_000_000, WorkerUnreachable),
        (HEAD + b"Content-Length: 5\r\n\r\nhel", StreamBroken),
        (CHUNKED + b"5\r\nhello\r\n", StreamBroken),
        (CHUNKED + b"5\r\nhello\r\n0\r\n", StreamBroken),
        (CHUNKED + b"5\r\nhello\r\nzz\r\n", StreamBroken),
    ],
)
async def test_a_truncated_or_malformed_answer_says_how_far_it_got(
    worker: Any, fetch: Any, answer: bytes, error: type[Exception]
) -> None:
    pool, sink = await fetch(await worker.answer_once_with(answer))

    assert type(sink.error) is error
    assert bool(sink.status) == (error is StreamBroken)
    assert pool.open == 0


async def test_what_came_before_the_malformed_part_is_delivered(worker: Any, fetch: Any) -> None:
    _, sink = await fetch(await worker.answer_once_with(CHUNKED + b"5\r\nhello\r\nzz\r\n"))

    assert sink.body == b"hello"


async def test_a_reset_breaks_an_answer_that_ends_with_the_connection(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """Such an answer is complete only if the connection ends properly."""
    resets = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\npart")
        await resets.wait()
        reset(writer)

    pool = WorkerPool(await worker.start(script))
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: sink.pieces)
    resets.set()
    await until(lambda: sink.done)

    assert (sink.body, type(sink.error)) == (b"part", StreamBroken)
    pool.close()


async def test_a_reset_before_the_answer_leaves_the_worker_unreachable(worker: Any, fetch: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        reset(writer)

    _, sink = await fetch(await worker.start(script))

    assert type(sink.error) is WorkerUnreachable
    assert worker.connections == 1, "a request on a fresh connection is never repeated here"


async def test_silence_before_the_answer_is_reported_as_such(worker: Any, fetch: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        await reader.read()

    url = await worker.start(script)
    pool, sink = await fetch(url, rules=UpstreamRules(5.0, 0.05, 5.0))

    assert type(sink.error) is WorkerSilent
    assert sink.error.code == "upstream_timeout"
    assert pool.open == 0


async def test_a_head_alone_does_not_end_the_wait_for_the_first_byte(worker: Any, fetch: Any) -> None:
    """An engine may send a stream's head before the prefill: the idle limit is for the bytes after it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(CHUNKED)
        await reader.read()

    url = await worker.start(script)
    _, sink = await fetch(url, rules=UpstreamRules(5.0, 0.1, 0.02))

    assert type(sink.error) is WorkerSilent
    assert "0.1 s" in sink.error.message


async def test_a_patient_request_waits_for_its_first_byte(worker: Any, new_sink: Any, until: Until) -> None:
    """Several first-byte limits pass; a patient request lives on."""
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        await more.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await reader.read()

    pool = WorkerPool(await worker.start(script), rules=UpstreamRules(5.0, 0.05, 5.0))
    sink, other = new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink, patient=True)
    pool.send(RequestHead(b"POST", b"/"), b"", [], other)
    await until(lambda: other.done)
    assert not sink.done
    more.set()
    await until(lambda: sink.done)

    assert (sink.body, sink.ended) == (b"hi", True)
    pool.close()


async def test_patience_begins_when_the_worker_has_taken_the_request(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """64 MB are more than sockets and the worker's reader hold; the worker reads the head only."""
    never = asyncio.Event()  # held here: the loop keeps no task that waits for garbage

    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await never.wait()

    pool = WorkerPool(await worker.start(script, limit=2**16), rules=UpstreamRules(5.0, 0.1, 5.0))
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [bytes(2**26)], sink, patient=True)
    await until(lambda: sink.done)
    assert type(sink.error) is WorkerSilent
    assert "took nothing" in sink.error.message
    pool.close()


async def test_a_machine_that_vanishes_is_probed_for(worker: Any, fetch: Any) -> None:
    """The kernel probes every 10 s after 30 s of silence, three times; only a real loss would show more."""
    pool, sink = await fetch(await worker.answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    assert sink.ended
    (connection,) = pool._connections
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle_s, interval_s, probes = (
        sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    )
    assert idle_s + interval_s * probes == 60


async def test_silence_within_the_answer_breaks_the_stream(worker: Any, fetch: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await reader.read()

    url = await worker.start(script)
    _, sink = await fetch(url, rules=UpstreamRules(5.0, 5.0, 0.05))

    assert type(sink.error) is StreamBroken
    assert sink.error.code == "upstream_idle_timeout"
    assert sink.body == b"a"


async def test_a_paused_answer_is_not_idle(worker: Any, new_sink: Any, until: Until) -> None:
    """Paused for several idle limits, then resumed: complete, since the client caused the wait."""
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await more.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await reader.read()

    pool = WorkerPool(await worker.start(script), rules=UpstreamRules(5.0, 5.0, 0.08))
    sink = new_sink()
    sink.on_data = lambda: handle.pause() if len(sink.pieces) == 1 else None
    handle = pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: sink.pieces)
    loop = asyncio.get_running_loop()
    paused_s = loop.time()
    await until(lambda: loop.time() - paused_s > 0.3)
    assert not sink.done
    more.set()
    handle.resume()
    await until(lambda: sink.done)

    assert (sink.body, sink.ended) == (b"ab", True)
    pool.close()


async def test_a_request_that_is_still_being_sent_is_not_silence(worker: Any, fetch: Any) -> None:
    """The worker takes 64 MB over two first-byte limits; the kernel holds at most a tenth of it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            await reader.readexactly(2**22)
            await asyncio.sleep(0.05)
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nhi")
        await reader.read()

    url = await worker.start(script, limit=2**16)
    _, sink = await fetch(url, body=bytes(2**26), rules=UpstreamRules(5.0, 0.4, 5.0))

    assert sink.body == b"hi"


async def test_an_early_answer_is_delivered_and_ends_the_connection(worker: Any, fetch: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await stop.wait()

    stop = asyncio.Event()
    url = await worker.start(script)
    pool, sink = await fetch(url, body=bytes(2**25))
    stop.set()

    assert (sink.status, sink.body, sink.ended) == (413, b"big", True)
    assert pool.open == 0


async def test_a_large_body_arrives_unchanged_from_memoryviews(
    worker: Any, new_sink: Any, until: Until
) -> None:
    body = bytes(range(256)) * 40_000
    view = memoryview(body)
    pool = WorkerPool(await worker.answer_with(HEAD + b"Content-Length: 0\r\n\r\n"))
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [view[:100], b"spliced", view[100:]], sink)
    await until(lambda: sink.done)

    assert worker.requests[0][1] == body[:100] + b"spliced" + body[100:]
    pool.close()


async def test_a_large_answer_arrives_whole(worker: Any, fetch: Any) -> None:
    body = bytes(range(256)) * 40_000
    answer = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body

    _, sink = await fetch(await worker.answer_with(answer))

    assert sink.body == body


async def test_chunks_that_came_together_are_delivered_together(worker: Any, fetch: Any) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b"abcdef")

    _, sink = await fetch(await worker.answer_with(CHUNKED + chunks + b"0\r\n\r\n"))

    assert sink.body == b"abcdef"
    assert len(sink.pieces) < 6


@pytest.mark.parametrize("when", ["on_head", "on_data"])
async def test_abort_inside_a_callback_closes_the_connection_and_ends_the_story(
    worker: Any, new_sink: Any, until: Until, when: str
) -> None:
    pool = WorkerPool(await worker.answer_with(HEAD + b"Content-Length: 5\r\n\r\nhello"))
    sink = new_sink()
    setattr(sink, when, lambda: handle.abort())
    handle = pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: worker.closed_connections)

    assert not sink.done
    assert pool.open == 0
    handle.abort()
    pool.close()


async def test_a_worker_that_is_not_read_stops_writing(worker: Any, new_sink: Any, until: Until) -> None:
    """The worker sends only as much of an endless answer as buffers hold while the answer is paused."""
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await worker.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            written += 65536

    pool = WorkerPool(await worker.start(script))
    sink = new_sink()
    sink.on_data = lambda: handle.pause()
    handle = pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: sink.pieces)
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.05)

    assert len(sink.body) <= 2 * 256 * 1024
    handle.resume()
    sink.on_data = None
    await until(lambda: len(sink.body) > before)
    handle.abort()
    await until(lambda: worker.closed_connections)
    pool.close()


EVENT = b'data: {"token":"a"}\n\n'


def chunk_of(payload: bytes, size: str = "%x") -> bytes:
    return (size % len(payload)).encode() + b"\r\n" + payload + b"\r\n"


@pytest.fixture
async def stream(new_sink: Any) -> Any:
    """A connection whose sink takes whole chunks, without a socket: feed reads, see what came how."""
    pool = WorkerPool("http://127.0.0.1:1")
    connection = WorkerConnection(pool, asyncio.get_running_loop())
    connection.connection_made(FakeTransport())
    sink, taken = new_sink(), []
    request = PooledRequest(pool, b"POST", sink, is_head=False)
    request.passed = PassedChunks(taken.append, lambda _: None)
    connection.start(request)
    connection.data_received(CHUNKED)
    return connection, sink, taken


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.get_extra_info("socket").close()


@pytest.mark.parametrize("size", ["%x", "%X", "0%x"])
async def test_a_whole_chunk_of_events_passes_as_it_came(stream: Any, size: str) -> None:
    connection, sink, taken = stream
    first, second = chunk_of(EVENT), chunk_of(EVENT * 2, size)

    connection.data_received(first)
    assert (sink.body, taken) == (EVENT, [])  # the parser says where chunks begin
    connection.data_received(second)
    if size == "0%x":  # a size that a client may read differently is the parser's
        assert (sink.body, taken) == (EVENT * 3, [])
    else:
        assert (sink.body, taken) == (EVENT, [second])
    connection.data_received(b"0\r\n\r\n")

    assert sink.ended


async def test_passed_chunks_are_counted_in_groups(stream: Any) -> None:
    connection, _, taken = stream
    counted: list[list[bytes]] = []
    connection._request.passed = PassedChunks(taken.append, counted.append)
    for _ in range(WAITING_MAX + 3):
        connection.data_received(chunk_of(EVENT))
    assert len(taken) == WAITING_MAX + 2  # all but the first, which the parser sees
    assert counted == [[EVENT] * WAITING_MAX]


@pytest.mark.parametrize(
    "odd",
    [
        chunk_of(EVENT)[:-1],
        chunk_of(EVENT)[:-4],
        chunk_of(EVENT)[1:],
        chunk_of(EVENT[:-1]),
        chunk_of(b"\n"),
        chunk_of(EVENT) * 2,
        chunk_of(EVENT) + b"0\r\n\r\n",
        b"+" + chunk_of(EVENT),
        b"0x" + chunk_of(EVENT),
        b"1_5\r\n" + EVENT + b"\r\n",
        chunk_of(EVENT).replace(b"\r\n", b";a=b\r\n", 1),
        chunk_of(EVENT, "%x\n"),
        chunk_of(EVENT + b"\r\n"),
        chunk_of(b"d" * CHUNK_BYTES_MAX + EVENT),
        b"5\r\n" + EVENT + b"\r\n",
    ],
)
async def test_anything_but_a_whole_chunk_of_events_is_parsed(stream: Any, odd: bytes) -> None:
    connection, _, taken = stream
    connection.data_received(chunk_of(EVENT))
    connection.data_received(odd)

    assert taken == []


@pytest.mark.parametrize("before", [b"", EVENT, b"\n\n\r\n"])
async def test_within_a_chunk_a_read_that_looks_like_one_is_data(stream: Any, before: bytes) -> None:
    connection, sink, taken = stream
    inner = chunk_of(EVENT)
    outer = chunk_of(before + inner + inner)
    begin = outer.index(inner)
    connection.data_received(chunk_of(EVENT))
    connection.data_received(outer[:begin])
    connection.data_received(inner)
    connection.data_received(outer[begin + len(inner) :])

    assert taken == []
    assert sink.body == EVENT + before + inner + inner


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    payloads=st.lists(st.sampled_from([EVENT, EVENT * 2, EVENT[:-1], b"\n", chunk_of(EVENT)]), max_size=8),
    cuts=st.sets(st.integers(1, 200), max_size=8),
    whole=st.booleans(),
)
async def test_chunks_cut_anywhere_arrive_unchanged(
    payloads: list[bytes], cuts: set[int], whole: bool, new_sink: Any
) -> None:
    pool = WorkerPool("http://127.0.0.1:1")
    connection = WorkerConnection(pool, asyncio.get_running_loop())
    connection.connection_made(FakeTransport())
    sink = new_sink()
    request = PooledRequest(pool, b"POST", sink, is_head=False)
    request.passed = PassedChunks(
        lambda chunk: sink.upstream_data(chunk[chunk.index(b"\n") + 1 : -2]), lambda _: None
    )
    connection.start(request)
    wire = b"".join(map(chunk_of, payloads)) + b"0\r\n\r\n"
    ends = itertools.accumulate(len(chunk_of(payload)) for payload in payloads)
    bounds = sorted({*cuts, *(ends if whole else ())} & set(range(1, len(wire))))
    connection.data_received(CHUNKED)
    for start, end in itertools.pairwise([0, *bounds, len(wire)]):
        connection.data_received(wire[start:end])
    connection.drop()

    assert sink.ended
    assert sink.body == b"".join(payloads)
