"""Fleets of hundreds of workers become healthy, despite hostile ones, and after a restart, too.

The workers are sockets of this process, the gateway is a separate process.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson
import pytest
from fakes.running import serving, until_async

WORKERS = 600
"""With this many, a first round of health checks by an httpx client took longer than the start's wait."""

WITHIN_S = 90.0
"""Enough for a busy machine; a stuck fleet takes for ever."""

BODIES = {
    b"/health": b"",
    b"/v1/models": orjson.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 8192}]}),
    b"/get_server_info": orjson.dumps({"max_total_num_tokens": 400_000}),
    b"/metrics": b"process_start_time_seconds 1763700000\nsglang:num_running_reqs 0\n",
}


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class Worker(asyncio.Protocol):
    """Answers at once, and keeps its connections."""

    def __init__(self) -> None:
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._got.endswith(b"\r\n\r\n"):
            return
        path, self._got = self._got.split(b" ", 2)[1], b""
        self.answer(path)

    def answer(self, path: bytes) -> None:
        self.transport.write(ok(BODIES.get(path, b"{}")))


class Silent(asyncio.Protocol):
    """Accepts, and never answers."""


class Resetting(asyncio.Protocol):
    """Resets each connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()  # type: ignore[attr-defined]


class Trickling(asyncio.Protocol):
    """Sends a byte now and then, of a head that never ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"HTTP/1.1 200 OK\r\nx: ")
        self._trickle(transport)

    def _trickle(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(b"y")
            asyncio.get_running_loop().call_later(0.2, self._trickle, transport)


class Endless(asyncio.Protocol):
    """A healthy worker that answers everything else without an end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._full = False

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /health "):
            self._transport.write(ok(b""))
            return
        self._transport.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        self._more()

    def _more(self) -> None:
        if self._transport.is_closing():
            return
        if not self._full:
            self._transport.write(b"4000\r\n" + bytes(0x4000) + b"\r\n")
        asyncio.get_running_loop().call_later(0.02, self._more)


@contextlib.asynccontextmanager
async def listening(count: int, make: Callable[[], asyncio.Protocol]) -> AsyncIterator[list[str]]:
    """Serve a number of workers of a kind; return their URLs."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for _ in range(count):
            server = await loop.create_server(make, "127.0.0.1", 0, backlog=100)
            await stack.enter_async_context(server)
            urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield urls


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    workers: list[dict[str, Any]] = (await client.get("/workers")).json()["workers"]
    return {worker["url"]: worker["state"] for worker in workers}


async def test_hundreds_of_workers_become_healthy_and_after_a_restart_too(
    redis_url: str, namespace: str
) -> None:
    async with listening(WORKERS, Worker) as urls:
        for _ in range(2):
            async with serving(redis_url, namespace, urls) as (_, client):

                async def all_well(client: httpx.AsyncClient = client) -> bool:
                    found = await states(client)
                    return len(found) == WORKERS and set(found.values()) == {"healthy"}

                await until_async(all_well, WITHIN_S)


@pytest.mark.deep
async def test_the_living_stay_healthy_whatever_hundreds_of_others_do(redis_url: str, namespace: str) -> None:
    """Each is probed again and again meanwhile; requests are served; and memory and files stay bounded."""
    probed: dict[int, int] = {}

    class Counting(Worker):
        def answer(self, path: bytes) -> None:
            port = self.transport.get_extra_info("sockname")[1]
            probed[port] = probed.get(port, 0) + (path == b"/health")
            super().answer(path)

    async with (
        listening(100, Counting) as well,
        listening(200, Silent) as silent,
        listening(30, Resetting) as resetting,
        listening(30, Trickling) as trickling,
        listening(30, Endless) as endless,
        serving(
            redis_url,
            namespace,
            [*silent, *resetting, *trickling, *endless, *well],
            *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "2"),
        ) as (process, client),
    ):
        assert process.returncode is None

        async def living_well() -> bool:
            found = await states(client)
            return all(found[url] == "healthy" for url in well)

        await until_async(living_well, WITHIN_S)
        before = dict(probed)

        async def probed_again() -> bool:
            assert await living_well()
            return all(probed[port] >= count + 5 for port, count in before.items())

        await until_async(probed_again, WITHIN_S)
        found = await states(client)
        assert not {found[url] for url in (*silent, *resetting, *trickling)} & {"healthy"}
        assert "cacheway_probes_rebuilt_total 0.0" in (await client.get("/metrics")).text
