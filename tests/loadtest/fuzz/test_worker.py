"""Each script is a worker of its own, by the first part of the path."""

import asyncio

import httpx

from loadtest.fuzz.actions import Script
from loadtest.fuzz.answers import answer
from loadtest.fuzz.worker import HostileWorker


async def test_a_worker_answers_as_its_script_says_and_else_well() -> None:
    async with HostileWorker() as worker, httpx.AsyncClient(trust_env=False) as client:
        worker.scripts["c1"] = Script({"/v1/models": answer(b"[]", status=b"500 X")}, frozenset(), ())
        assert (await client.get(f"{worker.url}/c1/v1/models")).status_code == 500
        assert (await client.get(f"{worker.url}/c1/health?x=1")).json() == {"status": "ok"}
        assert (await client.post(f"{worker.url}/c2/v1/models", content=b"x" * 100_000)).status_code == 200
        assert worker.asked["c1", "/v1/models"] == worker.asked["c1", "/health"] == 1


async def test_one_that_hangs_leaves_the_connection_open_and_ends_with_the_test() -> None:
    async with HostileWorker() as worker:
        worker.scripts["c1"] = Script({"/health": b"HTTP/1.1 200 OK\r\n"}, frozenset({"/health"}), ())
        reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rpartition(":")[2]))
        writer.write(b"GET /c1/health HTTP/1.1\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert not reader.at_eof()
        writer.close()


async def test_what_is_no_request_ends_the_connection() -> None:
    async with HostileWorker() as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rpartition(":")[2]))
        writer.write(b"GET /c1/health HTTP/1.1\r\ncontent-length: many\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
