"""Four replicas and one circuit per worker: five failures open it for ten seconds, two successes close it."""

import logging
from typing import Any

import pytest
from fakes.gateway import FakeShared, VirtualTime, registry

from policies import BreakerRules, Circuit, CircuitSet
from router.fleet import LocalWorker, Registry

NAMES = ("r1", "r2", "r3", "r4")


class Replicas:
    """Four registries on one fold: all learn what one publishes."""

    def __init__(self, *workers: str) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared()
        self.alive: tuple[str, ...] = NAMES
        self.all = {
            name: registry(self.shared, self.time, replica=name, replicas=lambda: self.alive)
            for name in NAMES
        }
        for worker in workers:
            self.all["r1"].add(f"http://{worker}")
        for name in NAMES:
            for local in self.all[name].all():
                self.all[name].probed(local, ok=True, refused=False, detail="")

    def now_us(self) -> int:
        return self.time.clock.now_us()

    def local(self, name: str, worker: str = "a:80") -> LocalWorker:
        local = self.all[name].get(worker)
        assert local is not None
        return local

    def fail(self, name: str, times: int = 1, worker: str = "a:80") -> None:
        """Let requests fail that a replica sent just now."""
        for _ in range(times):
            now_us = self.now_us()
            self.circuits(name).failed(self.local(name, worker), now_us, now_us, "upstream_timeout")

    def may(self, worker: str = "a:80") -> list[str]:
        """Return the replicas that may dispatch to a worker now."""
        slot = self.local("r1", worker).worker.slot
        return [name for name, one in self.all.items() if slot in one.eligible("m", self.now_us())]

    def send(self, name: str, worker: str = "a:80") -> int:
        """Dispatch; returns when."""
        now_us = self.now_us()
        self.all[name].circuits.dispatched(self.local(name, worker), now_us)
        return now_us

    def circuits(self, name: str) -> Any:
        return self.all[name].circuits


def test_what_fails_for_one_replica_is_ejected_by_all() -> None:
    replicas = Replicas("a", "b")
    replicas.fail("r2", 4)
    assert replicas.may() == list(NAMES)
    replicas.fail("r2")
    assert replicas.may() == []
    assert replicas.may("b:80") == list(NAMES)
    assert {replicas.circuits(name).state(replicas.local(name)) for name in NAMES} == {Circuit.OPEN}


@pytest.mark.parametrize("tells", [True, False])
def test_a_worker_that_restarted_need_not_wait_to_be_probed(tells: bool) -> None:
    """Its engine reports its start, or only refused connections."""
    replicas = Replicas("a")
    one, local = replicas.all["r1"], replicas.local("r1")
    if tells:
        one.started(local, 1_000, replicas.now_us())
    replicas.fail("r2", 5)
    assert replicas.may() == []
    one.probed(local, ok=False, refused=True, detail="")
    replicas.time.advance(1)
    for _ in range(2):
        if tells:
            one.started(local, 9_000, replicas.now_us())
            replicas.time.advance(0.01)
        one.probed(local, ok=True, refused=False, detail="")
    assert replicas.circuits("r2").state(replicas.local("r2")) is Circuit.HALF_OPEN
    assert len(replicas.may()) == 1


def test_of_all_replicas_exactly_one_probes_and_all_restore_together() -> None:
    replicas = Replicas("a")
    replicas.fail("r1", 5)
    replicas.time.advance(10.001)
    for _ in range(2):
        (prober,) = replicas.may()
        sent_us = replicas.send(prober)
        replicas.time.advance(3)
        assert replicas.may() == []
        replicas.circuits(prober).succeeded(replicas.local(prober), replicas.now_us(), sent_us)
    assert replicas.may() == list(NAMES)


def test_a_replica_without_requests_leaves_the_probe_to_the_next() -> None:
    """A quarter of a second later each."""
    replicas = Replicas("a")
    replicas.fail("r1", 5)
    replicas.time.advance(10.001)
    seen = []
    for _ in NAMES:
        seen.append(replicas.may())
        replicas.time.advance(0.25)
    assert [len(some) for some in seen] == [1, 2, 3, 4]


def test_the_turn_of_a_replica_that_died_passes_on() -> None:
    replicas = Replicas("a")
    replicas.fail("r1", 5)
    replicas.time.advance(10.001)
    (first,) = replicas.may()
    replicas.alive = tuple(name for name in NAMES if name != first)
    replicas.time.advance(1.001)
    for name in replicas.alive:
        assert name in replicas.may()


def test_the_circuit_of_a_worker_that_was_removed_is_not_moved_by_its_last_answers() -> None:
    replicas = Replicas("a")
    old = replicas.local("r1")
    replicas.all["r1"].remove("a:80")
    replicas.all["r1"].add("http://a")
    assert replicas.local("r1") is not old
    for _ in range(9):
        replicas.all["r1"].circuits.failed(old, replicas.now_us(), replicas.now_us(), "upstream_timeout")
    assert replicas.shared.said(CircuitSet) == []


def test_while_all_circuits_are_closed_nothing_is_said_or_copied() -> None:
    replicas = Replicas("a", "b")
    one = replicas.all["r1"]
    slots = one.eligible("m", replicas.now_us())
    sent_us = replicas.send("r1")
    replicas.fail("r1", 4)
    one.circuits.succeeded(replicas.local("r1"), replicas.now_us(), sent_us)
    one.circuits.released(replicas.local("r1"), replicas.now_us(), sent_us)
    replicas.fail("r1", 4)
    assert one.eligible("m", replicas.now_us()) is slots
    assert replicas.shared.said(CircuitSet) == []


def test_a_replica_whose_circuits_are_off_neither_moves_nor_obeys_them() -> None:
    replicas = Replicas("a")
    deaf = registry(
        replicas.shared, replicas.time, replica="r5", breaker=BreakerRules(disable_circuit_breaker=True)
    )
    (local,) = deaf.all()
    deaf.probed(local, ok=True, refused=False, detail="")
    for _ in range(99):
        deaf.circuits.failed(local, replicas.now_us(), replicas.now_us(), "upstream_timeout")
    assert replicas.may() == list(NAMES)
    replicas.fail("r1", 5)
    assert len(deaf.eligible("m", replicas.now_us())) == 1
    assert deaf.circuits.state(local) is Circuit.CLOSED
    sent_us = replicas.now_us()
    deaf.circuits.dispatched(local, sent_us)
    deaf.circuits.succeeded(local, sent_us, sent_us)
    deaf.circuits.released(local, sent_us, sent_us)
    assert len(replicas.shared.said(CircuitSet)) == 1


def test_each_transition_is_one_line_with_the_reason_and_who(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router.fleet.circuits")
    replicas = Replicas("a")
    replicas.fail("r1", 6)
    outcomes: list[str] = ["failed", "succeeded", "succeeded"]
    for outcome in outcomes:
        replicas.time.advance(12)
        (prober, *_) = replicas.may()
        sent_us = replicas.send(prober)
        if outcome == "failed":
            now_us = replicas.now_us()
            replicas.all[prober].circuits.failed(replicas.local(prober), now_us, sent_us, "upstream_timeout")
        else:
            replicas.circuits(prober).succeeded(replicas.local(prober), replicas.now_us(), sent_us)
    lines = [
        (record.event, record.reason)  # type: ignore[attr-defined]
        for record in caplog.records
    ]
    assert lines == [
        ("worker.ejected", "upstream_timeout"),
        ("worker.probed", "the wait is over"),
        ("worker.ejected", "upstream_timeout"),
        ("worker.probed", "the wait is over"),
        ("worker.restored", "probes succeeded"),
    ]
    assert caplog.records[0].replica == "r1"  # type: ignore[attr-defined]
    assert {record.worker_id for record in caplog.records} == {"a:80"}  # type: ignore[attr-defined]


def test_many_tripped_circuits_are_ranked_once_and_not_for_every_request() -> None:
    replicas = Replicas(*(f"w{number}" for number in range(30)))
    for number in range(30):
        replicas.fail("r1", 5, f"w{number}:80")
    asked: list[int] = []
    one: Registry = replicas.all["r1"]
    one.circuits._replicas = lambda: (asked.append(1), NAMES)[1]
    for _ in range(50):
        assert len(one.eligible("m", replicas.now_us())) == 0
    assert len(asked) == 1


SHARED = BreakerRules(5, 2, 10.0)
"""At most half of the workers are ejected."""


def sparing(*workers: str) -> Replicas:
    replicas = Replicas(*workers)
    for one in replicas.all.values():
        one.circuits.use(SHARED, one.all())
    return replicas


def test_beyond_half_of_the_workers_those_that_were_ejected_first_are_spared_by_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas = sparing("a", "b", "c", "d")
    for number, worker in enumerate("abc"):
        replicas.fail(NAMES[number], 5, f"{worker}:80")
        replicas.time.advance(1)
    assert [replicas.may(f"{worker}:80") for worker in "abcd"] == [[*NAMES], [], [], [*NAMES]]
    said = [record.worker_id for record in caplog.records if getattr(record, "event", "") == "worker.spared"]  # type: ignore[attr-defined]
    assert said == ["a:80"] * 4, "each replica says it once"
    assert replicas.circuits("r1").spared == {replicas.local("r1", "a:80").worker.slot}


def test_the_last_worker_is_never_ejected() -> None:
    replicas = sparing("a")
    replicas.fail("r1", 5)
    assert replicas.may() == [*NAMES]
    assert replicas.circuits("r2").state(replicas.local("r2")) is Circuit.OPEN


def test_what_a_spared_worker_gets_is_no_probe_and_its_circuit_closes_by_probes_alone() -> None:
    replicas = sparing("a")
    replicas.fail("r1", 5)
    for name in NAMES:
        sent_us = replicas.send(name)
        replicas.circuits(name).succeeded(replicas.local(name), replicas.now_us(), sent_us)
    assert replicas.circuits("r1").state(replicas.local("r1")) is Circuit.OPEN
    for _ in range(2):
        replicas.time.advance(12)
        name, *_ = replicas.may()
        sent_us = replicas.send(name)
        replicas.circuits(name).succeeded(replicas.local(name), replicas.now_us(), sent_us)
    assert replicas.circuits("r1").state(replicas.local("r1")) is Circuit.CLOSED
    assert replicas.may() == [*NAMES]
    assert not replicas.circuits("r1").spared
