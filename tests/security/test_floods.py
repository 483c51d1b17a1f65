"""A client opens connections, or sends requests, without end."""

import asyncio
import json
from collections import Counter

import pytest
from fakes.attacker import HEALTH, LAST, Attacker, post, worker
from fakes.running import Fleet, RunningGateway, until

from router.encoding import Encoding
from router.encoding.encoding import WAITING_MAX


async def refused(gateway: RunningGateway, reason: str) -> float:
    """Return the value of the metric."""
    lines = gateway.process.metrics.exposition()[0].decode().splitlines()
    prefix = f'cacheway_clients_refused_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(prefix)) for line in lines if line.startswith(prefix))


async def test_one_client_cannot_take_all_connections(fleet: Fleet) -> None:
    gateway = await fleet.gateway(server={"connections_per_client_max": 3})
    held = [await Attacker.connect(gateway, "127.0.0.2") for _ in range(3)]
    assert all([await each.is_served() for each in held])

    one_more = await Attacker.connect(gateway, "127.0.0.2")
    assert await one_more.send(HEALTH).received() == b""
    other = await Attacker.connect(gateway, "127.0.0.3")
    assert await other.is_served()
    assert await refused(gateway, "connections_per_client") == 1

    held[0].close()
    again = await Attacker.connect(gateway, "127.0.0.2")
    while not await again.is_served():  # the gateway hears of the end a moment later
        again = await Attacker.connect(gateway, "127.0.0.2")
    for each in (*held, other, again):
        each.close()


async def test_connections_are_bounded_in_all(fleet: Fleet) -> None:
    """Requests under way keep their places, and a new connection is closed; an idle one is closed for it."""
    answer = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with worker(serve) as url:
        gateway = await fleet.gateway(url, server={"connections_max": 5})
        await gateway.client.aclose()
        request = post(json.dumps({"model": "m", "prompt": "x"}).encode(), last=False)
        held = [await Attacker.connect(gateway, f"127.0.0.{number}") for number in range(2, 7)]
        for each in held:
            each.send(request)
        await until(lambda: gateway.process.gateway.sending.inflight == 5)

        assert await (await Attacker.connect(gateway)).send(HEALTH).received() == b""
        assert await refused(gateway, "connections") == 1
        assert b"cacheway_client_connections 5.0" in gateway.process.metrics.exposition()[0]

        answer.set()
        await until(lambda: gateway.process.gateway.sending.inflight == 0)
        new = await Attacker.connect(gateway)
        assert await new.is_served()
        assert await refused(gateway, "idle") == 1
        assert gateway.process.clients.clients.connections == 5
        for each in (*held, new):
            each.close()


async def test_without_a_limit_connections_are_bounded_by_the_files_there_are(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    clients = gateway.process.clients.clients
    assert clients.connections_max == gateway.server.config.files.requests_max


@pytest.mark.parametrize("path", [b"/health", b"/v1/models", b"/nowhere"])
async def test_a_client_that_asks_too_often_is_told_when_to_come_back(fleet: Fleet, path: bytes) -> None:
    gateway = await fleet.gateway(server={"requests_per_client_per_s": 0.01, "requests_per_client_burst": 3})
    flood = await Attacker.connect(gateway)
    answers = await flood.send(HEALTH.replace(b"/health", path) * 10).answers()

    assert [answer.status == 429 for answer in answers] == [False] * 3 + [True]
    error = json.loads(answers[3].body)["error"]
    assert (error["code"], error["type"]) == ("client_rate_limit_exceeded", "overloaded_error")
    assert 90 <= int(answers[3].headers[b"retry-after"]) <= 100
    assert await refused(gateway, "requests_per_client") == 1

    other = await Attacker.connect(gateway, "127.0.0.9")
    assert await other.is_served()
    other.close()


async def test_a_body_of_a_client_that_asks_too_often_is_not_read(fleet: Fleet) -> None:
    gateway = await fleet.gateway(server={"requests_per_client_per_s": 0.01, "requests_per_client_burst": 1})
    flood = await Attacker.connect(gateway)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 100000000\r\n\r\n"
    statuses = [answer.status for answer in await flood.send(HEALTH + head).answers()]
    assert statuses == [200, 429]


async def test_nobody_escapes_by_claiming_to_be_a_proxy(fleet: Fleet) -> None:
    gateway = await fleet.gateway(server={"requests_per_client_per_s": 0.01, "requests_per_client_burst": 1})
    statuses = []
    for number in range(3):
        claim = b"x-forwarded-for: 192.0.2.%d\r\nforwarded: for=192.0.2.%d\r\nx-real-ip: 192.0.2.%d\r\n"
        request = LAST.replace(b"\r\n\r\n", b"\r\n" + claim % (number, number, number) + b"\r\n")
        (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
        statuses.append(answer.status)
    assert statuses == [200, 429, 429]


async def test_behind_a_trusted_proxy_each_client_has_its_own_rate(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await fleet.gateway(
        server={
            "requests_per_client_per_s": 0.01,
            "requests_per_client_burst": 1,
            "connections_per_client_max": 1,
            "trusted_proxies": ["127.0.0.0/8"],
        }
    )
    statuses = []
    for number in (1, 2, 1):
        request = LAST.replace(b"\r\n\r\n", b"\r\nx-forwarded-for: 10.0.0.1, 192.0.2.%d\r\n\r\n" % number)
        (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
        statuses.append(answer.status)
    assert statuses == [200, 200, 429]
    assert [vars(record)["client"] for record in caplog.records if hasattr(record, "client")] == ["192.0.2.1"]


async def test_a_thousand_pipelined_requests_are_answered_in_order_and_hold_nobody_up(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    flood = await Attacker.connect(gateway)
    flood.send(HEALTH * 1000 + LAST)
    beside = await Attacker.connect(gateway, "127.0.0.2")
    assert await beside.is_served()  # while the flood goes on

    answers = await flood.answers()
    assert len(answers) == 1001
    assert {answer.status for answer in answers} == {200}
    beside.close()


REGISTRATION = json.dumps({"req_id": "part-1-1", "receive_url": "h:1"}).encode()


async def test_where_no_encoder_is_nothing_is_kept_of_the_calls_to_one(fleet: Fleet) -> None:
    """4,000 registrations with heads of 60 KB once took 180 MB, and kept them."""
    gateway = await fleet.gateway()
    for path in ("/scheduler_receive_url", "/send", "/scheduler_receive_meta_data", "/encode"):
        for _ in range(20):
            answer = await gateway.client.post(path, content=REGISTRATION, headers={"x-pad": "x" * 60_000})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    encoding = gateway.process.encoding
    assert isinstance(encoding, Encoding)
    assert (len(encoding.registrations), encoding.registrations.size_bytes) == (0, 0)


async def test_calls_that_wait_for_a_part_that_never_comes_are_bounded(fleet: Fleet) -> None:
    """Each looked for its part every 20 ms: 4,000 of them took 85 % of a core."""
    gateway = await fleet.gateway()
    gateway.process.registry.add("http://127.0.0.1:9", role="encode")
    callers = [await Attacker.connect(gateway) for _ in range(WAITING_MAX + 40)]
    for caller in callers:
        caller.send(post(REGISTRATION, path=b"/send"))
    answers = await asyncio.gather(*(caller.answers() for caller in callers))
    codes = Counter(answer.status for (answer,) in answers)
    assert codes == {404: WAITING_MAX, 429: 40}
