"""Crowds, slow clients and odd bytes at every port of a gateway: data, admin and metrics speak the same HTTP.

The gateway is a process of its own with as few files as some systems give one.
"""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
from fakes.answers import read_answers
from fakes.attacker import Attacker
from fakes.running import command, until_async

from loadtest.processes import free_port
from router.shared import EmbeddedValkey

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "127.0.0.1"
FILES = 500
PORTS = ("data", "admin", "metrics")

SCRIPT = f"""
import resource, sys
from router.__main__ import main
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
sys.exit(main())
"""

OPEN = {"data": b"/health", "admin": b"/health", "metrics": b"/metrics"}
"""A path at each port that needs no key."""


@dataclass
class Gateway:
    """A gateway with all its listeners and their ports.

    Attributes:
        ports: Port of each listener, by name.
        contexts: TLS contexts for those that serve HTTPS.
        process: The gateway's process.
    """

    ports: dict[str, int]
    contexts: dict[str, ssl.SSLContext]
    process: asyncio.subprocess.Process

    async def connect(self, name: str, address: str = HOST, *, plain: bool = False) -> Attacker:
        """Connect to a listener, with TLS where it is served."""
        context = None if plain else self.contexts.get(name)
        return Attacker(
            *await asyncio.open_connection(
                HOST, self.ports[name], ssl=context, local_addr=(address, 0), limit=2**24
            )
        )

    async def crowd(self, name: str, size: int, *starts: bytes, plain: bool = False) -> list[Attacker]:
        """Connections that never send more than the start of a request."""
        crowd = []
        for number in range(size):
            with contextlib.suppress(ConnectionError):
                each = await self.connect(name, f"127.0.0.{2 + number % 200}", plain=plain)
                crowd.append(each.send(starts[number % len(starts)] if starts else b""))
        return crowd

    async def status(self, name: str, path: bytes = b"") -> int:
        """Return the status of the answer on a new connection; 0 if there is none."""
        client = await self.connect(name)
        answers = await client.send(get(path or OPEN[name])).answers()
        return int(answers[0].status) if answers else 0

    async def served(self) -> dict[str, int]:
        """Return the status of a new connection's request at each port."""
        asked = [(name, OPEN[name]) for name in self.ports] + [("admin", b"/workers")]
        return {f"{name} {path.decode()}": await self.status(name, path) for name, path in asked}

    async def serves(self) -> bool:
        """True if new connections get answers at all ports."""
        return set((await self.served()).values()) == {200}


def get(path: bytes, *lines: bytes) -> bytes:
    """Return the last request of a connection."""
    return b"\r\n".join(
        (b"GET %b HTTP/1.1" % path, b"host: 127.0.0.1", b"connection: close", *lines, b"", b"")
    )


@contextlib.asynccontextmanager
async def serving(
    redis_url: str, *flags: str, tls: trustme.CA | None = None, folder: Path | None = None
) -> AsyncIterator[Gateway]:
    """A gateway process with three ports, data and admin with TLS if there is an authority."""
    ports = {name: free_port() for name in PORTS}
    contexts = {}
    if tls is not None and folder is not None:
        certificate = tls.issue_cert(HOST)
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        for prefix in ("", "admin-"):
            flags += (f"--{prefix}ssl-certfile", str(folder / "cert.pem"))
            flags += (f"--{prefix}ssl-keyfile", str(folder / "key.pem"))
        context = ssl.create_default_context()
        tls.configure_trust(context)
        contexts = {"data": context, "admin": context}
    arguments = (
        *("serve", "--host", HOST, "--port", str(ports["data"])),
        *("--admin-port", str(ports["admin"]), "--prometheus-port", str(ports["metrics"])),
        *("--prometheus-host", HOST, "--redis-url", redis_url, "--namespace", "listeners", *flags),
    )
    environ = {"CACHEWAY_ADMIN_PORT": ""}
    async with command(*arguments, environ=environ, program=("-c", SCRIPT)) as process:
        gateway = Gateway(ports, contexts, process)

        async def all_listen() -> bool:
            assert process.returncode is None, b"".join(process.output).decode()  # type: ignore[attr-defined]
            try:
                return all([await gateway.status(name) == 200 for name in ports])
            except OSError:
                return False

        await until_async(all_listen)
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(valkey: EmbeddedValkey) -> AsyncIterator[Gateway]:
    """A gateway for all tests that leave it as it was."""
    async with serving(valkey.url) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hasty(valkey: EmbeddedValkey) -> AsyncIterator[Gateway]:
    """A gateway with short deadlines."""
    async with serving(valkey.url, *DEADLINES) as gateway:
        yield gateway


DEADLINES = ("--read-timeout-secs", "3", "--keepalive-secs", "1")
"""The first is as long as a busy machine may delay a test's bytes."""

STARTS = (b"", b"G", b"GET /health HTTP/1.1\r\nhost: g\r\nx: ")


@pytest.mark.parametrize("name", PORTS)
async def test_idle_connections_keep_nobody_out_and_take_no_files_from_other_ports(
    gateway: Gateway, name: str
) -> None:
    """515 of them once made the admin port answer 503 to all, and 490 at one port took the others' files."""
    crowd = await gateway.crowd(name, 600, *STARTS)
    assert await gateway.serves(), await gateway.served()
    for each in crowd:
        each.close()


async def test_idle_connections_at_all_ports_together_keep_nobody_out(gateway: Gateway) -> None:
    crowds = [await gateway.crowd(name, 400, *STARTS) for name in PORTS]
    assert await gateway.serves(), await gateway.served()
    for crowd in crowds:
        for each in crowd:
            each.close()


@pytest.mark.parametrize("name", PORTS)
async def test_connections_that_were_used_once_keep_nobody_out(gateway: Gateway, name: str) -> None:
    request = get(OPEN[name]).replace(b"close", b"keep-alive")
    crowd = await gateway.crowd(name, 400, request)
    assert await gateway.serves(), await gateway.served()
    for each in crowd:
        each.close()


@pytest.mark.parametrize("name", ["data", "admin"])
async def test_connections_that_never_begin_tls_count_and_keep_nobody_out(
    valkey: EmbeddedValkey, name: str, tmp_path: Path
) -> None:
    """They once had no bound, and held their files for a minute."""
    async with serving(valkey.url, tls=trustme.CA(), folder=tmp_path) as gateway:
        crowd = await gateway.crowd(name, 600, b"", b"\x16\x03\x01", plain=True)
        assert await gateway.serves(), await gateway.served()
        for each in crowd:
            each.close()


@pytest.mark.parametrize("name", ["data", "admin"])
async def test_connections_that_are_idle_behind_tls_keep_nobody_out(
    valkey: EmbeddedValkey, name: str, tmp_path: Path
) -> None:
    async with serving(valkey.url, tls=trustme.CA(), folder=tmp_path) as gateway:
        crowd = await gateway.crowd(name, 200, *STARTS)
        assert await gateway.serves(), await gateway.served()
        for each in crowd:
            each.close()


async def test_answers_that_nobody_reads_keep_nobody_out(gateway: Gateway) -> None:
    """Each connection requests more than the kernel's buffers hold, and reads nothing.

    A listener has room for some 30; a file is asked for since it takes less CPU than what a gateway computes.
    """
    crowd = []
    for number in range(40):
        each = await gateway.connect("admin", f"127.0.0.{2 + number}")
        each.writer.transport.pause_reading()  # type: ignore[attr-defined]
        crowd.append(each.send(get(b"/console/assets/console.css").replace(b"close", b"keep-alive") * 400))
    await until_async(gateway.serves)  # after `router.proxy.spare.PATIENCE_S`
    for each in crowd:
        each.close()


BEHIND = b"GET /health HTTP/1.1\r\nhost: g\r\nx-behind: 1\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("name", PORTS)
async def test_framing_is_as_strict_at_every_port(gateway: Gateway, name: str) -> None:
    """No request behind one with two possible readings is served."""
    path = OPEN[name]
    first = b"GET %b HTTP/1.1\r\n" % path
    refused = {
        "coding before chunked": first + b"host: g\r\ntransfer-encoding: x, chunked\r\n\r\n0\r\n\r\n",
        "two codings": first
        + b"host: g\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "chunked twice": first + b"host: g\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "length and chunked": first
        + b"host: g\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "two lengths": first + b"host: g\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
        "chunked over 1.0": first.replace(b"1.1", b"1.0")
        + b"connection: keep-alive\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "no host": first + b"\r\n",
        "two hosts": first + b"host: g\r\nhost: g\r\n\r\n",
        "impossible host": first + b"host: g h\r\n\r\n",
        "folded line": first + b"host: g\r\nx: 1\r\n 2\r\n\r\n",
        "bare line feed": first.replace(b"\r\n", b"\n") + b"host: g\n\n",
        "space before the colon": first + b"host: g\r\nx : 1\r\n\r\n",
        "null": first + b"host: g\r\nx: \x00\r\n\r\n",
        "upgrade and two hosts": first + b"host: g\r\nhost: g\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    }
    for what, request in refused.items():
        answers = await (await gateway.connect(name)).send(request + BEHIND).answers()
        assert [answer.status for answer in answers] == [400], what
    others = {
        414: b"GET /%b HTTP/1.1\r\nhost: g\r\n\r\n" % (b"x" * 70_000),
        431: first + b"host: g\r\nx: %b\r\n\r\n" % (b"x" * 70_000),
        415: first + b"host: g\r\ncontent-length: 0\r\ncontent-encoding: gzip\r\n\r\n",
        505: first.replace(b"1.1", b"2.0") + b"host: g\r\n\r\n",
        405: b"CONNECT g:80 HTTP/1.1\r\nhost: g\r\n\r\n",
    }
    for status, request in others.items():
        answers = await (await gateway.connect(name)).send(request + BEHIND).answers()
        assert [answer.status for answer in answers] == [status]


@pytest.mark.parametrize("name", PORTS)
async def test_an_upgrade_is_ignored_and_its_connection_serves_on_and_closes(
    gateway: Gateway, name: str
) -> None:
    offer = b"GET %b HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n"
    for protocol in (b"websocket", b"h2c"):
        client = await gateway.connect(name)
        client.send(offer % (OPEN[name], protocol) + get(OPEN[name]))
        assert [answer.status for answer in await client.answers()] == [200, 200]


@pytest.mark.parametrize("name", PORTS)
async def test_heads_bodies_and_idle_connections_have_deadlines(hasty: Gateway, name: str) -> None:
    path = OPEN[name]
    starts = {
        b"": b"",
        b"GET /hea": b"HTTP/1.1 408 ",
        b"GET %b HTTP/1.1\r\nhost: g\r\nx: y\r\n" % path: b"HTTP/1.1 408 ",
        b"GET %b HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n" % path: b"HTTP/1.1 ",
        b"GET %b HTTP/1.1\r\nhost: g\r\n\r\n" % path: b"HTTP/1.1 200 ",
    }
    clients = [(await hasty.connect(name)).send(start) for start in starts]
    for client, answer in zip(clients, starts.values(), strict=True):
        data = await client.received()
        assert data.startswith(answer), data
        assert bool(data) == bool(answer), data


async def test_a_scraper_sends_no_body(gateway: Gateway) -> None:
    client = await gateway.connect("metrics")
    answers = read_answers(await client.send(get(b"/metrics", b"content-length: 1")).received())
    assert [answer.status for answer in answers] == [413]


async def test_the_console_hears_on_beyond_all_deadlines_and_does_not_hold_up_the_end(
    valkey: EmbeddedValkey,
) -> None:
    """The deadlines are three seconds and one; the stream sends an event every second."""
    async with serving(valkey.url, *DEADLINES) as gateway:
        console = await gateway.connect("admin")
        console.send(get(b"/events"))
        async with asyncio.timeout(60):
            for _ in range(5):
                await console.reader.readuntil(b"event: change")
        half_open = await gateway.crowd("admin", 3, *STARTS)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await gateway.process.wait() == 0
        for each in (console, *half_open):
            each.close()
