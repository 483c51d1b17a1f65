"""Requests that wait, one by one, and ending the wait of one."""

import pytest
from fakes.admin import Setup, code

from policies import Expire, Waiting
from router.admin.queue_view import STEP


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
    """What the holder does is tested with the waiting room."""
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
