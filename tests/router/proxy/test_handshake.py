"""TLS connections count before their handshakes end, on both event loops."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme
from uvicorn.server import ServerState

from router.proxy import ClientLimits, ClientQuota, Clients, Handshakes, Refusal

HELLO = b"GET /hello HTTP/1.1\r\nhost: g\r\n\r\n"


class Port:
    """A listener with TLS and three places."""

    def __init__(self, gateway: Any) -> None:
        self.refused: list[Refusal] = []
        self.gateway = gateway
        self.clients = gateway.clients = Clients(
            ClientQuota(connections_max=3), time.monotonic, self.refused.append
        )
        authority = trustme.CA()
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(serving)
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        self.serving = serving
        self.limits = ClientLimits()

    async def start(self) -> None:
        config = self.gateway.config(self.limits)
        config.load()
        state: ServerState = self.gateway.state
        self.handshakes = Handshakes(config.http_protocol_class, self.serving)
        self.server = await asyncio.get_running_loop().create_server(
            lambda: self.handshakes(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        self.gateway.port = self.server.sockets[0].getsockname()[1]

    async def bare(self) -> socket.socket:
        """A connection that does not begin."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", self.gateway.port))
        return sock

    async def answer(self, read_answer: Any) -> bytes:
        reader, writer = await self.gateway.connect(HELLO, ssl=self.trusting)
        head, _ = await read_answer(reader)
        writer.close()
        return bytes(head[:13])


@pytest.fixture
async def port(gateway: Any, until: Any) -> AsyncIterator[Port]:
    port = Port(gateway)
    yield port
    port.server.close()
    port.handshakes.end()
    await until(lambda: not gateway.state.connections)
    await until(lambda: port.clients.connections == 0)


async def closed(sock: socket.socket) -> bool:
    """Wait until the other side has closed it."""
    async with asyncio.timeout(30):
        try:
            return await asyncio.get_running_loop().sock_recv(sock, 1 << 16) == b""
        except ConnectionResetError:
            return True
        finally:
            sock.close()


async def test_those_that_never_begin_count_and_make_room(port: Port, until: Any, read_answer: Any) -> None:
    await port.start()
    first = await port.bare()
    await until(lambda: port.clients.connections == 1)
    others = [await port.bare() for _ in range(9)]
    await until(lambda: len(port.refused) == 7)
    assert port.clients.connections == 3
    assert set(port.refused) == {Refusal.IDLE}
    assert await closed(first)
    assert await port.answer(read_answer) == b"http/1.1 200 "
    for other in others:
        other.close()


async def test_a_handshake_that_fails_leaves_its_place(port: Port, until: Any, read_answer: Any) -> None:
    await port.start()
    for nonsense in (b"GET / HTTP/1.1\r\nhost: g\r\n\r\n", b"\x16\x03\x01\x00\x01\x00", b"\x00" * 100):
        sock = await port.bare()
        await asyncio.get_running_loop().sock_sendall(sock, nonsense)
        sock.close()
    (await port.bare()).close()
    await until(lambda: port.clients.connections == 0)
    assert await port.answer(read_answer) == b"http/1.1 200 "


async def test_a_handshake_ends_at_the_deadline_of_a_request(port: Port, until: Any) -> None:
    port.limits = ClientLimits(read_timeout_s=0.3)
    await port.start()
    assert await closed(await port.bare())
    await until(lambda: port.clients.connections == 0)


async def test_what_is_under_way_is_closed_at_the_end(port: Port, until: Any) -> None:
    await port.start()
    sock = await port.bare()
    await until(lambda: port.clients.connections == 1)
    port.handshakes.end()
    assert port.clients.connections == 0
    assert await closed(sock)


async def test_what_comes_right_behind_the_handshake_is_served(port: Port, read_answer: Any) -> None:
    """Many at once, so that some handshakes end while others are accepted."""
    port.clients.use(ClientQuota())
    await port.start()
    answers = await asyncio.gather(*(port.answer(read_answer) for _ in range(30)))
    assert answers == [b"http/1.1 200 "] * 30
