"""The view at ``GET /queue``."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.admin import Setup, code

from policies import Expire, Placed, Reported, Waiting
from router.admin.queue_view import LISTED_MAX, STEP, census


class Queue(Setup):
    """A setup with workers a and b."""

    def __init__(self, **queue: Any) -> None:
        super().__init__(queue=queue, admission={"worker_running_max": 3})
        self.add("a", "b")
        self.refusals = self.bench.gateway.reports.refusals

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
        answer = await self.client.get("/queue")
        assert answer.status_code == 200
        seen: dict[str, Any] = answer.json()
        return seen


def only(listed: list[dict[str, Any]], **like: Any) -> dict[str, Any]:
    (found,) = [each for each in listed if like.items() <= each.items()]
    return found


async def test_an_empty_queue_has_room_everywhere() -> None:
    view = await Queue(size=10, tokens_max=0).view()
    assert view["waiting"] == {"requests": 0, "uncached_tokens": 0, "service_s": 0.0, "oldest_wait_s": 0.0}
    assert view["bounds"] == {"requests_max": 10, "tokens_max": None, "drain_s_max": None, "timeout_s": 180.0}
    assert [view[name] for name in ("classes", "tenants", "lanes", "replicas")] == [[], [], [], []]
    assert [(worker["has_room"], worker["target_s"]) for worker in view["workers"]] == [(True, 0.5)] * 2


async def test_tickets_of_all_replicas_are_added_up_by_what_they_have_in_common() -> None:
    setup = Queue()
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
    """One worker has a backlog above its target, the other as many requests as it runs."""
    setup = Queue()
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
    setup = Queue()
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
    setup = Queue()
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
    setup = Queue()
    setup.refusals.add("queue_full", "low/acme", 3.0)
    refused = (await setup.view())["refused"]
    assert refused["last_minute"] == {"queue_full": 1}
    assert refused["latest"][0]["flow"] == "low/acme"


async def test_without_a_queue_the_view_says_so() -> None:
    assert (await Queue().view())["enabled"] is True
    assert (await Queue(disable_queue=True).view())["enabled"] is False


async def test_tenants_beyond_those_listed_are_added_up() -> None:
    setup = Queue()
    for number in range(LISTED_MAX + 10):
        setup.waits(f"{number}", flow=f"normal/{number}")
    setup.waits("more", flow="normal/7")
    tenants = (await setup.view())["tenants"]
    assert len(tenants) == LISTED_MAX + 1
    assert (tenants[0]["tenant"], tenants[0]["requests"]) == ("7", 2)
    assert (tenants[-1]["tenant"], tenants[-1]["others"], tenants[-1]["requests"]) == (None, 10, 10)


async def test_counting_many_tickets_lets_others_go_on() -> None:
    setup = Queue()
    for number in range(2500):
        setup.waits(f"{number}")
    turns = 0
    other = asyncio.create_task(census(setup.shared.fleet.tickets))
    while not other.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await other).total.requests == 2500
    assert turns > 2500 // STEP


def waits(
    setup: Setup,
    name: str,
    *,
    replica: str = "r1",
    flow: str = "normal/acme",
    worker: str = "",
    key_s: float = 0.0,
    lane: str = "m|",
) -> None:
    """Let a request of 100 uncached tokens, two seconds of work, wait since a second."""
    now_us = setup.time.clock.now_us()
    arrived_us, key_us = now_us - 1_000_000, now_us + round(key_s * 1e6)
    setup.shared.publish(
        Waiting(name, now_us, replica, arrived_us, key_us, lane, worker, flow, 2_000_000, 100, 150)
    )


async def listed(setup: Setup, query: str = "") -> list[str]:
    told = (await setup.client.get(f"/queue/tickets{query}")).json()
    assert told["total"] >= len(told["tickets"])
    return [ticket["ticket"] for ticket in told["tickets"]]


async def test_tickets_of_all_replicas_are_listed_in_their_order(setup: Setup) -> None:
    setup.add("a")
    waits(setup, "later", key_s=2)
    waits(setup, "first", key_s=1, replica="r2", worker="a:80", flow="high/other", lane="n|")
    assert await listed(setup) == ["first", "later"]
    assert await listed(setup, "?limit=1") == ["first"]
    for query in ("class=high", "tenant=other", "lane=n|", "replica=r2"):
        assert await listed(setup, f"?{query}") == ["first"]
    assert await listed(setup, "?tenant=nobody") == []
    one = (await setup.client.get("/queue/first")).json()
    assert one == {
        "ticket": "first",
        "replica": "r2",
        "class": "high",
        "tenant": "other",
        "lane": "n|",
        "model": "n",
        "bucket": None,
        "worker": "a:80",
        "link": None,
        "waited_s": pytest.approx(1.0, abs=0.01),
        "service_s": 2.0,
        "uncached_tokens": 100,
        "context_tokens": 150,
    }


async def test_a_long_queue_is_counted_whole_and_listed_in_part(setup: Setup) -> None:
    for number in range(STEP + 5):
        waits(setup, f"t{number}")
    told = (await setup.client.get("/queue/tickets?limit=3")).json()
    assert (len(told["tickets"]), told["total"]) == (3, STEP + 5)


async def test_a_wait_is_ended_by_whoever_holds_it(setup: Setup) -> None:
    """The waiting room's tests cover the holder's part."""
    waits(setup, "there/1", replica="r2")
    answer = await setup.client.delete("/queue/there/1")
    assert answer.status_code == 202
    assert answer.json() == {"ticket": "there/1", "status": "accepted", "shared": True, "replica": "r2"}
    (op,) = setup.shared.fleet.expires
    assert isinstance(op, Expire)
    assert op.request_id == "there/1"
    assert [change.target for change in setup.shared.fleet.audit] == ["there/1"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_ticket_that_does_not_wait_is_not_found(setup: Setup, method: str) -> None:
    answer = await setup.client.request(method, "/queue/nobody")
    assert (answer.status_code, code(answer)) == (404, "ticket_not_found")
    assert list(setup.shared.fleet.expires) == []
