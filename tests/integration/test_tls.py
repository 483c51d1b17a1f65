"""TLS on both sides of the gateway, with real certificates."""

import asyncio
import contextlib
import datetime
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import trustme
from fakes.answers import read_answers
from fakes.running import Fleet, command, until, until_async

from loadtest.processes import free_port
from router.shared import EmbeddedValkey

HOST = "127.0.0.1"


@dataclass
class Worker:
    """Serves the model ``m``, with TLS if it is given a context, and can come back with another.

    Attributes:
        bodies: Digest of each request's body.
        peers: The certificate that came with it.
        connections: Number set up for requests, without those of health checks.
    """

    port: int = 0
    bodies: list[str] = field(default_factory=list)
    peers: list[Any] = field(default_factory=list)
    connections: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port, ssl=context, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        asked = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{"data":[{"id":"m"}]}')
                    continue
                asked += 1
                self.connections += asked == 1
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None
                body = await reader.readexactly(int(length[1]))
                self.bodies.append(hashlib.sha256(body).hexdigest())
                self.peers.append(writer.get_extra_info("peercert"))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
                writer.write(b"transfer-encoding: chunked\r\n\r\n")
                for number in range(3):
                    event = b"data: %d\n\n" % number
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


EVENTS = b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@contextlib.asynccontextmanager
async def worker(context: ssl.SSLContext | None) -> AsyncIterator[Worker]:
    worker = Worker()
    await worker.start(context)
    yield worker
    await worker.stop()


def serving_context(certificate: trustme.LeafCert, *, clients: trustme.CA | None = None) -> ssl.SSLContext:
    """Return a worker's side of TLS; with ``clients`` it demands a client certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        clients.configure_trust(context)
    return context


# Clients: a gateway in a separate process.


@dataclass
class Front:
    """A gateway that serves HTTPS."""

    port: int
    worker: Worker
    authority: trustme.CA

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    async def say(self, data: bytes, context: ssl.SSLContext | None) -> tuple[bytes, ssl.SSLObject | None]:
        """Return all bytes that come back on a new connection."""
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context)
        writer.write(data)
        async with asyncio.timeout(60):
            answer = await reader.read()
        tls = writer.get_extra_info("ssl_object")
        writer.close()
        return answer, tls


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    port = free_port()
    files = ("--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.pem"))
    shared = ("--redis-url", valkey.url, "--namespace", "tls")
    async with worker(None) as behind:
        url = f"http://{HOST}:{behind.port}"
        front = Front(port, behind, authority)
        async with (
            command(*("serve", "--host", HOST, "--port", str(port), "--worker-urls", url), *files, *shared),
            httpx.AsyncClient(
                base_url=f"https://{HOST}:{port}", verify=front.context(), trust_env=False
            ) as client,
        ):

            async def ready() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return (await client.get("/readiness")).status_code == 200
                return False

            await until_async(ready)
            yield front


def post(body: bytes = b'{"model":"m","prompt":"x","stream":true}', last: bool = False) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n%bcontent-length: %d\r\n\r\n"
    return head % (b"connection: close\r\n" * last, len(body)) + body


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_one_tls_connection_carries_streams_and_the_application(
    front: Front, version: ssl.TLSVersion
) -> None:
    context = front.context()
    context.minimum_version = context.maximum_version = version
    readiness = b"GET /readiness HTTP/1.1\r\nhost: g\r\n\r\n"
    data, tls = await front.say(post() + readiness + post() + post(last=True), context)

    assert tls is not None
    assert (tls.version() or "").replace(".", "_") == version.name
    answers = read_answers(data)
    assert [answer.status for answer in answers] == [200] * 4
    assert [answers[number].body for number in (0, 2, 3)] == [EVENTS] * 3
    assert json.loads(answers[1].body)["workers"]["healthy"] == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_http_2_is_not_offered(front: Front) -> None:
    """A client that could speak both is answered in HTTP/1.1."""
    context = front.context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    data, tls = await front.say(post(last=True), context)

    assert tls is not None
    assert tls.selected_alpn_protocol() != "h2"
    assert read_answers(data)[0].body == EVENTS


@pytest.mark.asyncio(loop_scope="module")
async def test_a_large_body_comes_through_tls_unchanged(front: Front) -> None:
    body = b'{"model":"m","prompt":"%b"}' % (b"0123456789abcdef" * 2**18)
    data, _ = await front.say(post(body, last=True), front.context())

    assert read_answers(data)[0].status == 200
    assert front.worker.bodies[-1] == hashlib.sha256(body).hexdigest()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_malformed_request_is_refused_behind_tls_as_well(front: Front) -> None:
    served = len(front.worker.bodies)
    twice = post().replace(b"host: g", b"host: g\r\ncontent-length: 3")
    data, _ = await front.say(twice + post(), front.context())

    (refusal,) = read_answers(data)
    assert (refusal.status, refusal.headers[b"connection"]) == (400, b"close")
    assert len(front.worker.bodies) == served


@pytest.mark.asyncio(loop_scope="module")
async def test_who_is_no_client_of_ours_disturbs_nobody(front: Front) -> None:
    """One trusts others, one expects another name, one speaks no TLS, one hangs up in its handshake."""
    elsewhere = front.context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(HOST, front.port, ssl=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(HOST, front.port, ssl=elsewhere, server_hostname="elsewhere")
    with contextlib.suppress(ConnectionError):
        data, _ = await front.say(post(), None)
        assert b"HTTP" not in data
    _, writer = await asyncio.open_connection(HOST, front.port)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    writer.close()

    data, _ = await front.say(post(last=True), front.context())
    assert read_answers(data)[0].body == EVENTS


# Workers: the gateway is the client.


@dataclass
class Trust:
    """Two authorities, and files for the gateway."""

    ours: trustme.CA
    others: trustme.CA
    files: dict[str, str]


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, authority in (("client.pem", ours), ("stranger.pem", others)):
        certificate = authority.issue_cert("gateway.example", common_name=name)
        certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    return Trust(ours, others, {path.name: str(path) for path in tmp_path.iterdir()})


ASKED = {"model": "m", "prompt": "x", "stream": True}


async def test_a_gateway_shows_its_certificate_to_workers_and_keeps_the_connection(
    fleet: Fleet, trust: Trust
) -> None:
    async with worker(serving_context(trust.ours.issue_cert(HOST), clients=trust.ours)) as behind:
        gateway = await fleet.gateway(
            f"https://{HOST}:{behind.port}",
            upstream={"ca_file": trust.files["ca.pem"], "client_cert": trust.files["client.pem"]},
        )
        for _ in range(3):
            answer = await gateway.client.post("/v1/completions", json=ASKED)
            assert (answer.status_code, answer.content) == (200, EVENTS)

        assert behind.connections == 1
        for peer in behind.peers:
            assert ("commonName", "client.pem") in [pair for (pair,) in peer["subject"]]


def _yesterday(trust: Trust) -> trustme.LeafCert:
    now = datetime.datetime.now(datetime.UTC)
    return trust.ours.issue_cert(
        HOST, not_before=now - datetime.timedelta(2), not_after=now - datetime.timedelta(1)
    )


@pytest.mark.parametrize(
    ("context", "client_cert"),
    [
        (lambda trust: serving_context(trust.others.issue_cert(HOST)), ""),
        (lambda trust: serving_context(_yesterday(trust)), ""),
        (lambda trust: serving_context(trust.ours.issue_cert("elsewhere.example")), ""),
        (lambda trust: serving_context(trust.ours.issue_cert(HOST), clients=trust.ours), ""),
        (lambda trust: serving_context(trust.ours.issue_cert(HOST), clients=trust.ours), "stranger.pem"),
    ],
    ids=["another authority", "expired", "another host", "shown no certificate", "shown another's"],
)
async def test_a_worker_that_is_not_who_it_should_be_gets_no_request(
    fleet: Fleet, trust: Trust, context: Any, client_cert: str
) -> None:
    """It keeps serving until its address returns another identity; health checks are too slow to notice."""
    async with worker(serving_context(trust.ours.issue_cert(HOST))) as behind:
        gateway = await fleet.gateway(
            f"https://{HOST}:{behind.port}",
            upstream={"ca_file": trust.files["ca.pem"], "client_cert": trust.files.get(client_cert, "")},
            fleet={"health_check_interval_s": 60},
            reliability={"disable_retries": True},
        )
        assert (await gateway.client.post("/v1/completions", json=ASKED)).status_code == 200
        await behind.stop()
        await behind.start(context(trust))
        answer = await gateway.client.post("/v1/completions", json=ASKED)

        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert len(behind.bodies) == 1
        await behind.stop()
        await behind.start(serving_context(trust.ours.issue_cert(HOST)))

        async def back() -> bool:
            return (await gateway.client.post("/v1/completions", json=ASKED)).status_code == 200

        await until_async(back)


async def test_a_worker_with_a_certificate_of_nobody_is_never_found_healthy(
    fleet: Fleet, trust: Trust
) -> None:
    async with worker(serving_context(trust.others.issue_cert(HOST))) as behind:
        url = f"https://{HOST}:{behind.port}"
        gateway = await fleet.gateway(url, upstream={"ca_file": trust.files["ca.pem"]})
        careless = await fleet.gateway(url, upstream={"verify": False})

        readiness = await gateway.client.get("/readiness")
        assert (readiness.status_code, readiness.json()["workers"]["healthy"]) == (503, 0)
        assert (await careless.client.post("/v1/completions", json=ASKED)).content == EVENTS
