"""Every way a visit can end has its name, and each ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from fakes.running import free_port

from loadtest.chaos import End, Visit, visit

HEAD = b"HTTP/1.1 %s\r\ncontent-length: %d\r\n%s\r\n%s"
STREAM = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def answer(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return HEAD % (status, len(body), more, body)


@contextlib.asynccontextmanager
async def saying(data: bytes, *, hang: bool = False) -> AsyncIterator[str]:
    """A server that says this to whoever asks, and then hangs or closes."""
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
