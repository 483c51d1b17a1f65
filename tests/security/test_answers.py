"""A hostile worker's answers: they reach clients without words in the name of the gateway or its host."""

import asyncio

import pytest
from fakes.attacker import Attacker, post, worker
from fakes.running import Fleet

BODY = b'{"model":"m","prompt":"x"}'

HOSTILE = [
    b"Set-Cookie: session=stolen; Domain=example.com",
    b"set-cookie2: a=b",
    b"Access-Control-Allow-Origin: https://evil.example",
    b"ACCESS-CONTROL-ALLOW-CREDENTIALS: true",
    b"Location: https://evil.example/",
    b"Refresh: 0; url=https://evil.example/",
    b"Link: <https://evil.example/>; rel=preload",
    b'Alt-Svc: h3="evil.example:443"; ma=86400',
    b"Strict-Transport-Security: max-age=0",
    b"Content-Security-Policy: default-src *",
    b"Content-Location: https://evil.example/",
    b'Clear-Site-Data: "*"',
    b"Service-Worker-Allowed: /",
    b"SourceMap: https://evil.example/",
    b"NEL: {}",
    b'Report-To: {"endpoints":[{"url":"https://evil.example"}]}',
    b'WWW-Authenticate: Basic realm="Cacheway"',
    b'Proxy-Authenticate: Basic realm="Cacheway"',
    b"Authorization: Bearer stolen",
    b"Server: evil/1.0",
    b"Via: 1.1 evil",
    b"Age: 1000000",
    b"X-Request-Id: evil",
    b"X-Cacheway-Worker: evil",
    b"x-cacheway-prefill-worker: evil",
    b"x-cacheway-cached-tokens: 1000000",
    b"x-cacheway-hops: 0",
    b"x-cacheway-anything: evil",
    b"x-ratelimit-limit-requests: 1000000",
    b"X-RateLimit-Remaining-Tokens: 1000000",
    b"X-Accel-Redirect: /etc/passwd",
    b"X-Sendfile: /etc/passwd",
    b"X-Reproxy-URL: https://evil.example/",
    b"X-Envoy-Immediate-Health-Check-Fail: 1",
    b"X-Forwarded-For: 10.0.0.1",
    b"X-Frame-Options: ALLOWALL",
    b"X-Powered-By: evil",
    b"Trailer: set-cookie",
    b"Keep-Alive: timeout=1",
]

HARMLESS = [
    b"content-type: application/json; charset=utf-8",
    b"cache-control: no-store",
    b"date: Tue, 24 Nov 2026 05:00:00 GMT",
    b"retry-after: 7",
    b"openai-processing-ms: 12",
    b"x-should-retry: false",
]

OURS = {b"x-request-id", b"x-cacheway-worker", b"x-cacheway-cached-tokens", b"connection"}


def pairs(lines: list[bytes]) -> dict[bytes, bytes]:
    return {line.partition(b":")[0].lower(): line.partition(b": ")[2] for line in lines}


@pytest.mark.parametrize("status", [b"200 OK", b"307 Moved", b"401 No", b"429 Busy"])
@pytest.mark.parametrize("framing", [b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n"])
async def test_a_client_sees_of_a_workers_headers_only_those_on_the_list(
    fleet: Fleet, status: bytes, framing: bytes
) -> None:
    """In its head, in an interim answer before it, and in its trailers."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = b"".join(b"%b\r\n" % line for line in (*HOSTILE, *HARMLESS))
        writer.write(b"HTTP/1.1 103 Hints\r\n%b\r\nHTTP/1.1 %b\r\n%b%b" % (lines, status, lines, framing))
        if b"chunked" in framing:
            writer.write(b"2\r\n{}\r\n0\r\n%b\r\n" % lines)

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        (answer,) = await (await Attacker.connect(gateway)).send(post(BODY)).answers()

    assert (answer.status, answer.body) == (int(status[:3]), b"{}")
    framed = {b"content-length"} if b"length" in framing else {b"transfer-encoding"}
    assert answer.headers.keys() == pairs(HARMLESS).keys() | OURS | framed
    assert {name: answer.headers[name] for name in pairs(HARMLESS)} == pairs(HARMLESS)
    said = b"".join(answer.headers.values())
    for value in (b"evil", b"1000000", b"stolen", b"passwd"):
        assert value not in said
    assert answer.headers[b"x-cacheway-worker"] == url.removeprefix("http://").encode()


async def test_an_operator_may_let_more_headers_pass_but_not_ours(fleet: Fleet) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Engine: 1\r\nX-Other: 1\r\ncontent-length: 2\r\n\r\n{}")

    async with worker(serve) as url:
        gateway = await fleet.gateway(url, upstream={"answer_headers": ["X-Engine"]})
        (answer,) = await (await Attacker.connect(gateway)).send(post(BODY)).answers()
    assert answer.headers[b"x-engine"] == b"1"
    assert b"x-other" not in answer.headers

    for name in ("x-request-id", "X-Cacheway-Worker", "x-ratelimit-limit-requests", "connection", "host"):
        with pytest.raises(ValueError, match="never reaches a client"):
            await fleet.gateway(upstream={"answer_headers": [name]})
