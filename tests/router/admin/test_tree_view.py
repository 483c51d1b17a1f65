"""``GET /tree``, ``GET /tree/workers``."""

from pathlib import Path

from fakes.admin import Setup
from fakes.gateway import Bench, chat
from fakes.insight import client_of
from fakes.kv_fleet import FakeEngine, Replica
from fakes.running import until

from policies import CachePool, FleetRules, Placed, Tracked
from radix import chain_bytes
from router.admin.tree_view import following
from router.admin.worker_view import Legs, described

USAGE = (
    b'{"usage":{"prompt_tokens":1250,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1024}}}'
)


async def test_the_starts_that_save_most_are_named_by_hash_and_never_by_text() -> None:
    bench = Bench(workers=1)
    for number in range(3):
        bench.start(chat("secret " * 700 + f"{number} " * 500))
        bench.upstream.answer(USAGE)
    async with client_of(bench) as client:
        answer = await client.get("/tree?limit=5")
    found = answer.json()
    (prefix,) = found["prefixes"]
    assert (prefix["requests"], prefix["saved_tokens"], prefix["reported_tokens"]) == (3, 3072, 3072)
    assert (prefix["blocks"], prefix["branches"], prefix["holders"]) == (4, 3, ["w0:80"])
    assert prefix["saved_ratio"] == round(3072 / 3750, 4)
    assert len(prefix["prefix"]) == 16
    assert found["savings"]["saved_tokens"] == 3072
    assert found["blocks"] == bench.shared.fleet.tree.blocks > 4
    assert "secret" not in answer.text


async def test_only_completed_requests_that_saved_something_count() -> None:
    """Where the engine reports nothing, what was predicted counts; a failed request counts nowhere."""
    bench = Bench(workers=1)
    bench.start(chat("other " * 1000))
    bench.upstream.answer(USAGE.replace(b"1024", b"0"))
    for _ in range(2):
        bench.start(chat())
        bench.upstream.answer(b"{}")
    bench.start(chat())
    bench.upstream.answer(b"{}", status=400)
    async with client_of(bench) as client:
        found = (await client.get("/tree")).json()
    (prefix,) = found["prefixes"]
    assert (prefix["requests"], prefix["reported_requests"], prefix["reported_tokens"]) == (2, 0, None)
    assert prefix["saved_tokens"] == prefix["predicted_tokens"] == found["savings"]["saved_tokens"] > 900
    assert found["savings"]["requests"] == 3


async def test_a_start_that_nobody_holds_any_more_is_still_named() -> None:
    bench = Bench(workers=1)
    bench.start(chat())
    bench.upstream.answer(USAGE)
    bench.shared.fleet.tree.forget(0, bench.time.clock.now_us() + 10)
    async with client_of(bench) as client:
        (prefix,) = (await client.get("/tree")).json()["prefixes"]
    assert (prefix["blocks"], prefix["holders"], prefix["holders_count"]) == (0, [], 0)


async def test_each_worker_and_each_shared_cache_says_what_it_holds() -> None:
    pool = CachePool(capacity_tokens=51_200)
    bench = Bench(workers=2, rules=FleetRules(capacity_tokens=25_600, pools={"*": pool}))
    path = chain_bytes(b"abcd", 1, 1)
    bench.shared.publish(Placed("p", bench.time.clock.now_us(), "w1:80", "r2", 1, 1, 1, (path,)))
    async with client_of(bench) as client:
        found = (await client.get("/tree/workers")).json()
        fewer = (await client.get("/tree/workers?limit=1")).json()
    assert found["tree_blocks"] == 4
    first = found["workers"][0]
    assert (first["worker"], first["held_tokens"], first["capacity_tokens"]) == ("w1:80", 1024, 25_600)
    assert (first["full_ratio"], first["tree_ratio"], first["runs"]) == (0.04, 1.0, 1)
    assert {each["worker"] for each in found["workers"]} >= {"w0:80", "w1:80"}
    assert len(found["workers"]) == 3
    assert (len(fewer["workers"]), fewer["omitted"]) == (1, 2)


async def test_it_is_off_without_the_setting_and_workers_are_known_by_history() -> None:
    setup = Setup()
    local = setup.registry.get(setup.registry.add("http://w"))
    assert local is not None
    assert (await setup.client.get("/kv_events")).json() == {"enabled": False}
    assert described(setup.bench.gateway, local, Legs(setup.registry))["evidence"] == "history"
    setup.shared.publish(Tracked("w:80", setup.time.clock.now_us(), "two", exact=True))
    shown = described(setup.bench.gateway, local, Legs(setup.registry))
    assert (shown["evidence"], shown["evidence_by"]) == ("events", "two")


async def test_it_tells_publishers_and_states_of_the_workers_that_this_replica_follows(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(tmp_path).start()
    async with Replica() as replica:
        local = replica.follow(engine)
        await until(lambda: replica.tracks(local))
        view = following(replica.kv_events, replica.shared.fleet, replica.registry)
    engine.stop()
    (worker,) = view["workers"]
    assert (worker["worker_id"], worker["evidence"], worker["followed"]["state"]) == (
        "w:80",
        "events",
        "live",
    )
    (source,) = worker["followed"]["sources"]
    assert (source["endpoint"], source["connected"], source["complete"]) == (engine.endpoint, True, True)
