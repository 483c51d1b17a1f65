"""What an operator reads at ``GET /queue``."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.gateway import FakeShared, VirtualTime, registry
from fakes.queue_ports import queue_ports
from fastapi import FastAPI

from policies import Placed, Reported, Waiting
from router.admin.queue_view import LISTED_MAX, STEP, add_queue_view, census
from router.settings import QueueSettings


class Setup:
    """Workers a and b."""

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared()
        workers = registry(self.shared, self.time)
        for name in ("a", "b"):
            local = workers.get(workers.add(f"http://{name}"))
            assert local is not None
            workers.probed(local, ok=True, refused=False, detail="")
        ports = queue_ports(self.shared, workers, self.time, settings)
        self.refusals = ports.refusals
        api = FastAPI()
        add_queue_view(api, ports)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost")

    @property
    def now_us(self) -> int:
        return self.time.clock.now_us()

    def waits(
        self,
        name: str,
        *,
        replica: str = "r1",
        flow: str = "normal/",
        worker: str = "",
        waited_s: float = 0.0,
        lane: str = "|",
    ) -> None:
        """Let a request of 100 uncached tokens, two seconds of work, wait."""
        now_us = self.now_us
        arrived_us = now_us - round(waited_s * 1e6)
        ticket = Waiting(
            name, now_us, replica, arrived_us, arrived_us, lane, worker, flow, 2_000_000, 100, 150
        )
        self.shared.publish(ticket)

    async def view(self) -> dict[str, Any]:
        answer = await self._client.get("/queue")
        assert answer.status_code == 200
        seen: dict[str, Any] = answer.json()
        return seen


def only(listed: list[dict[str, Any]], **like: Any) -> dict[str, Any]:
    (found,) = [each for each in listed if like.items() <= each.items()]
    return found


async def test_an_empty_queue_has_room_everywhere() -> None:
    view = await Setup(QueueSettings(size=10, tokens_max=0)).view()
    assert view["waiting"] == {"requests": 0, "uncached_tokens": 0, "service_s": 0.0, "oldest_wait_s": 0.0}
    assert view["bounds"] == {"requests_max": 10, "tokens_max": None, "drain_s_max": None, "timeout_s": 180.0}
    assert [view[name] for name in ("classes", "tenants", "lanes", "replicas")] == [[], [], [], []]
    assert [(worker["has_room"], worker["target_s"]) for worker in view["workers"]] == [(True, 0.5)] * 2


async def test_tickets_of_all_replicas_are_added_up_by_what_they_have_in_common() -> None:
    setup = Setup()
    setup.waits("1", flow="high/acme", waited_s=3.0, worker="a:80")
    setup.waits("2", flow="low/acme", waited_s=1.0, replica="r2")
    setup.waits("3", flow="low/", waited_s=2.0, replica="r2", lane="m|1")
    view = await setup.view()
    assert view["waiting"] == {"requests": 3, "uncached_tokens": 300, "service_s": 6.0, "oldest_wait_s": 3.0}
    low = only(view["classes"], **{"class": "low"})
    assert (low["requests"], low["oldest_wait_s"]) == (2, 2.0)
    assert {each["tenant"]: each["requests"] for each in view["tenants"]} == {"acme": 2, "": 1}
    assert {each["replica"]: each["requests"] for each in view["replicas"]} == {"r2": 2, "r1": 1}
    assert {each["id"]: each["waiting_for_it"] for each in view["workers"]} == {"a:80": 1, "b:80": 0}
    lane = only(view["lanes"], lane="|")
    assert (lane["model"], lane["bucket"]) == (None, None)
    assert lane["predicted_drain_s"] == 2.0, "4 s of work for two workers"
    assert only(view["lanes"], lane="m|1")["bucket"] == 1


async def test_a_worker_shows_why_it_gets_nothing() -> None:
    """One has a backlog above its target, the other as many requests as it runs."""
    setup = Setup()
    now_us = setup.now_us
    setup.shared.publish(Placed("p", now_us, "a:80", "r1", 4_000_000, 100, 150, (b"",)))
    for number in range(3):
        setup.shared.publish(Placed(f"q{number}", now_us, "b:80", "r2", 1000, 100, 150, (b"",)))
    a, b = (await setup.view())["workers"]
    assert (a["id"], a["has_room"], a["below_caps"]) == ("a:80", False, True)
    assert a["backlog_s"] == pytest.approx(4.0, abs=1e-5)
    assert (b["id"], b["has_room"], b["below_caps"], b["inflight_requests"]) == ("b:80", False, False, 3)
    assert (b["running_max"], b["kv_tokens_max"], b["report"]) == (3, None, None)


async def test_an_engines_report_tells_its_age_and_whether_it_counts() -> None:
    setup = Setup()
    setup.shared.publish(
        Reported(
            worker="a:80",
            at_us=setup.now_us,
            replica="r1",
            running=2,
            waiting=-1,
            kv_tokens=500,
            running_max=7,
            inflight_requests=0,
            inflight_tokens=0,
        )
    )
    setup.time.advance(1.5)
    a = (await setup.view())["workers"][0]
    assert a["report"] == {"age_s": 1.5, "fresh": True, "running": 2, "waiting": None, "kv_tokens": 500}
    assert a["running_max"] == 7
    setup.time.advance(60.0)
    assert (await setup.view())["workers"][0]["report"]["fresh"] is False


async def test_what_the_operators_page_tells_of_the_view_is_there() -> None:
    setup = Setup()
    setup.waits("1", worker="a:80")
    view = await setup.view()
    page = Path(__file__).parents[3] / "docs" / "pressure.md"
    table = (
        page.read_text().partition("`GET /queue` on any replica")[2].partition("\n\n")[2].partition("\n\n")[0]
    )
    names = set(re.findall(r"`([a-z_]+)`", table))
    assert {"waiting", "workers", "order", "refused", "predicted_drain_s"} <= names
    assert names - {*view, *view["lanes"][0], *view["workers"][0]} == set()


async def test_who_was_sent_away_is_seen() -> None:
    setup = Setup()
    setup.refusals.add("queue_full", "low/acme", 3.0)
    refused = (await setup.view())["refused"]
    assert refused["last_minute"] == {"queue_full": 1}
    assert refused["latest"][0]["flow"] == "low/acme"


async def test_without_a_queue_the_view_says_so() -> None:
    assert (await Setup().view())["enabled"] is True
    assert (await Setup(QueueSettings(disable_queue=True)).view())["enabled"] is False


async def test_tenants_beyond_those_listed_are_added_up() -> None:
    setup = Setup()
    for number in range(LISTED_MAX + 10):
        setup.waits(f"{number}", flow=f"normal/{number}")
    setup.waits("more", flow="normal/7")
    tenants = (await setup.view())["tenants"]
    assert len(tenants) == LISTED_MAX + 1
    assert (tenants[0]["tenant"], tenants[0]["requests"]) == ("7", 2)
    assert (tenants[-1]["tenant"], tenants[-1]["others"], tenants[-1]["requests"]) == (None, 10, 10)


async def test_counting_many_tickets_lets_others_go_on() -> None:
    setup = Setup()
    for number in range(2500):
        setup.waits(f"{number}")
    turns = 0
    other = asyncio.create_task(census(setup.shared.fleet.tickets))
    while not other.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await other).total.requests == 2500
    assert turns > 2500 // STEP
