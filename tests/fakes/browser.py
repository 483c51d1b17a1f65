"""A real browser for tests of the console, or a clear reason to skip them."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """One browser; it ends with the test module."""
    assert CHROMIUM is not None
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(Path(CHROMIUM)),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def visited(
    browser: Browser, url: str, *, width: int = 1440, height: int = 1000, scheme: str = "light"
) -> AsyncIterator[Page]:
    """A page of its own profile, which must neither fail nor ask for anything forbidden."""
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None
    )
    try:
        await page.goto(url)
        yield page
        assert wrong == []
    finally:
        await context.close()


async def live(page: Page) -> None:
    """Wait until the page hears from the gateway."""
    await page.locator("html[data-live=live]").wait_for()
