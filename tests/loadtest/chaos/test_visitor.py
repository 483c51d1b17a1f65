"""Every way a visit can end has its name, and each ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from loadtest.chaos import End, Visit, visit
from loadtest.processes import free_port

HEAD = b"HTTP/1.1 %s\r\ncontent-length: %d\r\n%s\r\n%s"
STREAM = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def answer(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return HEAD % (status, len(body), more, body)


@contextlib.asynccontextmanager
async def saying(data: bytes, *, hang: bool = False) -> AsyncIterator[str]:
    """A server that sends these bytes to every client, and then hangs or closes."""
    stay = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(data)
        if hang:
            await stay.wait()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        stay.set()
        server.close()


async def visited(
    data: bytes, *, hang: bool = False, streamed: bool = True, leaves: float | None = None
) -> Visit:
    async with saying(data, hang=hang) as url:
        return await visit(
            url,
            "/v1/chat/completions",
            b"{}",
            streamed=streamed,
            patience_s=0.2 if hang else 20.0,
            leaves_after_s=leaves,
        )


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (answer(STREAM), End.ANSWERED),
        (answer(b"", b"429 Too Many Requests"), End.REJECTED),
        (answer(b"", b"408 Request Timeout"), End.EXPIRED),
        (answer(b"", b"500 Oops"), End.FAILED),
        (answer(STREAM[:-9]), End.FAILED),
        (answer(STREAM[:-14] + b'data: {"error":{"code":"shutting_down"}}\n\n'), End.FAILED),
        (answer(STREAM[:-14] + b'data: {"error":{"code":"request_timeout"}}\n\n'), End.EXPIRED),
        (answer(STREAM)[:-1], End.CUT),
        (b"", End.CUT),
        (b"what?\r\n\r\n", End.CUT),
    ],
)
async def test_every_answer_has_an_end(data: bytes, end: End) -> None:
    seen = await visited(data)
    assert seen.end is end
    assert bool(seen.problem) == (end in (End.FAILED, End.CUT))


async def test_an_answer_that_is_no_stream_needs_no_done() -> None:
    assert (await visited(answer(b"{}"), streamed=False)).end is End.ANSWERED


async def test_a_visit_without_an_end_hangs_only_as_long_as_patience_lasts() -> None:
    assert (await visited(answer(STREAM)[:-1], hang=True)).end is End.HUNG


async def test_a_visitor_who_leaves_does_not_hang() -> None:
    seen = await visited(b"", hang=True, leaves=0.05)
    assert seen.end is End.LEFT
    assert seen.problem == ""


async def test_nobody_listening_is_an_end_too() -> None:
    seen = await visit(f"http://127.0.0.1:{free_port()}", "/", b"{}", streamed=True, patience_s=20)
    assert seen.end is End.REFUSED


async def test_a_rejection_says_why_and_when_to_come_back() -> None:
    body = b'{"error":{"message":"full","code":"queue_full"}}'
    seen = await visited(answer(body, b"429 Too Many Requests", b"Retry-After: 3\r\n"))
    assert (seen.code, seen.retry_after, seen.ttft_s) == ("queue_full", "3", None)


async def test_time_to_first_token_counts_from_when_the_request_was_due() -> None:
    async with saying(answer(STREAM)) as url:
        due_s = asyncio.get_running_loop().time() - 5
        seen = await visit(url, "/", b"{}", streamed=True, patience_s=60, due_s=due_s)
    assert seen.ttft_s is not None
    assert 5 <= seen.ttft_s <= seen.ended_s - due_s


async def whole(data: bytes, *, late: bytes = b"") -> Visit:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(data)
        await writer.drain()
        if late:
            await asyncio.sleep(0.05)
            writer.write(late)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return await visit(url, "/", b"{}", streamed=True, patience_s=20.0, whole=True)
    finally:
        server.close()


async def test_a_body_is_kept_where_it_is_asked_for_with_who_answered() -> None:
    seen = await whole(answer(STREAM, more=b"x-cacheway-worker: host:1\r\n"))
    assert (seen.end, seen.body, seen.worker, seen.surplus_bytes) == (End.ANSWERED, STREAM, "host:1", 0)
    assert (await visited(answer(STREAM))).body == b""


async def test_what_comes_behind_the_end_is_counted() -> None:
    assert (await whole(answer(STREAM), late=b"more")).surplus_bytes == 4


async def test_a_connection_that_stays_open_behind_the_answer_ends_the_visit_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadtest.chaos.visitor.CLOSE_S", 0.05)
    async with saying(answer(STREAM), hang=True) as url:
        seen = await visit(url, "/", b"{}", streamed=True, patience_s=20.0, whole=True)
    assert seen.end is End.ANSWERED
