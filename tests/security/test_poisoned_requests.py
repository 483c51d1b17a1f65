"""Requests that engines answer with 500, or die of: gateways refuse no other client for them.

Ten of them once ejected all workers for a minute.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fakes.running import Fleet, RunningGateway, until

from policies import Circuit

POISON = {"model": "m", "prompt": "poison"}
INNOCENT = {"model": "m", "prompt": "innocent"}
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@contextlib.asynccontextmanager
async def worker(*, dies: bool) -> AsyncIterator[str]:
    """A worker that answers poison with 500, or with the end of the connection; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or b"0"))
                if b"poison" not in body:
                    listed = b'{"data":[{"id":"m"}]}'
                    writer.write(OK % (len(listed), listed))
                elif dies:
                    writer.transport.abort()
                else:
                    writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def states(gateway: RunningGateway) -> set[Circuit]:
    circuits = gateway.process.registry.circuits
    return {circuits.state(local) for local in gateway.process.registry.all()}


async def attacked(
    fleet: Fleet, *, dies: bool, retries: bool, workers: int
) -> tuple[RunningGateway, set[Circuit]]:
    """A gateway that was sent poison forty times and serves others afterwards; its circuits in between."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(worker(dies=dies)) for _ in range(workers)]
        gateway = await fleet.gateway(*urls, reliability={"disable_retries": not retries})
        await until(lambda: all(local.state == "healthy" for local in gateway.process.registry.all()))
        for _ in range(40):
            poison = await gateway.client.post("/v1/completions", json=POISON)
            assert poison.status_code in (500, 502)
        seen = states(gateway)
        for _ in range(10):
            innocent = await gateway.client.post("/v1/completions", json=INNOCENT)
            assert innocent.status_code == 200
        await until(gateway.idle)
        return gateway, seen


async def test_requests_that_every_worker_answers_with_500_eject_none(fleet: Fleet) -> None:
    gateway, seen = await attacked(fleet, dies=False, retries=True, workers=3)
    assert seen == {Circuit.CLOSED}
    metrics = (await gateway.client.get("/metrics")).text
    assert "cacheway_requests_at_fault_total 40.0" in metrics


async def test_requests_that_workers_die_of_reach_two_of_them_and_eject_none(fleet: Fleet) -> None:
    _, seen = await attacked(fleet, dies=True, retries=True, workers=4)
    assert seen == {Circuit.CLOSED}


async def test_without_retries_no_more_than_half_of_the_workers_are_ejected(fleet: Fleet) -> None:
    _, seen = await attacked(fleet, dies=False, retries=False, workers=2)
    assert seen == {Circuit.OPEN}


async def test_the_only_worker_is_never_ejected(fleet: Fleet) -> None:
    _, seen = await attacked(fleet, dies=False, retries=True, workers=1)
    assert seen == {Circuit.OPEN}
