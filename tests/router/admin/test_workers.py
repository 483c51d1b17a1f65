"""Workers through the admin API: adding, changing, draining and removing them."""

from dataclasses import replace

import pytest
from fakes.admin import WELL, Setup, code

from policies import Finished, Insert, Placed


async def test_a_worker_is_added_changed_and_removed(setup: Setup) -> None:
    spec = {"url": "http://a:1/", "capacity_tokens": 9, "labels": {"worker_class": "h200"}, "priority": 3}
    added = await setup.client.post("/workers", json=spec)
    assert (added.status_code, added.json()["worker_id"]) == (202, "a:1")
    one = (await setup.client.get(added.json()["location"])).json()
    assert (one["url"], one["state"], one["is_healthy"]) == ("http://a:1", "starting", False)
    assert (one["capacity_tokens"], one["labels"]) == (9, {"worker_class": "h200"})

    changed = await setup.client.put("/workers/a:1", json={"draining": True})
    assert changed.status_code == 202
    one = (await setup.client.get("/workers/a:1")).json()
    assert (one["state"], one["capacity_tokens"]) == ("draining", 9)

    assert (await setup.client.delete("/workers/a:1")).status_code == 202
    assert (await setup.client.get("/workers")).json() == {"workers": [], "total": 0}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_worker_that_is_not_there_is_not_found_with_those_that_are(setup: Setup, method: str) -> None:
    setup.add("a")
    answer = await setup.client.request(method, "/workers/b:80", json={} if method == "PUT" else None)
    assert (answer.status_code, code(answer)) == (404, "worker_not_found")
    assert "known: a:80" in answer.json()["error"]["message"]


async def test_a_misspelt_change_is_refused(setup: Setup) -> None:
    setup.add("a")
    answer = await setup.client.put("/workers/a:80", json={"drain": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "drain")


async def test_a_url_that_is_none_is_refused(setup: Setup) -> None:
    answer = await setup.client.post("/workers", json={"url": "http://a..b"})
    assert (answer.status_code, code(answer)) == (400, "invalid_worker_url")
    assert setup.shared.ops == []


async def test_a_worker_with_a_base_path_has_it_in_its_id(setup: Setup) -> None:
    setup.add("a/base")
    assert (await setup.client.get("/workers/a:80/base")).json()["url"] == "http://a:80/base"


async def test_labels_are_merged_by_patch_and_replaced_by_put(setup: Setup) -> None:
    setup.registry.add("http://a", labels={"zone": "a", "rack": "7"})
    answer = await setup.client.patch(
        "/workers/a:80", json={"labels": {"zone": "b", "rack": None, "new": "1"}}
    )
    assert answer.status_code == 202
    assert (await setup.client.get("/workers/a:80")).json()["labels"] == {"zone": "b", "new": "1"}
    await setup.client.patch("/workers/a:80", json={"site": "dc2", "labels": {"site": "dc3"}})
    assert (await setup.client.get("/workers/a:80")).json()["labels"]["site"] == "dc3"
    await setup.client.put("/workers/a:80", json={"labels": {"rack": "8"}})
    assert (await setup.client.get("/workers/a:80")).json()["labels"] == {"rack": "8"}
    wrong = await setup.client.patch("/workers/a:80", json={"labels": {"convertible": "perhaps"}})
    assert wrong.status_code == 400


async def test_a_worker_drains_and_comes_back(setup: Setup) -> None:
    setup.add("a")
    now_us = setup.time.clock.now_us()
    setup.shared.publish(Placed("x", now_us, "a:80", "r2", 500_000, 600, 700))
    told = (await setup.client.post("/workers/a:80/drain")).json()
    assert (told["draining"], told["drained"], told["leaving"]) == (True, False, False)
    assert (told["inflight_requests"], told["inflight_tokens"], told["expected_s"]) == (1, 700, None)
    setup.time.advance(2)
    assert (await setup.client.get("/workers/a:80/drain")).json()["elapsed_s"] == pytest.approx(2.0, abs=0.01)
    setup.shared.publish(Finished("x", setup.time.clock.now_us()))
    told = (await setup.client.get("/workers/a:80/drain")).json()
    assert (told["drained"], told["expected_s"], told["inflight_requests"]) == (True, 0.0, 0)
    told = (await setup.client.post("/workers/a:80/undrain")).json()
    assert (told["draining"], told["drained"], told["elapsed_s"], told["expected_s"]) == (
        False,
        False,
        None,
        None,
    )
    assert (await setup.client.get("/workers/a:80")).json()["state"] == "healthy"


@pytest.mark.parametrize("how", ["ours", "the older routers'"])
async def test_who_adds_a_worker_again_does_not_change_it(setup: Setup, how: str) -> None:
    """Engines that announce themselves at their start must not end an operator's drain."""
    await setup.client.post("/workers", json={"url": "http://a", "labels": {"zone": "b"}})
    await setup.client.post("/workers/a:80/drain")
    if how == "ours":
        again = await setup.client.post("/workers", json={"url": "a:80"})
    else:
        again = await setup.client.post("/add_worker", params={"url": "http://a"})
    assert (again.status_code, code(again)) == (409 if how == "ours" else 400, "worker_exists")
    if how == "ours":
        assert "/workers/a:80/undrain" in again.json()["error"]["message"]
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["draining"], one["labels"]) == (True, {"zone": "b"})


async def test_what_only_the_asked_replica_knows_of_is_told_as_such(setup: Setup) -> None:
    setup.add("a:1")
    assert (await setup.client.post("/workers/a:1/drain")).json()["shared"] is True
    setup.status = replace(WELL, connected=False)
    assert (await setup.client.post("/workers/a:1/undrain")).json()["shared"] is False
    assert (await setup.client.delete("/workers/a:1")).json()["shared"] is False


async def test_a_worker_that_was_turning_stays_drained(setup: Setup) -> None:
    """Otherwise the slow loop would return it to service with its new role."""
    setup.registry.add("http://a", role="prefill", labels={"turning": "decode", "convertible": "true"})
    await setup.client.post("/workers/a:80/drain")
    assert (await setup.client.get("/workers/a:80")).json()["labels"] == {"convertible": "true"}


async def test_a_worker_is_removed_when_it_has_drained_and_may_be_taken_back_until_then(setup: Setup) -> None:
    """The tests of `policies.fleet.departures` cover the removal."""
    setup.add("a")
    told = await setup.client.delete("/workers/a:80?drain=true")
    assert (told.status_code, told.json()["status"], told.json()["leaving"]) == (202, "draining", True)
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["state"], one["leaving"]) == ("draining", True)
    await setup.client.post("/workers/a:80/undrain")
    assert setup.shared.fleet.leaving() == []


async def test_what_a_worker_holds_is_forgotten_without_a_word_to_its_engine(setup: Setup) -> None:
    setup.add("a")
    setup.shared.publish(Insert("a:80", bytes(range(1, 17)), setup.time.clock.now_us()))
    told = (await setup.client.post("/workers/a:80/forget")).json()
    assert told == {"worker_id": "a:80", "status": "accepted", "shared": True, "forgotten_tokens": 512}
    assert (await setup.client.get("/workers/a:80")).json()["held_tokens"] == 0
    assert setup.asked == []


@pytest.mark.parametrize("action", ["drain", "undrain", "forget"])
async def test_nothing_is_done_to_a_worker_that_is_not_there(setup: Setup, action: str) -> None:
    answer = await setup.client.post(f"/workers/b:80/{action}")
    assert (answer.status_code, code(answer)) == (404, "worker_not_found")
    assert setup.shared.ops == []


async def test_a_workers_actions_work_with_a_base_path_in_its_id(setup: Setup) -> None:
    setup.add("a/base")
    assert (await setup.client.post("/workers/a:80/base/drain")).status_code == 202
    assert (await setup.client.get("/workers/a:80/base/drain")).json()["worker_id"] == "a:80/base"
