"""Automatic length buckets: who decides, on what, and what everybody hears."""

import logging

import pytest
from fakes.gateway import FakeShared, VirtualTime, registry

from policies import BucketPlan, FleetRules, LengthBuckets, Placed
from router.fleet import BucketPlanner


class Setup:
    """Six healthy workers, and enough requests to judge by."""

    def __init__(self, *, automatic: bool = True, replicas: tuple[str, ...] = ("r1",)) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(FleetRules(buckets=LengthBuckets(), buckets_planned=automatic))
        self.registry = registry(self.shared, self.time)
        self.planners = [
            BucketPlanner(
                self.shared.fleet,
                self.registry,
                self.shared.publish,
                self.time.clock.now_us,
                replica,
                lambda: replicas,
            )
            for replica in replicas
        ]
        for number in range(6):
            self.add(f"w{number}")
        for number in range(300):
            tokens = (8_000, 8_000, 120_000, 500_000)[number % 4]
            at_us = self.time.clock.now_us()
            self.shared.publish(Placed(f"q{number}", at_us, "w0:80", "r1", 20 * tokens, 100, tokens, (b"",)))

    def add(self, name: str) -> None:
        local = self.registry.get(self.registry.add(f"http://{name}"))
        assert local is not None
        self.registry.probed(local, ok=True, refused=False, detail="")

    def plans(self) -> list[BucketPlan]:
        return self.shared.said(BucketPlan)


def test_workers_are_divided_once_and_everybody_can_read_why(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            setup.planners[0].look()
    (plan,) = setup.plans()
    assert set(plan.workers.values()) == {0, 1, 2}
    assert plan.reason.startswith("the first division: ")
    assert setup.shared.fleet.buckets.lengths == LengthBuckets(plan.tokens_max)
    (line,) = [record for record in caplog.records if record.message == "length buckets planned"]
    assert line.__dict__["event"] == "buckets.planned"
    assert line.__dict__["reason"] == plan.reason


def test_of_several_replicas_one_decides() -> None:
    setup = Setup(replicas=("r1", "r2", "r3"))
    for planner in setup.planners:
        planner.look()
    assert len(setup.plans()) == 1


def test_labels_alone_are_never_planned() -> None:
    setup = Setup(automatic=False)
    setup.planners[0].look()
    assert (setup.plans(), setup.planners[0].verdict()) == ([], None)


def test_who_is_unwell_keeps_its_bucket_and_is_not_counted() -> None:
    setup = Setup()
    setup.planners[0].look()
    (first,) = setup.plans()
    local = setup.registry.get("w0:80")
    assert local is not None
    setup.registry.probed(local, ok=False, refused=True, detail="")
    setup.registry.change("w1:80", labels={"bucket": "0"})
    setup.add("new")
    setup.planners[0].look()
    second = setup.plans()[-1]
    assert second.reason.startswith("new workers: ")
    assert second.workers["w0:80"] == first.workers["w0:80"]
    assert (second.workers["w1:80"], "new:80" in second.workers) == (0, True)
