"""HTTP as bytes on a real socket."""

import asyncio
from typing import Any

import pytest

from loadtest.engine import EmulatedEngine, EngineSettings, Fault

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: Any, *headers: Any) -> Any:
    lines = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.fixture
async def engine() -> Any:
    settings = EngineSettings(prefill_base_ms=1.0, tpot_ms=1.0, body_bytes_max=10_000)
    async with EmulatedEngine(settings) as engine:
        yield engine


async def talk(engine: EmulatedEngine, *pieces: Any) -> Any:
    """Send pieces, each in a segment of its own, and read until the engine closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    async with asyncio.timeout(60):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        answer = await reader.read()
    writer.close()
    return answer


CLOSE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def test_pipelined_requests_are_answered_in_order(engine: EmulatedEngine) -> None:
    slow = post(b'{"prompt": "x", "max_tokens": 5}')
    answer = await talk(engine, slow + GET + slow + GET * 50 + CLOSE)

    assert answer.count(b"HTTP/1.1 200 OK") == 54
    kinds = [b"text_completion" in part for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert kinds == [True, False, True] + [False] * 51


async def test_a_request_may_come_byte_by_byte(engine: EmulatedEngine) -> None:
    answer = await talk(engine, *(bytes([byte]) for byte in CLOSE))

    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_chunked_bodies_are_read(engine: EmulatedEngine) -> None:
    body = b'5\r\n{"pro\r\nf\r\nmpt": "hello"} \r\n0\r\n\r\n'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    assert (await talk(engine, head, body)).startswith(b"HTTP/1.1 200 OK")


async def test_a_client_that_waits_for_permission_to_send_gets_it(engine: EmulatedEngine) -> None:
    request = post(b'{"prompt": "x", "max_tokens": 1}', b"expect: 100-continue", b"connection: close")
    answer = await talk(engine, request)

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(engine: EmulatedEngine) -> None:
    body = b'{"prompt": "x", "max_tokens": 3, "stream": true}'
    request = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    answer = await talk(engine, request)

    assert b"chunked" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_a_body_over_the_limit_is_refused_before_it_is_all_there(engine: EmulatedEngine) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n" + b"x" * 10_001

    assert (await talk(engine, request)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("junk", [b"nonsense\r\n\r\n", b"\x00\x01", b"GET  HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_refused(engine: EmulatedEngine, junk: bytes) -> None:
    assert (await talk(engine, junk)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("stream", [b"false", b"true"])
async def test_a_fault_may_strike_between_head_and_body(engine: EmulatedEngine, stream: bytes) -> None:
    engine.inject(Fault("close", count=1, after_head=True))
    answer = await talk(engine, post(b'{"prompt": "x", "max_tokens": 5, "stream": ' + stream + b"}"))

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"\r\n\r\n")
