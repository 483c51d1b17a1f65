"""A load detects faults of an answer; the right answers come from `loadtest.bench.mock_engine` itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from loadtest.bench.http_load import Load, LoadPlan, LoadReport, prompt
from loadtest.bench.mock_engine import EngineConnection, Streams

Change = Callable[[bytes], bytes]


@contextlib.asynccontextmanager
async def engine(change: Change = bytes, gap_s: float = 0.001) -> AsyncIterator[int]:
    """The port of an engine whose writes are changed on their way."""
    loop = asyncio.get_running_loop()
    streams = Streams(gap_s)

    class Changed(EngineConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, asyncio.WriteTransport)
            write = transport.write
            transport.write = lambda data: write(change(bytes(data)))  # type: ignore[method-assign]

    server = await loop.create_server(lambda: Changed(streams), "127.0.0.1", 0)
    ticking = asyncio.create_task(streams.run())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        ticking.cancel()
        server.close()


async def outcome(plan: LoadPlan) -> LoadReport:
    load = Load(plan)
    async with asyncio.timeout(60):
        await load.run()
    return load.report()


@pytest.mark.parametrize("chunks", [0, 1, 7])
@pytest.mark.parametrize("rate_per_s", [0.0, 500.0])
async def test_right_answers_are_counted(chunks: int, rate_per_s: float) -> None:
    async with engine() as port:
        report = await outcome(LoadPlan(port, 4, requests=20, rate_per_s=rate_per_s, chunks=chunks))
    assert (report.completed, report.broken, report.answering) == (20, 0, 0)
    assert report.problems == {}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data.replace(b'"content":"00000002 "', b'"content":"00000003 "'), "other bytes"),
        (lambda data: data.replace(b'"id":"00000001"', b'"id":"00000000"'), "other bytes"),
        (lambda data: b"" if b'"content":"00000002 "' in data else data, "bytes instead of"),
        (lambda data: data + data if b'"content":"00000002 "' in data else data, "bytes instead of"),
        (lambda data: data.replace(b"200 OK", b"503 OK"), "status 503"),
        (lambda data: data.replace(b"HTTP/1.1 200", b"HTTP?"), "malformed"),
    ],
    ids=["order", "another's", "lost", "repeated", "status", "no HTTP"],
)
async def test_a_wrong_answer_is_broken_and_said(change: Change, problem: str) -> None:
    async with engine(change) as port:
        report = await outcome(LoadPlan(port, 1, requests=2, rate_per_s=100, chunks=4))
    assert report.broken >= 1
    assert any(problem in told for told in report.problems)


async def test_a_connection_that_ends_early_breaks_its_request() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        report = await outcome(LoadPlan(port, 1, requests=1, rate_per_s=100))
    assert (report.completed, report.broken) == (0, 1)
    assert report.problems == {"connection lost: closed": 1}


def test_prompts_have_their_length_and_as_many_kinds_as_asked() -> None:
    plan = LoadPlan(1, 1, prompt_bytes=1001, distinct=120)
    prompts = [prompt(number, plan) for number in range(240)]
    assert {len(text) for text in prompts} == {1001}
    assert len(set(prompts)) == 120
    assert len({text[:500] for text in prompts}) == 50
