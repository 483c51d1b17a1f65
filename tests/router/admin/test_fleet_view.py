from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fakes.admin import WELL, Setup
from fakes.gateway import chat

from policies import Circuit, CircuitSet, Insert, Placed, Waiting
from router.admin import ProcessFleetView
from router.admin.fleet_view import ReplicaViews, counters
from router.shared import Vitals, Warming


class Scene(Setup):
    """A gateway with its fleet view for the console."""

    def __init__(self, **sections: dict[str, Any]) -> None:
        super().__init__(**sections)
        self.fleet_view = ProcessFleetView(self.parts)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.add("a", "b")
    return scene


def test_what_changes_seldom_is_told_of_each_worker(scene: Scene) -> None:
    bench = scene.bench
    bench.registry.change("b:80", draining=True, role="plain", labels={"bucket": "0-64K", "site": "there"})
    facts = scene.fleet_view.facts()

    assert [each.id for each in facts] == ["a:80", "b:80"]
    assert facts[0].state == "healthy"
    assert (facts[1].state, facts[1].bucket, facts[1].site) == ("draining", "0-64K", "there")
    assert facts[0].capacity_tokens == 0
    assert scene.fleet_view.loads(facts)[0].held_percent == -1  # the capacity is not known
    assert facts == scene.fleet_view.facts()  # unchanged facts are equal, and not sent


def test_an_open_circuit_is_told(scene: Scene) -> None:
    now_us = scene.bench.time.clock.now_us()
    scene.bench.shared.publish(CircuitSet("a:80", now_us, "r2", Circuit.OPEN, now_us + 10**7))

    assert [each.circuit for each in scene.fleet_view.facts()] == ["open", "closed"]


def test_loads_are_those_of_all_replicas_and_caches_a_share_of_the_capacity(scene: Scene) -> None:
    bench, fleet_view = scene.bench, scene.fleet_view
    for name in ("a:80", "b:80"):
        bench.registry.change(name, capacity_tokens=256_000)
    blocks = 250
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Placed("x", now_us, "b:80", "r2", 3_500_000, 4000, 5000))
    bench.shared.publish(Insert("a:80", b"".join(n.to_bytes(8, "little") for n in range(blocks)), now_us))

    a, b = fleet_view.loads(fleet_view.facts())
    assert (a.backlog_s, a.inflight, a.held_percent) == (0.0, 0, 25)
    assert (b.backlog_s, b.inflight, b.held_percent) == (3.5, 1, 0)
    bench.time.advance(1.0)
    assert fleet_view.loads(fleet_view.facts())[1].backlog_s == 2.5


async def test_what_waits_is_told_by_class(scene: Scene) -> None:
    now_us = scene.bench.time.clock.now_us()
    scene.bench.shared.publish(
        Waiting("x", now_us, "r2", now_us, now_us, "|", "", "batch/t", 2_000_000, 100, 200)
    )

    said = (await scene.fleet_view.sections(slow=False))["queue"]
    assert scene.fleet_view.waiting() == said["requests"] == 1
    assert [each["class"] for each in said["classes"]] == ["batch"]


async def test_the_policy_is_the_one_that_counts_now(scene: Scene) -> None:
    scene.live.change({"placement.policy": "least_load", "placement.shadow_policy": "min_ttft"}, actor="ann")
    said = await scene.fleet_view.sections(slow=True)

    assert said["policy"]["policy"] == "least_load"
    assert said["policy"]["shadow"] == "min_ttft"
    assert said["links"] == []


async def test_buckets_are_told_once_workers_belong_to_them(scene: Scene) -> None:
    assert (await scene.fleet_view.sections(slow=True))["buckets"] == []
    assert "buckets" not in await scene.fleet_view.sections(slow=False)

    scene.bench.registry.change("a:80", labels={"bucket": "0-64K"})
    rows = (await scene.fleet_view.sections(slow=True))["buckets"]
    assert [(row["name"], row["workers"]) for row in rows] == [("0-64K", 1), ("64K-256K", 0), ("256K-1M", 0)]


def test_what_is_wrong_is_told_as_it_is_known(scene: Scene) -> None:
    scene.status = replace(
        WELL, degraded_reason="refused", lag_s=3.0, dropped_ops=2, warming=Warming("snapshot", 0.5)
    )
    scene.live.refused = {"queue.size": "it is no number"}
    found = scene.fleet_view.conditions()

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
    bench, fleet_view = scene.bench, scene.fleet_view
    for number in range(3):
        bench.start(chat(f"prompt {number} " * 500))
        bench.upstream.answer()
    told, skipped, cursor = fleet_view.decisions(None, 2)

    assert (len(told), skipped) == (2, 1)
    assert told[-1]["worker"] in ("a:80", "b:80")
    assert told[-1]["outcome"] == "completed"
    assert None not in told[-1].values()
    assert fleet_view.decisions(cursor, 2).told == []


VITALS = Vitals(
    version="1.2.3",
    started_unix_s=100.0,
    at_unix_s=200.0,
    cpu_s=10.0,
    inflight=3,
    holds_snapshot_lease=True,
    requests={
        "completed": 90,
        "worker_error": 2,
        "upstream_timeout": 3,
        "handover_failed": 1,
        "client_left": 3,
        "worker_refused": 1,
    },
    rejected=7,
    prompt_tokens=9999,
    reported_prompt_tokens=5000,
    cached_tokens=4000,
    ttft_bounds_s=(0.1, 1.0),
    ttft_counts=(5, 9, 12),
)


class Told:
    """Vitals with the test's values."""

    def __init__(self, **known: Vitals | None) -> None:
        self.known: Mapping[str, Vitals | None] = known

    async def __call__(self) -> Mapping[str, Vitals | None]:
        return self.known


def test_what_workers_failed_is_told_from_what_clients_did() -> None:
    found = counters(VITALS)

    assert (found.requests, found.failed, found.rejected) == (100, 6, 7)


def test_the_hit_rate_counts_only_what_engines_report() -> None:
    assert (counters(VITALS).prompt_tokens, counters(VITALS).cached_tokens) == (5000, 4000)


def test_times_to_first_token_are_counted_between_bounds() -> None:
    assert counters(VITALS).ttft_counts == (5, 4, 3)
    assert counters(Vitals()).ttft_counts == ()


async def test_replicas_come_in_order_and_one_that_is_silent_has_no_figures() -> None:
    seen = await ReplicaViews(Told(b=None, a=VITALS)).look()

    assert [each.replica for each in seen] == ["a", "b"]
    assert seen[0].shown["writes_snapshots"]
    assert (seen[1].counters, seen[1].shown) == (None, {"known": False})


@pytest.mark.parametrize(
    ("later", "ratio"),
    [
        (Vitals(started_unix_s=100.0, at_unix_s=205.0, cpu_s=12.0), 0.4),
        (Vitals(started_unix_s=203.0, at_unix_s=205.0, cpu_s=1.0), None),
        (Vitals(started_unix_s=100.0, at_unix_s=200.0, cpu_s=10.0), None),
    ],
    ids=["since the look before", "another process", "said nothing new"],
)
async def test_how_busy_a_replica_is_follows_from_two_looks(later: Vitals, ratio: float | None) -> None:
    told = Told(a=VITALS)
    fleet_view = ReplicaViews(told)
    assert (await fleet_view.look())[0].shown["cpu_ratio"] is None

    told.known = {"a": later}
    assert (await fleet_view.look())[0].shown["cpu_ratio"] == ratio
