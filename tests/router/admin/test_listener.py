"""Listeners beside the data port: they end whole, and speak TLS if configured."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trustme
from fakes.running import until_async
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from loadtest.processes import free_port
from router.admin import Listener, admin_tls, make_metrics_api, serve_metrics
from router.proxy import ClientLimits, ClientQuota, Clients
from router.settings import AdminSettings


def listening(api: FastAPI, connections_max: int = 0, tls: ssl.SSLContext | None = None) -> Listener:
    """Return a listener that refuses no client in silence."""
    clients = Clients(ClientQuota(connections_max=connections_max), time.monotonic, lambda _: None)
    return Listener(api, clients, ClientLimits(), 75.0, tls)


def endless() -> FastAPI:
    api = FastAPI()

    @api.get("/events")
    async def events() -> StreamingResponse:
        async def forever() -> AsyncIterator[str]:
            yield "first"
            await asyncio.Event().wait()

        return StreamingResponse(forever())

    return api


async def test_streams_that_never_end_do_not_keep_it_open() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    task = asyncio.create_task(listening(endless()).serve(listener))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        await until_async(lambda: answers(client))
        async with client.stream("GET", "/events") as answer:
            assert await anext(answer.aiter_text()) == "first"
            task.cancel()
            async with asyncio.timeout(60):
                await asyncio.gather(task, return_exceptions=True)
        assert not await answers(client)


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        await client.get("/nowhere")
    except httpx.TransportError:
        return False
    return True


async def test_clients_without_a_certificate_are_turned_away_if_one_is_asked_for(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, ours = authority.issue_cert("127.0.0.1"), authority.issue_cert("operator")
    server.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    tls = admin_tls(
        AdminSettings(
            ssl_certfile=str(tmp_path / "server.pem"),
            ssl_keyfile=str(tmp_path / "server.key"),
            ssl_ca_certs=str(tmp_path / "ca.pem"),
        )
    )
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    task = asyncio.create_task(listening(FastAPI(), tls=tls).serve(listener))
    bare, known = ssl.create_default_context(), ssl.create_default_context()
    for context in (bare, known):
        authority.configure_trust(context)
    ours.configure_cert(known)
    try:
        async with (
            httpx.AsyncClient(base_url=url, verify=known, trust_env=False) as operator,
            httpx.AsyncClient(base_url=url, verify=bare, trust_env=False) as stranger,
        ):
            await until_async(lambda: answers(operator))
            assert not await answers(stranger)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(listener: Listener) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the listener while it serves."""
    bound = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(listener.serve(bound))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await until_async(lambda: answers(client))
        yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_its_limits_follow_the_settings_while_it_serves() -> None:
    listener = listening(FastAPI())
    async with serving(listener) as client:
        assert (await client.get("/nowhere", headers={"x": "y" * 2000})).status_code == 404
        listener.use(replace(listener.limits, header_bytes_max=1024))
        assert (await client.get("/nowhere", headers={"x": "y" * 2000})).status_code == 431


async def test_behind_a_trusted_proxy_the_client_is_who_it_forwards_for() -> None:
    """The audit records the client's address."""
    api = FastAPI()

    @api.get("/who")
    async def who(request: Request) -> str:
        assert request.client is not None
        return request.client.host

    said = {"x-forwarded-for": "192.0.2.7"}
    for trusted, expected in (((), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.7")):
        listener = listening(api)
        listener.clients = Clients(ClientQuota(trusted_proxies=trusted), time.monotonic, lambda _: None)
        async with serving(listener) as client:
            assert (await client.get("/who", headers=said)).json() == expected


async def test_half_open_connections_do_not_keep_it_open() -> None:
    listener = listening(FastAPI())
    async with serving(listener) as client:
        readers = []
        for start in (b"", b"GET /", b"POST / HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(start)
            readers.append((reader, writer))
        await until_async(lambda: counted(listener, 3))
    for reader, writer in readers:
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
    await until_async(lambda: counted(listener, 0))


async def counted(listener: Listener, least: int) -> bool:
    connections = listener.clients.connections
    return connections >= least if least else connections == 0


def test_without_files_there_is_no_tls() -> None:
    assert admin_tls(AdminSettings()) is None


TEXT = "text/plain; version=1.0.0; charset=utf-8"


def exposition() -> tuple[bytes, str]:
    return b"up 1\n", TEXT


@contextlib.asynccontextmanager
async def scraped(port: int, *, alone: bool = True) -> AsyncIterator[asyncio.Task[None]]:
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
    """Return the scraper's answer; None if no process listens."""
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return await client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.TransportError:
            return None


async def test_it_serves_metrics_and_nothing_else() -> None:
    port = free_port()
    async with scraped(port):
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
    async with scraped(port):
        await until_async(lambda: scrape(port))
    assert await scrape(port) is None
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("alone", [True, False])
async def test_it_waits_for_a_port_that_is_taken(alone: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Among siblings one always has the port; a process alone reports it, once."""
    port = free_port()
    with caplog.at_level(logging.INFO, logger="router.admin"):
        async with scraped(port), scraped(port, alone=alone) as second:
            await until_async(lambda: scrape(port))
            assert not second.done()
        events = [
            record for record in caplog.records if getattr(record, "event", "") == "metrics.unavailable"
        ]
    assert len(events) == (1 if alone else 0)


async def test_a_sibling_takes_over_when_the_first_one_dies() -> None:
    port = free_port()
    async with scraped(port) as first:
        await until_async(lambda: scrape(port))
        async with scraped(port, alone=False):
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await until_async(lambda: scrape(port))
