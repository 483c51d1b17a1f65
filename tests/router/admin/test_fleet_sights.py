from dataclasses import replace

import pytest
from fakes.admin import WELL
from fakes.gateway import Bench, chat
from fakes.queue_ports import queue_ports

from policies import Circuit, CircuitSet, Insert, Placed, Waiting
from router.admin import FleetSights, LinkPorts, ReplicaSights
from router.settings import Settings
from router.shared import Vitals, Warming


async def alone() -> dict[str, Vitals | None]:
    return {"r1": Vitals()}


class Scene:
    """A gateway whose fleet the console sees."""

    def __init__(self) -> None:
        self.bench = bench = Bench(workers=0)
        self.status = WELL
        self.refused: dict[str, str] = {}
        shared, now_us = bench.shared, bench.time.clock.now_us
        self.sights = FleetSights(
            version="1.2.3",
            recent=bench.gateway.reports.decisions,
            offloading=bench.gateway.placing.decider.offloading,
            queue=queue_ports(shared, bench.registry, bench.time),
            links=LinkPorts(shared.fleet.links, lambda _, __: "abundant", now_us),
            log_status=lambda: self.status,
            seen=ReplicaSights(alone),
            settings=Settings,
            keys=None,
            limits=lambda: "silent",
            ending=lambda: False,
            refused_settings=lambda: self.refused,
        )


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.bench.add("a:80")
    scene.bench.add("b:80")
    return scene


def test_what_changes_seldom_is_told_of_each_worker(scene: Scene) -> None:
    bench = scene.bench
    bench.registry.change("b:80", draining=True, role="plain", labels={"bucket": "0-64K", "site": "there"})
    facts = scene.sights.facts()

    assert [each.id for each in facts] == ["a:80", "b:80"]
    assert facts[0].state == "healthy"
    assert (facts[1].state, facts[1].bucket, facts[1].site) == ("draining", "0-64K", "there")
    assert facts[0].capacity_tokens == 0
    assert scene.sights.loads(facts)[0].held_percent == -1  # nobody has said how much it can hold
    assert facts == scene.sights.facts()  # what did not change is equal, and not sent


def test_an_open_circuit_is_told(scene: Scene) -> None:
    now_us = scene.bench.time.clock.now_us()
    scene.bench.shared.publish(CircuitSet("a:80", now_us, "r2", Circuit.OPEN, now_us + 10**7))

    assert [each.circuit for each in scene.sights.facts()] == ["open", "closed"]


def test_loads_are_those_of_all_replicas_and_caches_a_share_of_the_capacity(scene: Scene) -> None:
    bench, sights = scene.bench, scene.sights
    for name in ("a:80", "b:80"):
        bench.registry.change(name, capacity_tokens=256_000)
    blocks = 250
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Placed("x", now_us, "b:80", "r2", 3_500_000, 4000, 5000))
    bench.shared.publish(Insert("a:80", b"".join(n.to_bytes(8, "little") for n in range(blocks)), now_us))

    a, b = sights.loads(sights.facts())
    assert (a.backlog_s, a.inflight, a.held_percent) == (0.0, 0, 25)
    assert (b.backlog_s, b.inflight, b.held_percent) == (3.5, 1, 0)
    bench.time.advance(1.0)
    assert sights.loads(sights.facts())[1].backlog_s == 2.5


async def test_what_waits_is_told_by_class(scene: Scene) -> None:
    now_us = scene.bench.time.clock.now_us()
    scene.bench.shared.publish(
        Waiting("x", now_us, "r2", now_us, now_us, "|", "", "batch/t", 2_000_000, 100, 200)
    )

    said = (await scene.sights.sections(slow=False))["queue"]
    assert scene.sights.waiting() == said["requests"] == 1
    assert [each["class"] for each in said["classes"]] == ["batch"]


async def test_the_policy_is_the_one_that_counts_now(scene: Scene) -> None:
    settings = Settings.model_validate({"placement": {"policy": "least_load", "shadow_policy": "min_ttft"}})
    said = await replace(scene.sights, settings=lambda: settings).sections(slow=True)

    assert said["policy"]["policy"] == "least_load"
    assert said["policy"]["shadow"] == "min_ttft"
    assert said["links"] == []


async def test_buckets_are_told_once_workers_belong_to_them(scene: Scene) -> None:
    assert (await scene.sights.sections(slow=True))["buckets"] == []
    assert "buckets" not in await scene.sights.sections(slow=False)

    scene.bench.registry.change("a:80", labels={"bucket": "0-64K"})
    rows = (await scene.sights.sections(slow=True))["buckets"]
    assert [(row["name"], row["workers"]) for row in rows] == [("0-64K", 1), ("64K-256K", 0), ("256K-1M", 0)]


def test_what_is_wrong_is_told_as_it_is_known(scene: Scene) -> None:
    scene.status = replace(
        WELL, degraded_reason="refused", lag_s=3.0, dropped_ops=2, warming=Warming("snapshot", 0.5)
    )
    scene.refused = {"queue.size": "it is no number"}
    found = scene.sights.conditions()

    assert (found.redis, found.lag_s, found.dropped_ops) == ("refused", 3.0, 2)
    assert found.warming == ("snapshot", 0.5)
    assert found.limits is None  # without tenants there are none
    assert found.other == [
        (
            "setting:queue.size",
            "The setting queue.size was changed, and this replica cannot use it: it is no number.",
        )
    ]


def test_decisions_are_told_once_and_the_others_counted(scene: Scene) -> None:
    bench, sights = scene.bench, scene.sights
    for number in range(3):
        bench.start(chat(f"prompt {number} " * 500))
        bench.upstream.answer()
    told, skipped, cursor = sights.decisions(None, 2)

    assert (len(told), skipped) == (2, 1)
    assert told[-1]["worker"] in ("a:80", "b:80")
    assert told[-1]["outcome"] == "completed"
    assert None not in told[-1].values()
    assert sights.decisions(cursor, 2).told == []
