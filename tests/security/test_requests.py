"""A request means something else to the gateway than to what stands around it, or smuggles something through.

What is ambiguous in framing is refused: see the tables in ``tests/router/proxy/test_conformance.py`` and the
random requests in ``test_fuzz.py`` beside it. Here are paths, names and what is sent back.
"""

import asyncio
import json

import pytest
from fakes.attacker import Attacker, post, worker
from fakes.running import Fleet

from router.proxy.headers import CONNECTION_HEADERS

ADMIN_PATHS = [
    b"/workers",
    b"//workers",
    b"/./workers",
    b"/health/../workers",
    b"/health%2f..%2fworkers",
    b"/health%3f/../workers",
    b"/health%23/../workers",
    b"/health;/../workers",
    b"/health/..;/workers",
    b"/%77orkers",
    b"/work%65rs",
    b"/workers%00/health",
    b"/workers%0a",
    b"/workers/health",
    b"/workers?x=/health",
    b"/workers%3fx=/health",
    b"/WORKERS",
    b"/v1/models/../../workers",
    b"/v1/models%2f..%2f..%2fworkers",
    b"/v1/models/%2e%2e/%2e%2e/workers",
    b"/metrics/../workers",
    b"/readiness\\..\\workers",
    b"http://g/workers",
    b"http://g/health/../workers",
    b"http://health@g/workers",
    b"/admin/workers",
    b"/admin//workers",
    b"/queue",
    b"/tenants",
    b"/settings",
    b"/audit",
    b"/flush_cache",
    b"/openapi.json",
    b"*",
]


@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE", b"OPTIONS", b"HEAD", b"PUT", b"PATCH"])
async def test_no_way_to_write_a_path_leads_past_the_key(fleet: Fleet, method: bytes) -> None:
    gateway = await fleet.gateway(server={"api_key": "the-key"})
    for path in ADMIN_PATHS:
        for host in (b"g", b"g:80/health", b"g?/health", b"health"):
            request = b"%b %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
            client = (await Attacker.connect(gateway)).send(request % (method, path, host))
            data = await client.received()
            status = int(data[9:12])
            assert status in (400, 401, 403, 404, 405), (method, path, host, data[:300])
            assert b'"workers"' not in data


@pytest.mark.parametrize("path", [b"/health", b"/readiness", b"/liveness", b"/metrics"])
async def test_what_needs_no_key_takes_no_orders(fleet: Fleet, path: bytes) -> None:
    gateway = await fleet.gateway(server={"api_key": "the-key"})
    for method in (b"POST", b"PUT", b"DELETE", b"PATCH"):
        (answer,) = (
            await (await Attacker.connect(gateway))
            .send(post(b"{}", path=path).replace(b"POST", method))
            .answers()
        )
        assert answer.status in (401, 404, 405)


async def test_trace_and_connect_are_not_served(fleet: Fleet) -> None:
    """TRACE would send back what a browser may not see; CONNECT would make us a proxy."""
    gateway = await fleet.gateway()
    for request in (
        b"TRACE /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: secret\r\nconnection: close\r\n\r\n",
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    ):
        data = await (await Attacker.connect(gateway)).send(request).received()
        assert int(data[9:12]) in (404, 405)
        assert b"secret" not in data


SENT = b"\r\n".join(
    [
        b"authorization: Bearer client-key",
        b"x-api-key: client-key",
        b"cookie: session=secret",
        b"forwarded: for=1.2.3.4",
        b"x-forwarded-for: 1.2.3.4",
        b"x-forwarded-host: evil.example",
        b"x-original-url: /workers",
        b"x-http-method-override: DELETE",
        b"proxy-authorization: Basic secret",
        b"x-tenant-id: acme",
        b"x-cacheway-worker: elsewhere:80",
        b"accept-encoding: gzip",
        b"range: bytes=0-1",
        b"if-none-match: x",
        b"te: trailers",
        b"connection: close, traceparent",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"accept: text/event-stream",
        b"content-type: application/json",
        b"x-correlation-id: mine",
    ]
)


async def test_a_worker_sees_only_headers_on_the_list_and_none_of_our_keys(fleet: Fleet) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET"):
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{"data":[{"id":"m"}]}')
                continue
            heads.append(head)
            await reader.readexactly(26)
            writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 2\r\n\r\n{}")
            break
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gateway = await fleet.gateway(
            url, server={"api_key": "client-key"}, fleet={"worker_api_key": "worker-key"}
        )
        request = post(b'{"model":"m","prompt":"x"}', SENT, last=False)
        (answer,) = await (await Attacker.connect(gateway)).send(request).answers()

    assert answer.status == 200
    names = {line.partition(b":")[0].lower() for line in heads[0].split(b"\r\n")[1:-2]}
    assert names <= {
        b"host",
        b"authorization",
        b"content-length",
        b"content-type",
        b"accept",
        b"x-correlation-id",
        b"x-request-id",
        b"x-cacheway-hops",
        b"tracestate",
    }
    assert b"Bearer worker-key" in heads[0]
    for secret in (b"client-key", b"secret", b"1.2.3.4", b"evil", b"acme"):
        assert secret not in heads[0]
    assert not CONNECTION_HEADERS - {b"host", b"content-length"} & names


REFLECTED = [
    b"x-request-id: a\xc4\x8d\xc4\x8aset-cookie: evil=1",
    b"x-request-id: a%0d%0aset-cookie:%20evil=1",
    b"x-request-id: " + b"a" * 5000,
    b"x-request-id: <script>alert(1)</script>",
    b"x-tenant-id: a%0d%0aset-cookie: evil=1",
    b"x-tenant-id: " + bytes(range(0x80, 0x100)),
    b"x-priority: high%0d%0aset-cookie: evil=1",
    b"x-request-timeout: 1%0d%0aset-cookie: evil=1",
    b"x-correlation-id: a\tb",
]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m\r\nset-cookie: evil=1", "prompt": "x"},
        {"model": "m", "prompt": "x", "prompt_cache_key": "\r\nset-cookie: evil=1"},
        {"model": "\u0000\u2028<script>", "prompt": "x"},
        {"model": "m" * 100_000, "prompt": "x"},
        {"model": "m", "prompt": "x"},
    ],
    ids=["model", "session", "control", "long", "plain"],
)
async def test_nothing_a_client_names_breaks_out_of_a_header(fleet: Fleet, body: dict[str, str]) -> None:
    """The answers are read by a strict reader: a line of the client's would be a header of ours."""
    heads: list[bytes] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(b"served")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        for line in REFLECTED:
            for path in (b"/v1/completions", b"/v1/models/a%0d%0aset-cookie:%20evil=1", b"/%0d%0aevil: 1"):
                request = post(json.dumps(body).encode(), line, path=path)
                (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
                assert b"set-cookie" not in answer.headers
                assert b"evil" not in b"".join(answer.headers)
                assert len(b"".join(answer.headers.values())) < 2000
                assert len(answer.body) < 2000
                assert answer.body == b"{}" or answer.headers[b"content-type"] == b"application/json"


async def test_overlong_names_are_refused_or_cut(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    for path in (b"/workers/" + b"a" * 60_000, b"/v1/models/" + b"a" * 60_000, b"/" + b"%61" * 20_000):
        request = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % path
        (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
        assert answer.status in (404, 414)


async def test_the_preface_of_http_2_is_not_taken_for_a_request(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    (answer,) = await (await Attacker.connect(gateway)).send(preface).answers()
    assert answer.status == 400
