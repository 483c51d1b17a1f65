"""A worker that breaks off wherever it can: a client parses whole events, then the error."""

import asyncio
import json

import pytest
from fakes.attacker import Attacker, post, worker
from fakes.running import Fleet, RunningGateway, until

from router.gateway.whole_events import HELD_BYTES_MAX

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n%b\r\n"
)
BODY = b'{"model":"m","prompt":"x","stream":true}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def events(body: bytes) -> list[bytes]:
    """The data of each event, as a client of the specification reads them (HTML, 9.2.6)."""
    found, data = [], []
    for line in body.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            found.append("\n".join(data).encode("latin-1"))
            data = []
    return found


async def asked(gateway: RunningGateway) -> bytes:
    """All that a client receives."""
    return await (await Attacker.connect(gateway)).send(post(BODY)).received()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
async def test_no_half_event_comes_before_the_error(fleet: Fleet, end: bytes) -> None:
    """Broken off behind each byte of an event, and each of them a read of its own."""
    first = b'data: {"n":1}' + end * 2
    second = b": ping" + end + b"event: x" + end + b'data: {"n":2}' + end * 2
    sent = iter(range(len(second)))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % b"" + chunk(first))
        for byte in second[: next(sent)]:
            await writer.drain()
            writer.write(chunk(bytes([byte])))
        writer.close()

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        for _ in second:
            (answer,) = await (await Attacker.connect(gateway)).send(post(BODY)).answers()
            read = [json.loads(event) for event in events(answer.body)]
            assert read[0] == {"n": 1}
            assert read[-1]["error"]["code"] == "upstream_stream_broken"
            assert len(read) == 2 or read[1] == {"n": 2}
            assert answer.body.startswith(first)


async def test_a_stream_that_breaks_in_its_first_event_is_tried_elsewhere(fleet: Fleet) -> None:
    """The client has seen nothing of it; it sees the error as an answer of its own, and no half event."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % b"" + chunk(b'data: {"n":'))
        writer.close()

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        (answer,) = await (await Attacker.connect(gateway)).send(post(BODY)).answers()
        assert answer.status == 502
        assert json.loads(answer.body)["error"]["code"] == "upstream_stream_broken"


@pytest.mark.parametrize(
    ("lines", "piece"),
    [(b"", b"data: " + b"x" * 2 * HELD_BYTES_MAX), (b"content-encoding: gzip\r\n", b"\x1f\x8b\x08")],
    ids=["too long to be held", "packed"],
)
async def test_where_no_error_event_can_follow_the_connection_is_cut(
    fleet: Fleet, lines: bytes, piece: bytes
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % lines + chunk(piece))
        await writer.drain()
        writer.close()

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        data = await asked(gateway)
        assert b"error" not in data
        assert not data.endswith(b"0\r\n\r\n")
        await until(gateway.idle)


async def test_what_is_held_is_passed_on_when_the_stream_ends_in_order(fleet: Fleet) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % b"" + chunk(b"data: 1\n\nda") + chunk(b"ta: [DONE]") + b"0\r\n\r\n")

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        (answer,) = await (await Attacker.connect(gateway)).send(post(BODY)).answers()
        assert answer.body == b"data: 1\n\ndata: [DONE]"
