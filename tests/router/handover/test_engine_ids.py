import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from fakes.legs import FakePool, worker

from router.errors import HandoverFailed, UpstreamError
from router.fleet import LocalWorker
from router.handover.engine_ids import EngineIds, Rank

Start = Callable[[bytes | None], Awaitable[Any]]


class Answers:
    """A bootstrap server that gives a fixed answer, or none."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.queries = 0
        self.pool = FakePool()
        self.counts: Counter[str] = Counter()
        self.ids = EngineIds(self.counts)
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.queries += 1
        if self.answer is None:
            await reader.read()
        else:
            writer.write(self.answer)
            await writer.drain()
        writer.close()

    @property
    def worker(self) -> LocalWorker:
        return worker("p", self.pool, bootstrap_host="127.0.0.1", bootstrap_port=str(self.port))

    def ask(self) -> "asyncio.Future[tuple[Sequence[Rank], UpstreamError | None]]":
        told = asyncio.get_running_loop().create_future()
        self.ids.ask(self.worker, lambda ranks, error: told.set_result((ranks, error)))
        return told


def answer(body: Any, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


KNOWN = answer({"0": {"engine_id": "a", "worker_addr": {}}})


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers = []

    async def start_one(answer: bytes | None) -> Answers:
        answers = Answers(answer)
        server = await asyncio.start_server(answers.serve, "127.0.0.1", 0)
        answers.port = server.sockets[0].getsockname()[1]
        servers.append(server)
        return answers

    yield start_one
    for server in servers:
        server.close()


async def test_all_who_ask_at_once_wait_for_one_query(start: Start) -> None:
    answers = await start(KNOWN)
    told = await asyncio.gather(*(answers.ask() for _ in range(20)))

    assert told == [([(0, "a")], None)] * 20
    assert answers.queries == 1


async def test_what_is_known_is_told_at_once(start: Start) -> None:
    answers = await start(KNOWN)
    await answers.ask()

    assert answers.ask().done()


async def test_ranks_are_in_the_order_of_their_numbers(start: Start) -> None:
    answers = await start(answer({str(rank): {"engine_id": f"e{rank}"} for rank in (10, 2, 0)}))

    assert await answers.ask() == ([(0, "e0"), (2, "e2"), (10, "e10")], None)


async def test_without_a_connection_to_the_worker_its_engine_may_be_another_one(start: Start) -> None:
    """An engine that ends takes its connections with it."""
    answers = await start(KNOWN)
    await answers.ask()
    answers.pool.open = 0
    answers.answer = answer({"0": {"engine_id": "b"}})

    assert await answers.ask() == ([(0, "b")], None)


async def test_ids_that_are_old_are_asked_for_anew_while_they_are_used(start: Start) -> None:
    answers = await start(KNOWN)
    answers.ids = EngineIds(answers.counts, refresh_s=0.0)
    await answers.ask()
    answers.answer = answer({"0": {"engine_id": "b"}})
    told = answers.ask()

    assert told.result() == ([(0, "a")], None)
    async with asyncio.timeout(60):
        while answers.ask().result() != ([(0, "b")], None):  # noqa: ASYNC110 - plain state without signals
            await asyncio.sleep(0.001)


async def test_what_is_forgotten_is_asked_for(start: Start) -> None:
    answers = await start(KNOWN)
    await answers.ask()
    answers.ids.forget(answers.worker)
    answers.answer = answer({"0": {"engine_id": "b"}})

    assert await answers.ask() == ([(0, "b")], None)


@pytest.mark.parametrize(
    "bad",
    [
        answer({}),
        answer([]),
        answer(b"{"),
        answer({"zero": {"engine_id": "a"}}),
        answer({"0": {"engine": "a"}}),
        answer({"0": {"engine_id": "a"}}, "503 Starting"),
        answer(b" " * (2 << 20)),
        b"nonsense\r\n\r\n",
        b"",
        None,
    ],
    ids=["empty", "list", "half", "names", "fields", "503", "endless", "no-http", "closed", "silent"],
)
async def test_an_engine_that_does_not_tell_is_waited_for_a_second_at_most(
    start: Start, bad: bytes | None
) -> None:
    answers = await start(bad)
    async with asyncio.timeout(10):
        ranks, error = await answers.ask()

    assert ranks == ()
    assert isinstance(error, HandoverFailed)
    assert answers.counts["query_failed"] == 1
    answers.answer = KNOWN
    assert await answers.ask() == ([(0, "a")], None)


async def test_an_engine_that_has_no_end_is_not_listened_to(start: Start) -> None:
    answers = await start(answer(b"{" + b" " * (2 << 20)))
    _, error = await answers.ask()

    assert "too much" in str(error)


async def test_an_engine_that_answers_little_by_little_is_waited_for_a_second_in_all() -> None:
    """Every byte would be in time for the limits of a connection."""
    left = asyncio.Event()

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        writer.close()
        left.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    answers = Answers(None)
    answers.port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(20):
        _, error = await answers.ask()
        await left.wait()
    server.close()

    assert "within 1 s" in str(error)


async def test_nobody_at_the_port_is_an_error_that_comes_later(start: Start) -> None:
    answers = await start(KNOWN)
    answers.port = 1
    told = answers.ask()
    assert not told.done()

    _, error = await told
    assert isinstance(error, HandoverFailed)
