"""How a worker is shown."""

from typing import Any

import pytest
from fakes.admin import Setup
from fakes.cluster import Cluster, pod
from fakes.discovering import Replica
from fakes.gateway import chat

from policies import BucketMembers, Circuit, CircuitSet, DecodeFitted, Insert, LengthBuckets, Placed, Started
from router.admin.worker_view import discovered
from router.engines import Description
from router.fleet import HealthRules, ServedModel


async def shown(setup: Setup, worker_id: str) -> dict[str, Any]:
    answer = await setup.client.get(f"/workers/{worker_id}")
    return dict(answer.json())


async def test_a_workers_load_and_cache_are_shown(setup: Setup) -> None:
    """Two blocks of 256 tokens held, one request of 700 tokens with half a second of prefill."""
    (a,) = setup.add("a")
    now_us = setup.time.clock.now_us()
    path = bytes(range(1, 17))
    setup.shared.publish(Insert("a:80", path, now_us))
    setup.shared.publish(Placed("x", now_us, "a:80", "r2", 500_000, 600, 700, (path,)))
    setup.registry.described(a, (ServedModel("m"),), Description("vllm", 1000))
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["held_tokens"], one["inflight_requests"], one["inflight_tokens"]) == (512, 1, 700)
    assert one["backlog_s"] == pytest.approx(0.5, abs=0.01)
    assert (one["engine"], one["models"], one["circuit"]) == ("vllm", ["m"], "closed")
    assert one["connections"] == {"open": 0, "idle": 0}
    loads = (await setup.client.get("/get_loads")).json()
    assert loads == {"loads": [{"worker": "http://a:80", "load": 1, "tokens": 700}]}


async def test_a_workers_circuit_start_and_share_are_shown(setup: Setup) -> None:
    """Ejected by a sibling for 60 s; restarted four of the ten seconds ago that a slow start takes."""
    setup.add("a")
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"], one["circuit_wait_s"]) == ("closed", None, 0.0)
    assert (one["share"], one["started_unix_s"]) == (1.0, None)
    setup.registry.rules = HealthRules(slow_start_s=10)
    now_us = setup.time.clock.now_us()
    setup.shared.publish(CircuitSet("a:80", now_us, "r2", Circuit.OPEN, now_us + 60_000_000))
    setup.shared.publish(Started("a:80", now_us - 4_000_000, "r2", 1_763_700_123_250, cold=True))
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"]) == ("open", "r2")
    assert one["circuit_wait_s"] == pytest.approx(60, abs=0.1)
    assert one["share"] == pytest.approx(0.4, abs=0.01)
    assert one["started_unix_s"] == 1_763_700_123.25


async def test_a_plain_worker_is_regular_to_the_peers(setup: Setup) -> None:
    await setup.client.post("/workers", json={"url": "http://a:1", "worker_type": "regular"})
    one = await shown(setup, "a:1")
    assert (one["role"], one["worker_type"]) == ("plain", "regular")
    assert [one[key] for key in ("handover", "bootstrap_host", "bootstrap_port", "partners")] == [None] * 4


async def test_a_prefill_worker_says_where_decode_workers_find_it(setup: Setup) -> None:
    await setup.client.post("/workers", json={"url": "http://a:1", "role": "prefill", "handover": "sglang"})
    await setup.client.post("/workers", json={"url": "http://n:1", "role": "prefill", "handover": "nixl"})
    one, other = await shown(setup, "a:1"), await shown(setup, "n:1")
    assert (one["bootstrap_host"], one["bootstrap_port"]) == ("a", 8998)
    assert (other["bootstrap_host"], other["bootstrap_port"]) == (None, None)


async def test_partners_speak_the_same_protocol(setup: Setup) -> None:
    """Of two decode workers one is not well; a third speaks another protocol, as its engine does."""
    for name, role, handover in (
        ("a", "prefill", "sglang"),
        ("b", "decode", "sglang"),
        ("c", "decode", "sglang"),
    ):
        await setup.client.post(
            "/workers", json={"url": f"http://{name}:1", "role": role, "handover": handover}
        )
    await setup.client.post("/workers", json={"url": "http://d:1", "role": "decode"})
    for name in ("a:1", "b:1", "d:1"):
        local = setup.registry.get(name)
        assert local is not None
        setup.registry.probed(local, ok=True, refused=False, detail="")
        setup.registry.described(local, (), Description("vllm", 0))
    listed = {one["id"]: one for one in (await setup.client.get("/workers")).json()["workers"]}
    assert listed["a:1"]["partners"] == {"ready": 1, "total": 2}
    assert listed["b:1"]["partners"] == {"ready": 1, "total": 1}
    assert (listed["d:1"]["handover"], listed["d:1"]["partners"]) == ("nixl", {"ready": 0, "total": 0})


async def test_a_workers_bucket_is_shown(setup: Setup) -> None:
    setup.shared.fleet.buckets = BucketMembers(LengthBuckets((1000, 2000)))
    setup.registry.add("http://a", labels={"bucket": "0-1000"})
    setup.registry.add("http://b")
    buckets = [worker["bucket"] for worker in (await setup.client.get("/workers")).json()["workers"]]
    assert buckets == [setup.shared.fleet.buckets.lengths.names[0], None]  # type: ignore[union-attr]


async def test_how_much_of_its_prompts_a_worker_had_cached_is_shown(setup: Setup) -> None:
    setup.bench.add("a:80")
    setup.bench.start(chat())
    setup.bench.upstream.answer(
        b'{"usage":{"prompt_tokens":1000,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":750}}}'
    )
    setup.bench.add("b:80")
    a, b = (worker["hits"] for worker in (await setup.client.get("/workers")).json()["workers"])
    assert a == {"reported_prompt_tokens": 1000, "cached_tokens": 750, "hit_ratio": 0.75}
    assert b["hit_ratio"] is None


async def test_how_long_a_drain_will_take_follows_from_what_was_seen(setup: Setup) -> None:
    """Half a second of prefill, and three seconds that answers of its class take on average."""
    setup.add("a")
    setup.shared.publish(DecodeFitted("default", 1, "r2", 0.01, 0.0, 1.0, 3.0))
    setup.shared.publish(Placed("x", setup.time.clock.now_us(), "a:80", "r2", 500_000, 600, 700))
    told = (await setup.client.post("/workers/a:80/drain")).json()
    assert told["expected_s"] == pytest.approx(3.5, abs=0.01)


async def test_where_nobody_learns_how_long_answers_take_the_latest_ones_say_it(
    setup: Setup,
) -> None:
    """Fleets without a promise about decode do not learn it."""
    bench = setup.bench
    bench.add("a:80")
    bench.start(chat())
    assert (await setup.client.post("/workers/a:80/drain")).json()["expected_s"] is None
    await setup.client.post("/workers/a:80/undrain")
    bench.time.advance(4)
    bench.upstream.answer(b'{"usage":{"prompt_tokens":9,"completion_tokens":3}}')
    bench.start(chat())
    assert (await setup.client.post("/workers/a:80/drain")).json()["expected_s"] == 4.0
    bench.upstream.answer(b'{"usage":{"prompt_tokens":9,"completion_tokens":3}}')
    assert (await setup.client.get("/workers/a:80/drain")).json()["expected_s"] == 0.0


async def test_without_discovery_it_says_so(setup: Setup) -> None:
    assert (await setup.client.get("/discovery")).json() == {"enabled": False}


async def test_every_pod_is_told_with_its_workers_or_why_it_has_none() -> None:
    cluster = Cluster()
    cluster.put(pod("good", annotations={"cacheway.io/port": "8000,8001"}))
    cluster.put(pod("bad", ip="10.0.0.2", annotations={"cacheway.io/site": "?"}))
    cluster.put(pod("starting", ip="", ready=False, phase="Pending"))
    replica = Replica(cluster)
    await replica.list()
    replica.time.advance(7)
    view = discovered(replica.discovery)
    assert (view["enabled"], view["problem"], view["list_age_s"]) == (True, None, 7.0)
    assert view["states"] == {"bad_label": 1, "no_address": 1, "used": 1}
    (selection,) = view["selections"]
    assert (selection["namespace"], selection["role"], selection["selector"]) == ("llm", None, "app=engine")
    assert (selection["pods"], selection["list_age_s"], selection["failures"]) == (3, 7.0, {})
    bad, good, starting = view["pods"]
    assert (good["workers"], good["not_used"]) == (["10.0.0.1:8000", "10.0.0.1:8001"], None)
    assert (bad["workers"], bad["not_used"]) == ([], "bad_label")
    assert "site '?' is no name" in bad["detail"]
    assert (starting["ip"], starting["phase"], starting["ready"]) == (None, "Pending", False)
