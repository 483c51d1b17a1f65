"""The client's side of a process: ports beside the data port, and limits."""

import contextlib
import sys

import httpx
from fakes.process import built, running, settings
from fakes.running import until_async

from loadtest.processes import free_port
from router.process.client_side import scrape_limits
from router.settings import ServerSettings


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
    assert process.protocol.limits == new.server
    (listener, scrapes), *_ = process.clients._listeners
    assert scrapes
    assert listener.limits == scrape_limits(new.server)


async def test_any_change_of_settings_makes_known_heads_unknown() -> None:
    """Their routes may have changed, and heads are known as long as the limits are the same object."""
    process = await built()
    before = process.protocol.limits
    process.clients.use(settings(upstream={"pass_through": ["/v1/more"]}))
    assert process.protocol.limits == before
    assert process.protocol.limits is not before


async def test_the_longest_body_can_be_held_whatever_the_bound() -> None:
    for held, longest, bound in ((0, 4096, 0), (2048, 4096, 4096), (8192, 4096, 8192)):
        server = {"held_bytes_max": held, "body_bytes_max": longest}
        assert (await built(server=server)).clients.held._bytes_max == (bound or sys.maxsize)


def test_a_scraper_may_do_what_a_client_may_but_send_a_body() -> None:
    limits = scrape_limits(ServerSettings(read_timeout_s=7, header_count_max=9))
    assert (limits.body_bytes_max, limits.read_timeout_s, limits.header_count_max) == (0, 7, 9)
