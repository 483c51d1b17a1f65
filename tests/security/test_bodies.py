"""A client makes the gateway hold bytes: without a key, or more than fit into memory."""

import asyncio
import json
from pathlib import Path

import pytest
from fakes.attacker import Attacker, post, worker
from fakes.running import Fleet, RunningGateway, until

MIB = 1 << 20
BODY = json.dumps({"model": "m", "prompt": "x" * (900 << 10), "max_tokens": 1}).encode()
SMALL = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1}).encode()
HELD = {"held_bytes_max": 2 * MIB, "body_bytes_max": MIB}


def held(gateway: RunningGateway) -> int:
    """Return the value of the metric."""
    for line in gateway.process.metrics.exposition()[0].decode().splitlines():
        if line.startswith("cacheway_held_body_bytes "):
            return int(float(line.partition(" ")[2]))
    raise AssertionError


def counted(gateway: RunningGateway, outcome: str) -> float:
    """Return the number of requests of an outcome."""
    lines = gateway.process.metrics.exposition()[0].decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("cacheway_requests_total{") and f'outcome="{outcome}"' in line
    )


def head(path: bytes, length: int, *lines: bytes) -> bytes:
    """The head of a request whose body does not come with it."""
    return post(b"", *lines, path=path, length=length, last=False)


@pytest.mark.parametrize("key", [(), (b"authorization: Bearer wrong",), (b"x-api-key: wrong",)])
@pytest.mark.parametrize("expect", [(), (b"expect: 100-continue",)])
async def test_a_stranger_s_body_is_neither_asked_for_nor_read(
    fleet: Fleet, key: tuple[bytes, ...], expect: tuple[bytes, ...]
) -> None:
    """Eight strangers with 60 MB each once took 480 MB."""
    gateway = await fleet.gateway(server={"api_key": "the-key"})
    paths = (b"/v1/completions", b"/v1/chat/completions", b"/generate", b"/encode")
    strangers = [await Attacker.connect(gateway) for _ in range(8)]
    for number, stranger in enumerate(strangers):
        stranger.send(
            head(paths[number % 4], 60_000_000, *key, *expect) + (b"" if expect else bytes(300_000))
        )
    for stranger in strangers:
        (answer,) = await stranger.answers()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers[b"connection"] == b"close"
        assert held(gateway) == 0
    assert counted(gateway, "invalid_api_key") == 6, "calls of encoders are counted by their parts"


async def test_a_chunked_body_of_a_stranger_is_not_read_either(fleet: Fleet, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("tenants: {}\n")
    gateway = await fleet.gateway(tenancy={"keys_file": str(keys)})
    stranger = await Attacker.connect(gateway)
    stranger.send(
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    (answer,) = await stranger.answers()
    assert answer.status == 401
    assert held(gateway) == 0


@pytest.mark.parametrize(
    "path", [b"/explain", b"/workers", b"/v1/models", b"/nowhere", b"/register_encoder_url"]
)
async def test_the_application_buffers_nothing_for_strangers(fleet: Fleet, path: bytes) -> None:
    gateway = await fleet.gateway(server={"api_key": "the-key"})
    stranger = await Attacker.connect(gateway)
    stranger.send(head(path, 60_000_000, b"expect: 100-continue"))
    assert (await stranger.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
    stranger.send(bytes(4_000_000))
    assert await stranger.reader.readuntil(b"}}")
    assert held(gateway) == 0
    stranger.close()


async def test_a_key_still_sends_a_body_when_it_is_asked_for(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, server={"api_key": "the-key"})
    body = json.dumps({"model": "emulated", "prompt": "x" * 100_000, "max_tokens": 1}).encode()
    client = await Attacker.connect(gateway)
    client.send(
        head(b"/v1/completions", len(body), b"authorization: Bearer the-key", b"expect: 100-continue")
    )
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    client.close()


async def test_bodies_that_come_in_are_bounded_and_are_forgotten_with_their_clients(fleet: Fleet) -> None:
    """The third has no room; a small request still has."""
    gateway = await fleet.gateway(server=HELD)
    holders = [await Attacker.connect(gateway) for _ in range(2)]
    for holder in holders:
        holder.send(head(b"/v1/completions", MIB) + bytes(MIB - 10))
    await until(lambda: held(gateway) == 2 * MIB)

    late = await Attacker.connect(gateway)
    (answer,) = await late.send(head(b"/v1/completions", MIB, b"expect: 100-continue")).answers()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (429, "held_bytes_exceeded")
    assert int(answer.headers[b"retry-after"]) >= 1
    small = await Attacker.connect(gateway)
    (answer,) = await small.send(post(SMALL)).answers()
    assert json.loads(answer.body)["error"]["code"] == "no_worker_available"
    assert (
        b'cacheway_clients_refused_total{reason="held_bytes"} 1.0' in gateway.process.metrics.exposition()[0]
    )

    holders[0].close()
    await until(lambda: held(gateway) == MIB)
    holders[1].send(bytes(10))
    await until(lambda: held(gateway) == 0)
    holders[1].close()


async def test_lengths_that_are_declared_and_do_not_come_keep_nobody_out(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, server=HELD)
    slow = [await Attacker.connect(gateway) for _ in range(40)]
    for each in slow:
        each.send(head(b"/v1/completions", MIB) + b"{")
    await until(lambda: held(gateway) == 2 * len(slow))
    answer = await gateway.client.post(
        "/v1/completions", json={"model": "emulated", "prompt": "x" * 900_000, "max_tokens": 1}
    )
    assert answer.status_code == 200
    for each in slow:
        each.close()
    await until(lambda: held(gateway) == 0)


async def test_bodies_that_wait_or_are_in_flight_are_bounded(fleet: Fleet) -> None:
    """One is at the worker, one waits for it; 120 requests with 8 MB each once took 1 GB."""
    asked = asyncio.Event()

    async def never(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    async with worker(never) as url:
        gateway = await fleet.gateway(url, server=HELD, admission={"worker_running_max": 1})
        clients = [await Attacker.connect(gateway) for _ in range(2)]
        clients[0].send(post(BODY))
        await asked.wait()
        clients[1].send(post(BODY))
        await until(lambda: len(gateway.process.gateway.placing.room) == 1)
        assert held(gateway) == 2 * len(BODY)
        for _ in range(5):
            late = await Attacker.connect(gateway)
            (answer,) = await late.send(post(BODY)).answers()
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (429, "held_bytes_exceeded")
            assert int(answer.headers[b"retry-after"]) >= 1
        for client in clients:
            client.close()
        await until(lambda: held(gateway) == 0)
        assert counted(gateway, "held_bytes_exceeded") == 5


async def test_a_body_is_let_go_when_its_answer_begins(fleet: Fleet) -> None:
    """A long answer must not keep a long prompt."""

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        writer.write(b"9\r\ndata: a\n\n\r\n")
        await reader.read()

    async with worker(begins) as url:
        gateway = await fleet.gateway(url, server=HELD)
        client = await Attacker.connect(gateway)
        client.send(post(BODY[:-1] + b',"stream":true}'))
        await client.reader.readuntil(b"data: a")
        assert held(gateway) == 0
        client.close()


async def test_a_bound_that_is_changed_while_the_gateway_serves_counts_at_once(fleet: Fleet) -> None:
    gateway = await fleet.gateway(server={"body_bytes_max": MIB})
    holder = await Attacker.connect(gateway)
    holder.send(head(b"/v1/completions", MIB) + bytes(MIB - 10))
    await until(lambda: held(gateway) == MIB)
    answer = await gateway.client.patch("/settings", json={"values": {"server.held_bytes_max": MIB}})
    assert answer.status_code == 200
    late = await Attacker.connect(gateway)
    (refused,) = await late.send(head(b"/v1/completions", MIB)).answers()
    assert refused.status == 429
    holder.close()
    await until(lambda: held(gateway) == 0)


@pytest.mark.parametrize(
    ("retries", "after_s", "sent"),
    [
        ({"disable_retries": True}, 0.4, 1),
        ({"disable_retries": True}, 0.0, 1),
        ({"retry_max_retries": 1}, 0.4, 2),
        ({"retry_max_retries": 1}, 0.0, 3),
    ],
)
async def test_a_request_that_breaks_its_worker_is_not_sent_again_and_again(
    fleet: Fleet, retries: dict[str, object], after_s: float, sent: int
) -> None:
    """A kept connection that closed was taken for stale after any working time of the worker.

    A redispatch asks the only worker a second time. A connection that closes at once may have been stale:
    then the gateway pays for one more.
    """
    seen: list[int] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        if len(seen) == 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        await asyncio.sleep(after_s)
        writer.close()
        raise ConnectionAbortedError

    async with worker(serve) as url:
        gateway = await fleet.gateway(url, reliability=retries)
        first = await gateway.client.post("/v1/completions", content=SMALL)
        assert first.status_code == 200
        second = await gateway.client.post("/v1/completions", content=SMALL)
        assert second.status_code == 502
        assert len(seen) == 1 + sent
        metrics = gateway.process.metrics.exposition()[0]
        assert (b'cacheway_redispatches_total{reason="stale_connection"} 1.0' in metrics) == (sent == 3)
