"""``make console-picture``: the console's pictures in the documentation, from a real run.

    Valkey --+-- replica 1 <── locust
             |        `── emulated engines (one process), some of which begin to fail or are drained
             +-- replica 2 <── locust
                   ^
    this process: Chromium at replica 1's console, after the load has run for a while

Only the engines' compute time is emulated. Needs the extras ``dev`` and ``loadtest`` and Chromium.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from playwright.async_api import Page, async_playwright

from loadtest.processes import Child, ChildFailed, GatewayChild
from router.shared import EmbeddedValkey

DOCS = Path(__file__).parents[1] / "docs"
LOCUSTFILE = Path(__file__).with_name("locustfile.py")

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

SIZES = {"console.png": (1440, 1030, "light")}
"""Width, height and colours of each picture."""


def main() -> int:
    """Run the fleet and write the pictures; 1 if something did not come up."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.console_picture", description=__doc__)
    parser.add_argument("--engines", type=int, default=60, help="emulated engines [default 60]")
    parser.add_argument("--users", type=int, default=60, help="simulated users [default 60]")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load before the picture [default 10]")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pictures [default docs]")
    parser.add_argument("--all", action="store_true", help="also dark, a phone, and every page")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        print("console_picture: no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    try:
        asyncio.run(_run(options, browser))
    except ChildFailed as error:
        print(f"console_picture: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(options: argparse.Namespace, browser: str) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-picture-")))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        arguments = ["engine", "--port", "0", "--engines", str(options.engines)]
        arguments += ["--prefill-tokens-per-s", "8000", "--tpot-ms", "25"]
        engines = await stack.enter_async_context(Child("engines", arguments, folder))
        ready = await engines.wait_for_line("cacheway engine ready:")
        urls = [word for word in ready.split() if word.startswith("http://")]
        flags = ["--worker-urls", *urls, "--redis-url", valkey.url, "--log-level", "warning"]
        replicas = []
        for number in (1, 2):
            child = GatewayChild(f"gateway-{number}", [*flags, "--replica-id", f"gateway-{number}"], folder)
            replicas.append(await stack.enter_async_context(child))
        for replica in replicas:
            await replica.wait_until_ready()
            load = ["-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", replica.url]
            load += [
                "--users",
                str(options.users // 2),
                "--run-time",
                f"{round(options.minutes * 60) + 300}s",
            ]
            load += ["AgentUser", "ChatUser"]
            await stack.enter_async_context(Child(f"locust-{replica.port}", load, folder, "locust"))
        await asyncio.sleep(options.minutes * 60 - 20)
        async with httpx.AsyncClient(base_url=replicas[0].url, trust_env=False) as client:
            drained = urls[-1].removeprefix("http://")
            (await client.post(f"/workers/{drained}/drain")).raise_for_status()
        await _pictures(options, browser, replicas[0].url)


async def _pictures(options: argparse.Namespace, executable: str, url: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        sizes = dict(SIZES)
        if options.all:
            sizes |= {"dark.png": (1440, 1030, "dark"), "phone.png": (390, 844, "light")}
        for name, (width, height, scheme) in sizes.items():
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            await page.goto(url)
            await page.locator("html[data-live=live]").wait_for()
            await page.wait_for_timeout(15_000)
            await page.screenshot(path=options.out / name, full_page=name == "phone.png")
            if options.all:
                await _each_page(page, options.out, name)
            await page.close()
        await browser.close()


async def _each_page(page: Page, folder: Path, name: str) -> None:
    for title in ("Explain", "Tree", "Settings", "Audit"):
        await page.get_by_role("link", name=title).click()
        if title == "Explain":
            await page.locator("#explain-recent button").first.click()
        await page.wait_for_timeout(1_500)
        await page.screenshot(path=folder / f"{title.lower()}-{name}", full_page=True)


if __name__ == "__main__":
    sys.exit(main())
