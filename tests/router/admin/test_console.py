from html.parser import HTMLParser

import httpx
import pytest
from fakes.console import MadeUpFleet
from fakes.console_app import ConsoleApp, served
from fakes.running import until
from fastapi import FastAPI

from router.admin.console import add_console, read_assets
from router.console.stream import LISTENERS_MAX


@pytest.fixture
def client() -> httpx.AsyncClient:
    api = FastAPI()
    add_console(api, ConsoleApp(MadeUpFleet(0)).stream)
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost")


class Links(HTMLParser):
    """A page's loaded files and its forbidden contents."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.inline += [name for name in said if name == "style" or name.startswith("on")]
        self.inline += [tag for _ in (1,) if tag == "style" or (tag == "script" and not said.get("src"))]
        self.loaded += [
            value for name, value in attrs if name in ("src", "href") and value and value[0] != "#"
        ]


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_the_page_loads_only_its_own_files_and_holds_no_script_or_style(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.get(path)
    links = Links()
    links.feed(answer.text)

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert links.inline == []
    assert len(links.loaded) == 5
    for loaded in links.loaded:
        assert (await client.get(f"/{loaded}")).status_code == 200


async def test_every_answer_forbids_whatever_is_not_the_pages_own(client: httpx.AsyncClient) -> None:
    for path in ("/", "/console/assets/main.js", "/console/assets/console.css", "/console/assets/icon.svg"):
        policy = (await client.get(path)).headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
        )


async def test_a_file_is_sent_again_only_if_it_changed(client: httpx.AsyncClient) -> None:
    first = await client.get("/console/assets/main.js")
    again = await client.get("/console/assets/main.js", headers={"if-none-match": first.headers["etag"]})

    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2f__init__.py", "console.py"])
async def test_nothing_else_can_be_read(name: str) -> None:
    api = FastAPI()
    add_console(api, ConsoleApp(MadeUpFleet(0)).stream)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(api, raise_app_exceptions=False), base_url="http://localhost"
    ) as client:
        assert (await client.get(f"/console/assets/{name}")).status_code != 200


def test_no_file_of_the_page_makes_markup_from_text_or_asks_anybody_else() -> None:
    """``http://www.w3.org/`` is a namespace, which no browser requests."""
    for name, asset in read_assets().items():
        text = asset.body.decode()
        if name == "uplot.js":  # its first line says where it comes from
            head, _, text = text.partition("\n")
            assert head == "/*! https://github.com/leeoniya/uPlot (v1.6.32) */"
            assert "innerHTML" not in text
        for forbidden in (
            "innerHTML =",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "https://",
        ):
            assert forbidden not in text, name
        assert text.count("http://") == text.count("http://www.w3.org/"), name


async def test_events_are_a_stream_that_nobody_keeps_back() -> None:
    async with served(ConsoleApp(MadeUpFleet(2))) as app, httpx.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", f"{app.url}/events") as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-accel-buffering"] == "no"
            async for line in answer.aiter_lines():
                assert line == "event: state"
                break
        await until(lambda: app.stream.listeners == 0)  # the stream notices that a page is closed


async def test_one_page_too_many_is_told_so() -> None:
    app = ConsoleApp(MadeUpFleet(1))
    taken = [app.stream.join() for _ in range(LISTENERS_MAX)]
    async with served(app), httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{app.url}/events")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "too_many_listeners"
    assert len(taken) == LISTENERS_MAX
