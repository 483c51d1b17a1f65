"""Gateways that lead back to themselves: a request goes round a few times, and ends with 508."""

import asyncio
import re

from fakes.running import Fleet, RunningGateway, until

from loadtest.processes import free_port

BODY = {"model": "emulated", "prompt": "hello", "max_tokens": 1}


def healthy(gateway: RunningGateway) -> bool:
    return all(local.state == "healthy" for local in gateway.process.registry.all())


async def requests(gateway: RunningGateway) -> int:
    """Return the number of answers of a gateway so far, to its own clients and the other gateway."""
    metrics = (await gateway.client.get("/metrics")).text
    return sum(round(float(n)) for n in re.findall(r"^cacheway_requests_total{.*} (\S+)$", metrics, re.M))


async def circle(fleet: Fleet, **server: object) -> tuple[RunningGateway, RunningGateway]:
    """Two gateways, each the only worker of the other."""
    ports = free_port(), free_port()
    one, other = [
        await fleet.gateway(
            f"http://127.0.0.1:{theirs}",
            server={"port": ours, **server},
            shared={"namespace": f"{fleet.namespace}-{ours}"},
        )
        for ours, theirs in (ports, ports[::-1])
    ]
    await until(lambda: healthy(one) and healthy(other))
    return one, other


async def test_a_request_that_goes_in_circles_ends_after_a_few_hops(fleet: Fleet) -> None:
    """The fourth hop is refused, and no gateway tries again."""
    one, other = await circle(fleet)
    for stream in (False, True):
        answer = await one.client.post("/v1/completions", json=BODY | {"stream": stream})
        assert answer.status_code == 508
        assert answer.json()["error"]["code"] == "loop_detected"
        assert "leads back" in answer.json()["error"]["message"]
    assert (await requests(one), await requests(other)) == (4, 4)
    await asyncio.gather(*(until(gateway.idle) for gateway in (one, other)))


async def test_a_client_gains_nothing_by_the_header(fleet: Fleet) -> None:
    """The request is refused earlier; its header never replaces a gateway's."""
    one, other = await circle(fleet)
    for said in ("3", "99"):
        answer = await one.client.post("/v1/completions", json=BODY, headers={"x-cacheway-hops": said})
        assert answer.status_code == 508
    assert (await requests(one), await requests(other)) == (2, 0)
    for said in ("-5", "abc", "9" * 400, "0, 0"):
        answer = await one.client.post("/v1/completions", json=BODY, headers={"x-cacheway-hops": said})
        assert answer.status_code == 400
    for headers in (
        {"x-cacheway-hops": "0"},
        {"x-cacheway-hops": "0", "connection": "x-cacheway-hops"},
        {"X-Cacheway-Hops": "1"},
    ):
        assert (await one.client.post("/v1/completions", json=BODY, headers=headers)).status_code == 508
    assert await requests(one) + await requests(other) <= 6 + 3 * 4
    await asyncio.gather(*(until(gateway.idle) for gateway in (one, other)))


async def test_three_gateways_in_a_row_are_no_loop(fleet: Fleet) -> None:
    engine = await fleet.engine()
    url = engine.url
    for _ in range(3):
        gateway = await fleet.gateway(url, shared={"namespace": f"{fleet.namespace}-{free_port()}"})
        await until(lambda: healthy(fleet.gateways[-1]))
        url = gateway.url
    answer = await gateway.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200
