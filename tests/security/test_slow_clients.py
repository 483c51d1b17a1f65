"""A client is slow on purpose: it holds connections, memory and workers without asking for anything."""

import asyncio
import contextlib
import itertools
import json
import resource
from dataclasses import replace

import pytest
from fakes.attacker import Attacker, post, worker
from fakes.running import Fleet, RunningGateway, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 50\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        itertools.repeat(b""),
        itertools.chain([b"POST /v1/comp"], itertools.repeat(b"l")),
        itertools.chain([b"GET /health HTTP/1.1\r\nhost: g\r\n"], itertools.repeat(b"x: y\r\n")),
        itertools.chain([HEAD], itertools.repeat(b"x")),
        itertools.chain(
            [b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"],
            itertools.repeat(b"1\r\nx\r\n"),
        ),
        itertools.chain(
            [b"POST /workers HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n"],
            itertools.repeat(b"x"),
        ),
    ],
    ids=["nothing", "target", "headers", "body", "chunks", "body of the application"],
)
async def test_what_comes_a_byte_at_a_time_ends_at_the_deadline_of_the_whole(
    fleet: Fleet, pieces: "itertools.chain[bytes]"
) -> None:
    """A byte now and then buys no time. Answered with 408, or closed if nothing had begun."""
    gateway = await fleet.gateway(server={"read_timeout_s": 0.5})
    slow = await Attacker.connect(gateway)

    async def drip() -> None:
        for piece in pieces:
            slow.send(piece)
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    try:
        data = await slow.received()
    finally:
        dripping.cancel()
    assert data == b"" or data.startswith(b"HTTP/1.1 408 "), data


async def test_hundreds_of_half_open_requests_keep_nobody_from_being_served(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    starts = (b"", b"P", b"GET /health HTTP/1.1\r\n", HEAD, HEAD + b"{")
    slow = [
        (await Attacker.connect(gateway, f"127.0.0.{2 + number % 200}")).send(starts[number % 5])
        for number in range(400)
    ]
    answer = await gateway.client.post(
        "/v1/completions", json={"model": "emulated", "prompt": "x", "max_tokens": 1}
    )
    assert answer.status_code == 200
    for each in slow:
        each.close()


@contextlib.asynccontextmanager
async def endless_stream(piece: bytes):  # type: ignore[no-untyped-def]
    """A worker that streams as fast as it is read; how many bytes it could write, and whether it was left."""
    said = {"bytes": 0, "left": 0}

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                said["bytes"] += len(piece)
        finally:
            said["left"] += 1

    async with worker(serve) as url:
        yield url, said


async def streaming(gateway: RunningGateway) -> Attacker:
    """A client whose stream has begun."""
    body = json.dumps({"model": "m", "prompt": "x", "stream": True}).encode()
    client = (await Attacker.connect(gateway)).send(post(body))
    await client.reader.readuntil(b"\r\n\r\n")
    return client


async def test_a_stream_that_nobody_reads_stops_its_worker_fills_no_memory_and_ends(fleet: Fleet) -> None:
    """The sockets' buffers are the system's: some megabytes. We hold less than one read and one buffer."""
    async with endless_stream(b"data: " + b"x" * 8000 + b"\n\n") as (url, said):
        gateway = await fleet.gateway(url)
        protocol = gateway.process.protocol
        protocol.limits = replace(protocol.limits, stall_s_max=1.5)
        client = await streaming(gateway)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (connection,) = gateway.server.server_state.connections

        await until(lambda: connection.flow.write_paused)
        written = -1
        while said["bytes"] != written:
            written = said["bytes"]
            await asyncio.sleep(0.2)
        assert not said["left"]
        assert connection.transport.get_write_buffer_size() < 1 << 20
        assert written < 64 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 48 << 10

        await until(lambda: said["left"])  # the limit
        await until(gateway.idle)
        client.close()


async def test_a_client_that_reads_now_and_then_is_held_by_the_deadline_of_the_request(fleet: Fleet) -> None:
    """It reads just enough not to stall; its worker is free all the same when the request's time is over."""
    async with endless_stream(b"data: " + b"x" * 8000 + b"\n\n") as (url, said):
        gateway = await fleet.gateway(url, server={"request_timeout_s": 1.5})
        client = await streaming(gateway)

        async def sip() -> None:
            with contextlib.suppress(ConnectionError):
                while await client.reader.read(2**16):  # noqa: ASYNC110 - it is slow
                    await asyncio.sleep(0.05)

        sipping = asyncio.create_task(sip())
        await until(lambda: said["left"])
        sipping.cancel()
        client.close()


async def test_an_answer_that_nobody_takes_is_dropped_when_it_is_complete(fleet: Fleet) -> None:
    """The worker was done long ago; what is left is a connection with a full buffer."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = bytes(16 << 20)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with worker(serve) as url:
        gateway = await fleet.gateway(url)
        protocol = gateway.process.protocol
        protocol.limits = replace(protocol.limits, stall_s_max=0.5)
        client = await streaming(gateway)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: gateway.process.clients.clients.connections == 0)
        client.close()


async def test_connections_on_which_nothing_is_asked_close(fleet: Fleet) -> None:
    gateway = await fleet.gateway(server={"keepalive_s": 1, "read_timeout_s": 0.5})
    idle = [await Attacker.connect(gateway) for _ in range(20)]
    assert all([await each.is_served() for each in idle[:10]])  # ten were used once, ten never
    for each in idle:
        assert await each.received() == b""
    assert gateway.process.clients.clients.connections == 0
