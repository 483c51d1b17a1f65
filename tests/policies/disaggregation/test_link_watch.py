"""Measurements of a link by transfers, and their publication to all replicas."""

from typing import cast

import pytest
from fakes.gateway import FakeShared, VirtualTime, registry

from policies import Finished, FleetRules, LinkMeasured, LinkRules, OpLog, Placed, Shipped, Shipping
from policies.disaggregation import LinkStates
from policies.disaggregation.link_states import LinkState
from policies.disaggregation.link_watch import FAILURE_US, LOOK_S, LinkTurn, LinkWatch, Patience
from router.fleet import LocalWorker

LINK = "far>"
GB = 1_000_000_000
SECOND = 1_000_000


class Setup:
    """One replica that watches a link of 1 GB/s, behind which are the prefill workers w0 and w1."""

    def __init__(self, protocol: str = "nixl", rtt_s: float = 0.0) -> None:
        self.time = VirtualTime()
        links = {LINK: LinkRules(GB * 8 / 1e9, rtt_ms=rtt_s * 1e3, cap_ratio=1.0)}
        self.shared = FakeShared(FleetRules(links=links))
        self.registry = registry(self.shared, self.time)
        self.workers: list[LocalWorker] = []
        for name in ("w0", "w1"):
            labels = {"site": "far", "handover": protocol}
            local = self.registry.get(self.registry.add(f"http://{name}", role="prefill", labels=labels))
            assert local is not None
            self.workers.append(local)
        log = OpLog("r1", self.shared.publish, self.time.clock.now_us)
        self.watch = LinkWatch(self.shared.fleet, log)
        self.links = self.shared.fleet.links
        self.number = 0
        self.patience: Patience | None = None

    @property
    def now_us(self) -> int:
        return self.time.clock.now_us()

    def passes(self, s: float) -> None:
        self.time.advance(s)

    def prefill(self, name: str, planned_s: float = 1.0, worker: int = 0) -> None:
        """Place a prefill."""
        worker_id = self.workers[worker].worker.worker_id
        self.shared.publish(
            Placed(f"p-{name}", self.now_us, worker_id, "r1", round(planned_s * 1e6), 100, 200)
        )

    def begin(
        self, gigabytes: float = 1.0, planned_s: float = 1.0, worker: int = 0, ready_s: float = 0.0
    ) -> str:
        """Send a request whose transfer is planned to begin in ``ready_s``."""
        self.number += 1
        name, now_us, local = f"r{self.number}", self.now_us, self.workers[worker]
        self.prefill(name, planned_s, worker)
        start_us = now_us + round(ready_s * 1e6)
        said = Shipping(
            name, now_us, "r1", LINK, round(gigabytes * GB), start_us, start_us + round(planned_s * 1e6)
        )
        self.shared.publish(said)
        self.watch.begun(said, f"p-{name}", local.worker.slot, local.protocol, self.patience)
        return name

    def arrive(self, name: str) -> None:
        self.watch.arrived(name)
        self.shared.publish(Shipped(name, self.now_us))

    def cross(self, took_s: float, gigabytes: float = 1.0, planned_s: float = 1.0) -> None:
        """A transfer after its prefill, from beginning to end."""
        name = self.begin(gigabytes, planned_s)
        self.watch.prefilled(name)
        self.passes(took_s)
        self.arrive(name)

    def fail(self, worker: int = 0) -> None:
        self.watch.failed(self.begin(worker=worker), f"w{worker}")

    @property
    def capacity(self) -> float:
        """In GB/s."""
        return self.links.capacity_bytes_per_s(LINK, self.now_us) / GB

    @property
    def told(self) -> list[LinkMeasured]:
        return cast(list[LinkMeasured], self.shared.said(LinkMeasured))


# Goodput.


def test_transfers_in_time_say_nothing_new() -> None:
    setup = Setup()
    for took_s in (0.2, 1.0, 1.4):
        setup.cross(took_s)
    assert (setup.told, len(setup.watch)) == ([], 0)


def test_a_late_transfer_lowers_the_capacity_by_half_of_what_it_shows() -> None:
    """1 GB at 1 GB/s took 4 s: a quarter, of which half is believed; and then it grows, for 4 of 10 s."""
    setup = Setup()
    setup.cross(4.0)
    assert setup.capacity == pytest.approx(1.0 + 0.5 * (0.25 - 1.0), rel=1e-4)
    setup.cross(4.0)
    grown = 0.625 * 2**0.4
    assert setup.capacity == pytest.approx(grown + 0.5 * (0.25 - grown), rel=1e-4)
    assert {said.replica for said in setup.told} == {"r1"}


def test_transfers_that_share_a_link_are_late_together() -> None:
    """Two of 0.5 GB/s each, planned for 1 s, took 2 s: the link carries 0.5 GB/s, not the 0.25 of each."""
    setup = Setup()
    first, second = setup.begin(0.5), setup.begin(0.5)
    for name in (first, second):
        setup.watch.prefilled(name)
    setup.passes(2.0)
    setup.arrive(first)
    assert setup.capacity == pytest.approx(0.75, rel=1e-4)


def test_another_replica_s_measurement_is_continued() -> None:
    setup = Setup()
    setup.shared.publish(LinkMeasured(LINK, setup.now_us, "r2", 0.5 * GB))
    name = setup.begin()
    setup.watch.prefilled(name)
    setup.passes(4.0)
    setup.arrive(name)
    grown = 0.5 * 2**0.4
    assert setup.told[-1].replica == "r1"
    assert setup.capacity == pytest.approx(grown + 0.5 * (0.25 - grown), rel=1e-4)


def test_a_transfer_that_is_faster_than_was_measured_raises_the_capacity() -> None:
    """0.1 GB in 1 s were planned at 0.1 GB/s, and took 0.4 s."""
    setup = Setup()
    setup.shared.publish(LinkMeasured(LINK, setup.now_us, "r2", 0.1 * GB))
    setup.cross(0.4, gigabytes=0.1)
    assert setup.capacity == pytest.approx(0.25, rel=1e-4)


def test_a_transfer_that_does_not_arrive_lowers_the_capacity_while_it_is_late() -> None:
    """Late after 1.5 s; then said again when it is half as late again, and no sooner."""
    setup = Setup()
    name = setup.begin()
    setup.watch.prefilled(name)
    capacities = []
    for _ in range(40):
        setup.passes(LOOK_S)
        setup.watch.look()
        capacities.append(setup.capacity)
    assert capacities[5] == 1.0
    assert min(capacities) < 0.15
    assert 4 <= len(setup.told) <= 8
    setup.arrive(name)
    assert setup.capacity < 0.2


def test_what_is_sent_beside_a_prefill_is_judged_from_when_that_begins_and_only_if_it_is_very_late() -> None:
    """Behind another prefill for 10 s; then 4 s for 1 s planned are the prefill's, 6 s the link's."""
    for took_s, capacity in ((4.0, 1.0), (6.0, 1.0 + 0.5 * (1 / 6 - 1.0))):
        setup = Setup("sglang")
        setup.prefill("before")
        name = setup.begin()
        setup.passes(10.0)
        setup.watch.look()
        assert setup.capacity == 1.0
        setup.shared.publish(Finished("p-before", setup.now_us, setup.now_us))
        setup.passes(took_s)
        setup.watch.prefilled(name)
        setup.shared.publish(Finished(f"p-{name}", setup.now_us, setup.now_us))
        setup.arrive(name)
        assert setup.capacity == pytest.approx(capacity, rel=1e-4)


def test_what_was_never_seen_to_begin_says_nothing() -> None:
    setup = Setup("sglang")
    setup.prefill("before")
    name = setup.begin()
    setup.passes(60.0)
    setup.watch.look()
    setup.arrive(name)
    assert not setup.told


def test_short_transfers_say_nothing() -> None:
    setup = Setup()
    setup.cross(5.0, gigabytes=0.01, planned_s=0.01)
    name = setup.begin(0.01, 0.01)
    setup.watch.prefilled(name)
    setup.passes(5.0)
    setup.watch.look()
    assert not setup.told


# Loss.


def state(setup: Setup) -> LinkState:
    return LinkStates(setup.links).signals(LINK, 0.0, setup.now_us).state


def test_failures_at_two_workers_make_a_link_down_and_a_probe_that_arrives_makes_it_up() -> None:
    setup = Setup()
    setup.fail(0)
    assert state(setup) is LinkState.SCARCE
    setup.fail(1)
    assert state(setup) is LinkState.DOWN
    setup.shared.publish(Shipped("r1", setup.now_us))
    setup.shared.publish(Shipped("r2", setup.now_us))
    setup.passes(5.1)
    assert state(setup) is LinkState.PROBING
    setup.cross(0.5)
    assert (state(setup), setup.links.loss_ratio(LINK)) == (LinkState.ABUNDANT, 0.0)


def test_failures_at_one_worker_count_once_in_a_while() -> None:
    setup = Setup()
    for _ in range(20):
        setup.fail(0)
    assert setup.links.loss_ratio(LINK) == pytest.approx(0.3)
    setup.passes(FAILURE_US / 1e6 + 0.1)
    setup.watch.look()
    setup.fail(0)
    assert setup.links.loss_ratio(LINK) == pytest.approx(0.51)


def test_loss_fades_with_transfers_that_arrive() -> None:
    setup = Setup()
    setup.fail(0)
    for _ in range(30):
        setup.cross(0.5)
    assert setup.links.loss_ratio(LINK) == 0.0
    said = len(setup.told)
    setup.cross(0.5)
    assert len(setup.told) == said


def test_what_is_dropped_says_nothing() -> None:
    setup = Setup()
    name = setup.begin()
    setup.watch.dropped(name)
    for happens in (setup.watch.prefilled, setup.watch.arrived, setup.watch.dropped):
        happens(name)
    setup.watch.failed(name, "w0")
    assert (setup.told, len(setup.watch)) == ([], 0)


# Round trips.


def test_the_round_trip_is_the_least_time_to_connect_of_the_latest() -> None:
    setup = Setup(rtt_s=0.1)
    for connect_s in (0.05, 0.031, 0.03, 0.2, 0.030):
        setup.watch.measured("far", connect_s)
    assert setup.links.rtt_s(LINK) == 0.031
    assert len(setup.told) == 2
    assert {said.bytes_per_s for said in setup.told} == {0.0}


def test_a_round_trip_is_kept_when_something_else_is_told() -> None:
    setup = Setup()
    setup.watch.measured("far", 0.03)
    setup.fail()
    setup.cross(4.0)
    assert setup.links.rtt_s(LINK) == 0.03


def test_connections_within_the_site_are_no_link() -> None:
    setup = Setup()
    setup.watch.measured("", 0.03)
    assert not setup.told


# Giving up.


class Waiting:
    """A request that waits for a transfer; a prefill on this side takes 2 s, the other way 3."""

    def __init__(self, setup: Setup, local_s: float = 2.0) -> None:
        self.told = 0
        setup.patience = Patience(3.0, local_s, self._give_up)

    def _give_up(self) -> None:
        self.told += 1

    def told_within(self, setup: Setup, s: float) -> bool:
        """Look as often as the gateway does."""
        before = self.told
        for _ in range(round(s / LOOK_S)):
            setup.passes(LOOK_S)
            setup.watch.look()
        return self.told > before


def test_a_transfer_is_given_up_when_it_is_later_than_a_prefill_on_this_side_takes() -> None:
    """Planned for a second, late after one and a half, and two more until it is given up; again later."""
    setup = Setup()
    waiting = Waiting(setup)
    name = setup.begin()
    setup.watch.prefilled(name)
    assert not waiting.told_within(setup, 3.25)
    assert waiting.told_within(setup, 0.5)
    assert not waiting.told_within(setup, 3.0)
    assert waiting.told_within(setup, 1.0)


def test_a_prefill_behind_a_link_that_does_not_answer_is_given_up_too() -> None:
    """Four times the three seconds that were predicted, one, and two more."""
    setup = Setup()
    waiting = Waiting(setup)
    setup.begin()
    assert not waiting.told_within(setup, 14.75)
    assert waiting.told_within(setup, 0.5)


def test_a_link_that_goes_down_and_comes_back_is_told_once_each() -> None:
    setup = Setup()
    turns: list[LinkTurn] = []
    for replica, loss_ratio in (("r1", 0.3), ("r2", 0.6), ("r2", 0.7), ("r1", 0.0)):
        setup.passes(1.0)
        setup.shared.publish(LinkMeasured(LINK, setup.now_us, replica, 0.0, 0.0, loss_ratio))
        turns += [*setup.watch.look(), *setup.watch.look()]
    assert turns == [LinkTurn(LINK, down=True), LinkTurn(LINK, down=False)]
