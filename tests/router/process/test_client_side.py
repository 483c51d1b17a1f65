"""The client's side of a process: ports beside the data port, and limits."""

import contextlib

import httpx
from fakes.process import built, running, settings
from fakes.running import until_async

from loadtest.processes import free_port
from router.rules import client_limits, scrape_limits


async def test_metrics_may_have_a_listener_of_their_own() -> None:
    port = free_port()
    process = await built(observability={"prometheus_port": port, "prometheus_host": "127.0.0.1"})

    async def scraped() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return "cacheway_build_info" in (await other.get(f"http://127.0.0.1:{port}/metrics")).text
        return False

    async with running(process), httpx.AsyncClient(trust_env=False) as other:
        await until_async(scraped)


async def test_new_limits_reach_every_protocol_and_listener() -> None:
    process = await built(observability={"prometheus_port": free_port()})
    new = settings(server={"read_timeout_s": 7})
    process.clients.use(new)
    assert process.protocol.limits == client_limits(new.server)
    (listener, scrapes), *_ = process.clients._listeners
    assert scrapes
    assert listener.limits == scrape_limits(new.server)
