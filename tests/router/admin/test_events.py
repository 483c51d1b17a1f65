import httpx
from fakes.console import MadeUpFleet
from fakes.console_app import ConsoleApp, served
from fakes.running import until

from router.console.stream import LISTENERS_MAX


async def test_events_are_a_stream_that_nobody_keeps_back() -> None:
    async with served(ConsoleApp(MadeUpFleet(2))) as app, httpx.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", f"{app.url}/events") as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-accel-buffering"] == "no"
            async for line in answer.aiter_lines():
                assert line == "event: state"
                break
        await until(lambda: app.stream.listeners == 0)  # a page that is closed is noticed


async def test_one_page_too_many_is_told_so() -> None:
    app = ConsoleApp(MadeUpFleet(1))
    taken = [app.stream.join() for _ in range(LISTENERS_MAX)]
    async with served(app), httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{app.url}/events")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "too_many_listeners"
    assert len(taken) == LISTENERS_MAX
