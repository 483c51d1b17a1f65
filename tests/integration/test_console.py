"""The console's page in a real browser, before a real gateway with real engines: nothing is made up here."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fakes.browser import chromium, live, needs_chromium, visited
from fakes.running import Fleet, RunningGateway, until
from playwright.async_api import Browser, expect

from loadtest.processes import free_port

pytestmark = needs_chromium


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


async def asked(gateway: RunningGateway, text: str = "word " * 2000, **more: Any) -> None:
    body = {"model": "emulated", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
    answer = await gateway.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_an_operator_sees_requests_drains_a_worker_and_switches_the_policy(
    fleet: Fleet, browser: Browser
) -> None:
    engines = [await fleet.engine() for _ in range(3)]
    gateway, other = [await fleet.gateway(*(engine.url for engine in engines)) for _ in range(2)]
    await until(lambda: other.process.shared.status.ready and gateway.process.shared.status.ready)

    async with visited(browser, gateway.url) as page:
        await live(page)
        await expect(page.locator("#map .cell")).to_have_count(3)
        await expect(page.locator("#workers-sum")).to_contain_text("3 of 3 healthy")

        for _ in range(5):
            await asked(gateway, stream=True, stream_options={"include_usage": True})
        decisions = page.locator("#decisions li")
        await expect(decisions).to_have_count(5)
        await expect(decisions.first).to_contain_text("affinity")
        await decisions.first.get_by_role("button").click()
        panel = page.locator("#inspector")
        await expect(panel).to_contain_text(
            "is the policy's choice, and has the longest start of the prompt cached."
        )

        # The samples come every few seconds: hits of both replicas together.
        await asked(other, stream=True, stream_options={"include_usage": True})
        await expect(page.get_by_role("img", name=re.compile("^Hit rate.*now [1-9]"))).to_be_visible(
            timeout=60_000
        )
        replicas = page.get_by_role("table", name="Replicas of this gateway")
        for each in (gateway, other):
            await expect(replicas).to_contain_text(each.process.replica)

        worker_id = engines[0].url.removeprefix("http://")
        await page.get_by_role("button", name=re.compile(f"^{worker_id},")).click()
        await panel.get_by_role("button", name="Drain …").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain it").click()
        await expect(panel).to_contain_text("Nothing is in flight there: it can be stopped.")
        drained = other.process.registry.get(worker_id)
        assert drained is not None
        await until(lambda: drained.worker.draining)  # by all replicas
        await panel.get_by_role("button", name="Put back in service …").click()
        await page.get_by_role("dialog").get_by_role("button", name="Put it back").click()
        await expect(page.locator("#workers-sum")).to_contain_text("3 of 3 healthy")

        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Switch policy …").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Policy").select_option("least_load")
        await dialog.get_by_role("button", name="Switch").click()
        await expect(page.locator("#policy")).to_contain_text("least_load")
        await until(lambda: other.process.settings.placement.policy == "least_load")


async def test_it_is_served_by_the_admin_port_and_asks_for_the_key(fleet: Fleet, browser: Browser) -> None:
    engine, port = await fleet.engine(), free_port()
    gateway = await fleet.gateway(
        engine.url, admin={"port": port}, server={"api_key": "ours"}, fleet={"health_check_interval_s": 0.2}
    )

    async with visited(browser, f"http://127.0.0.1:{port}/admin/console") as page:
        dialog = page.get_by_role("dialog", name="Token of the admin API")
        await dialog.get_by_label("Token").fill("ours")
        await dialog.get_by_role("button", name="Use it").click()
        await live(page)
        await expect(page.locator("#map .cell")).to_have_count(1)

        engine.close()
        await expect(page.locator("#troubles")).to_contain_text("No worker takes requests")
    assert (await gateway.client.get("/console")).status_code in (401, 404)


async def test_a_page_does_not_keep_a_gateway_from_ending_and_finds_it_again(
    fleet: Fleet, browser: Browser
) -> None:
    engine, port = await fleet.engine(), free_port()
    first = await fleet.gateway(engine.url, server={"port": port})
    async with visited(browser, first.url) as page:
        await live(page)
        first.server.should_exit = True
        await first.task
        await expect(page.locator("#troubles")).to_contain_text("The stream is lost")

        fleet.gateways.clear()
        await fleet.gateway(engine.url, server={"port": port})
        await live(page)
        await expect(page.locator("#map .cell")).to_have_count(1)


@pytest.mark.parametrize("path", ["/", "/console", "/admin/console"])
async def test_the_page_is_there_without_a_key_and_the_stream_is_not(fleet: Fleet, path: str) -> None:
    gateway = await fleet.gateway(server={"api_key": "ours"})

    assert "Cacheway" in (await gateway.client.get(path)).text
    assert (await gateway.client.get("/events")).status_code == 401
