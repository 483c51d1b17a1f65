"""The metrics listener: one process of a host has it, and another takes over."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from fakes.running import until_async

from loadtest.processes import free_port
from router.admin import Listener, make_metrics_api, serve_metrics
from router.proxy import ClientLimits, ClientQuota, Clients

TEXT = "text/plain; version=1.0.0; charset=utf-8"


def exposition() -> tuple[bytes, str]:
    return b"up 1\n", TEXT


@contextlib.asynccontextmanager
async def serving(port: int, *, alone: bool = True) -> AsyncIterator[asyncio.Task[None]]:
    """One process's listener."""
    clients = Clients(ClientQuota(), time.monotonic, lambda _: None)
    listener = Listener(make_metrics_api(exposition), clients, ClientLimits(), 75.0)
    task = asyncio.create_task(serve_metrics(listener, "127.0.0.1", port, alone=alone))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def scrape(port: int, path: str = "/metrics") -> httpx.Response | None:
    """What a scraper gets; None if nobody listens."""
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return await client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.TransportError:
            return None


async def test_it_serves_metrics_and_nothing_else() -> None:
    port = free_port()
    async with serving(port):
        await until_async(lambda: scrape(port))
        answer = await scrape(port)
        assert answer is not None
        assert (answer.text, answer.headers["content-type"]) == ("up 1\n", TEXT)
        for path in ("/", "/workers", "/openapi.json", "/docs"):
            other = await scrape(port, path)
            assert other is not None
            assert other.status_code == 404


async def test_it_frees_the_port_when_it_ends() -> None:
    port = free_port()
    async with serving(port):
        await until_async(lambda: scrape(port))
    assert await scrape(port) is None
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("alone", [True, False])
async def test_it_waits_for_a_port_that_is_taken(alone: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Among siblings somebody always has it; a process alone says so, once."""
    port = free_port()
    with caplog.at_level(logging.INFO, logger="router.admin"):
        async with serving(port), serving(port, alone=alone) as second:
            await until_async(lambda: scrape(port))
            assert not second.done()
        events = [
            record for record in caplog.records if getattr(record, "event", "") == "metrics.unavailable"
        ]
    assert len(events) == (1 if alone else 0)


async def test_a_sibling_takes_over_when_the_first_one_dies() -> None:
    port = free_port()
    async with serving(port) as first:
        await until_async(lambda: scrape(port))
        async with serving(port, alone=False):
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await until_async(lambda: scrape(port))
