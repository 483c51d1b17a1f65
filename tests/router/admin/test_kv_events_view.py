"""``GET /kv_events`` says by what each worker is known, and how far the replica is that follows it."""

from dataclasses import replace
from pathlib import Path

import httpx
from fakes.admin import Setup
from fakes.kv_fleet import FakeEngine, Replica
from fakes.running import until

from policies import Tracked
from router.admin.kv_events_view import add_kv_events_view
from router.admin.worker_view import Legs, described


async def test_it_is_off_without_the_setting_and_workers_are_known_by_history() -> None:
    setup = Setup()
    local = setup.registry.get(setup.registry.add("http://w"))
    assert local is not None
    assert (await setup.client.get("/kv_events")).json() == {"enabled": False}
    assert described(setup.ports, local, Legs(setup.ports))["evidence"] == "history"
    setup.shared.publish(Tracked("w:80", setup.time.clock.now_us(), "two", exact=True))
    shown = described(replace(setup.ports), local, Legs(setup.ports))
    assert (shown["evidence"], shown["evidence_by"]) == ("events", "two")


async def test_it_tells_publishers_and_states_of_the_workers_that_this_replica_follows(
    tmp_path: Path,
) -> None:
    from fastapi import FastAPI

    engine = FakeEngine(tmp_path).start()
    async with Replica() as replica:
        local = replica.follow(engine)
        await until(lambda: replica.tracks(local))
        api = FastAPI()
        add_kv_events_view(api, replica.registry, replica.shared.fleet, replica.kv_events)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(api), base_url="http://localhost", trust_env=False
        ) as client:
            view = (await client.get("/kv_events")).json()
    engine.stop()
    (worker,) = view["workers"]
    assert (worker["worker_id"], worker["evidence"], worker["followed"]["state"]) == (
        "w:80",
        "events",
        "live",
    )
    (source,) = worker["followed"]["sources"]
    assert (source["endpoint"], source["connected"], source["complete"]) == (engine.endpoint, True, True)
