"""Requests that wait for a link: asked again soon, but not in every look."""

import numpy as np
from fakes.gateway import FakeShared, VirtualTime

from policies import (
    Admission,
    AdmissionRules,
    Decision,
    FleetRules,
    Lanes,
    OpLog,
    Placed,
    Queued,
    QueueRefusal,
    RequestQueue,
    RoomRules,
    Shed,
    Waiting,
    WorkerPut,
)


class Stage:
    """A room, one idle worker behind a link, and whether that has room."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(FleetRules())
        self.shared.publish(WorkerPut("far", 1, "r1", "http://far"))
        fleet, slots = self.shared.fleet, np.array([0])
        self.full = True
        self.asked = 0
        self.room = RequestQueue(
            log=OpLog("r1", self.shared.publish, self.time.clock.now_us),
            fleet=fleet,
            admission=Admission(AdmissionRules(), fleet),
            lanes=Lanes(lambda _: slots),
            rules=RoomRules(),
            call_later=self.time.call_later,
            grace_s=lambda: 0.05,
            ended=lambda *_: None,
        )

    def queued(self, name: str) -> Queued:
        now_us = self.time.clock.now_us()
        op = Waiting(name, now_us, "r1", now_us, now_us, "m|", "far", "normal/", 1_000, 100, 200)
        return Queued(op, waits_for_link=True)

    def enter(self, count: int) -> None:
        for number in range(count):
            self.room.begin(Request(self, f"r{number}"), self.queued(f"r{number}"))


class Request:
    """One that waits (`policies.dispatch.request_queue.Waiter`)."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed:
        self._stage.asked += 1
        if self._stage.full:
            return self._stage.queued(ticket_id)
        now_us = self._stage.time.clock.now_us()
        # The room reads nothing of a decision.
        return Decision(None, Placed(ticket_id, now_us, "far", "r1", 0, 0, 0))  # type: ignore[arg-type]

    def dispatched(self, decision: Decision) -> None:
        self._stage.shared.publish(decision.placed)

    def refused(self, refusal: QueueRefusal) -> None:
        raise AssertionError(refusal)


def test_one_that_waits_for_a_link_is_asked_every_few_looks_and_goes_when_there_is_room() -> None:
    """Every 20 ms, where a look comes every 10."""
    stage = Stage()
    stage.enter(1)
    stage.time.advance(1.0)
    assert 25 <= stage.asked <= 60
    stage.full = False
    stage.time.advance(0.05)
    assert not len(stage.room)


def test_many_that_wait_for_a_link_are_asked_five_hundred_times_a_second_in_all() -> None:
    """The room also asks those that were asked longest ago, 200 times a second."""
    stage = Stage()
    stage.enter(200)
    stage.time.advance(2.0)
    assert 600 <= stage.asked <= 2 * (500 + 200) + 200
    stage.full = False
    stage.time.advance(1.0)
    assert not len(stage.room)
