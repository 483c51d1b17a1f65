import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from fakes.console import MadeUpFleet

from router.console import EventStream, RateWindow, TooManyListeners
from router.console.stream import DECISIONS_PER_S, LISTENERS_MAX, QUEUED_MAX, Listener

LOOK_S = 0.02
Event = tuple[str, Any]


class Page:
    """The events that one listener hears."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.listener = stream.join()

    async def hear(self) -> Event | None:
        message = await asyncio.wait_for(self.listener.next(), 5.0)
        if message is None:
            return None
        head, data = message.decode().removesuffix("\n\n").split("\n")
        return head.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))

    async def until(self, kind: str) -> Any:
        while True:
            heard = await self.hear()
            assert heard is not None
            if heard[0] == kind:
                return heard[1]


class Scene:
    """A stream before a made-up fleet."""

    def __init__(self) -> None:
        self.fleet = MadeUpFleet(3, moving=0)
        self.ending = False
        self.rates = RateWindow(self.fleet)
        self.stream = EventStream(self.fleet, self.rates, lambda: self.ending, LOOK_S)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.stream.close()


async def test_a_page_is_told_everything_first_and_then_what_changes(scene: Scene) -> None:
    page = Page(scene.stream)

    state = await page.until("state")
    assert [row[state["worker_fields"].index("id")] for row in state["workers"]] == [
        each.id for each in scene.fleet.workers
    ]
    assert len(state["loads"]) == 3
    assert state["sections"]["policy"] == {"policy": "expected_cost"}

    scene.fleet.change(1, state="draining")
    changed: list[Any] = []
    while not changed:
        changed = (await page.until("change")).get("workers", [])
    assert [row[1] for row in changed] == [scene.fleet.workers[1].id]


async def test_what_did_not_change_is_not_sent_again(scene: Scene) -> None:
    page = Page(scene.stream)
    await page.until("state")

    for _ in range(4):
        change = await page.until("change")
        assert change.keys() <= {"at_unix_s", "sections"}
        assert change.get("sections", {}).keys() <= {"queue"}  # the made-up fleet draws the queue by lot


async def test_a_worker_that_is_gone_is_told_by_its_key(scene: Scene) -> None:
    page = Page(scene.stream)
    await page.until("state")
    del scene.fleet.workers[0]

    gone: list[int] = []
    while not gone:
        gone = (await page.until("change")).get("gone", [])
    assert gone == [0]


async def test_one_who_comes_later_is_told_the_whole_state_at_once(scene: Scene) -> None:
    first = Page(scene.stream)
    await first.until("state")
    await first.until("change")

    second = Page(scene.stream)
    heard = await second.hear()
    assert heard is not None
    assert heard[0] == "state"
    assert len(heard[1]["workers"]) == 3
    assert len(heard[1]["decisions"]) <= DECISIONS_PER_S


async def test_the_gateway_is_asked_once_for_all_and_only_while_somebody_listens(scene: Scene) -> None:
    await asyncio.sleep(3 * LOOK_S)
    assert scene.fleet.asked == 0

    pages = [Page(scene.stream) for _ in range(8)]
    heard = [await page.until("change") for page in pages]
    assert len({each["at_unix_s"] for each in heard}) == 1
    for page in pages:
        scene.stream.leave(page.listener)
    asked = scene.fleet.asked
    await asyncio.sleep(3 * LOOK_S)
    assert scene.fleet.asked == asked
    assert scene.stream.listeners == 0


async def test_what_takes_long_to_work_out_is_asked_seldom(scene: Scene) -> None:
    page = Page(scene.stream)
    for _ in range(7):
        await page.until("change")

    assert scene.fleet.slow_asked == 2


async def test_decisions_come_as_they_happen_and_the_others_are_counted(scene: Scene) -> None:
    scene.fleet.pace = 100
    page = Page(scene.stream)
    await page.until("state")

    told = await page.until("decisions")
    assert len(told["decisions"]) == 12
    assert told["skipped"] == 88
    again = await page.until("decisions")
    assert again["decisions"][0]["request_id"] == "req-188"


async def test_a_page_that_does_not_read_is_dropped(scene: Scene) -> None:
    slow = Page(scene.stream)
    eager = Page(scene.stream)
    while scene.stream.listeners == 2:
        await eager.hear()

    assert slow.listener.dropped
    assert await slow.hear() is None


def test_a_listener_keeps_no_more_than_its_bound() -> None:
    listener = Listener()
    for _ in range(QUEUED_MAX):
        listener.put(b"x")
    assert not listener.dropped

    listener.put(b"x")
    listener.put(b"x")
    assert listener.dropped
    assert listener._queue.qsize() == 1


async def test_there_is_room_for_so_many_pages_and_no_more(scene: Scene) -> None:
    pages = [scene.stream.join() for _ in range(LISTENERS_MAX)]
    with pytest.raises(TooManyListeners):
        scene.stream.join()

    scene.stream.leave(pages[0])
    scene.stream.join()


async def test_when_the_process_ends_pages_are_told_to_go_elsewhere(scene: Scene) -> None:
    page = Page(scene.stream)
    await page.until("state")
    scene.ending = True

    assert await page.until("end") == {}
    assert await page.hear() is None
    assert scene.stream.listeners == 0


async def test_a_look_that_fails_ends_the_stream_and_the_next_page_starts_it_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    sections = scene.fleet.sections

    async def broken(*, slow: bool) -> Any:
        raise RuntimeError("a bug")

    scene.fleet.sections = broken  # type: ignore[method-assign]
    page = Page(scene.stream)
    assert await page.until("end") == {}
    assert "the console's stream failed" in caplog.text

    scene.fleet.sections = sections  # type: ignore[method-assign]
    await Page(scene.stream).until("state")


async def test_messages_end_with_their_reader(scene: Scene) -> None:
    messages = scene.stream.messages(scene.stream.join())
    assert (await anext(messages)).startswith(b"event: state\ndata: {")
    await messages.aclose()

    assert scene.stream.listeners == 0
