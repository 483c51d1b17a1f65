"""Outcomes of the queue become the errors that clients are told."""

from typing import Any

import pytest
from fakes.rooms import Stage, text

from policies import (
    SLO_UNREACHABLE,
    Displaced,
    Expired,
    Hold,
    OpRefused,
    QueueFull,
    QueueRefusal,
    RoomRules,
    Shed,
    Unpublished,
    Unserved,
    Waiting,
)
from router.errors import NoWorker, RouterError
from router.gateway.waiting_room import WaitingRoom, refusal_of

NOBODY = NoWorker("nobody", retry_after_s=3)


class Room:
    """The room of a replica that has one worker, and a request that waits there."""

    def __init__(self, **rules: Any) -> None:
        self.stage = Stage(workers=1)
        replica = self.stage.replicas[0]
        self.room = WaitingRoom(
            replica="r0",
            fleet=replica.fleet,
            admission=replica.admission,
            lanes=replica.lanes,
            rules=RoomRules(**rules),
            publish=replica.publish,
            now_us=replica.now_us,
            call_later=replica.call_later,
            grace_s=lambda: 0.05,
            ended=lambda *wait: None,
        )
        self.error: RouterError | None = None
        self.wants: Hold | Shed | RouterError = self.hold("t")

    def hold(self, ticket_id: str) -> Hold:
        now_us = self.stage.time.clock.now_us()
        return Hold(
            Waiting(ticket_id, now_us, "r0", now_us, now_us, "m|", "", "normal/", 1_000, 10, 20),
            text(256, 1).paths[0],
        )

    def decide(self, ticket_id: str, turn: int) -> Any:
        if isinstance(self.wants, RouterError):
            raise self.wants
        return self.wants

    def dispatched(self, decision: Any) -> None:
        raise AssertionError(decision)

    def refused(self, error: RouterError) -> None:
        self.error = error


@pytest.mark.parametrize(
    ("wants", "status", "code"),
    [
        (Shed("no_worker", 2.0), 503, "no_worker_available"),
        (Shed(SLO_UNREACHABLE, 2.0, "ttft of 3.3 s predicted, 2 s promised"), 429, SLO_UNREACHABLE),
        (NOBODY, 503, "no_worker_available"),
    ],
)
def test_a_request_that_no_worker_takes_any_more_is_told_why(wants: Any, status: int, code: str) -> None:
    setup = Room()
    setup.room.enter(setup, setup.hold("t"))
    setup.wants = wants

    setup.stage.run(1.0)

    assert setup.error is not None
    assert (setup.error.status, setup.error.code) == (status, code)
    assert isinstance(wants, Shed) or setup.error is wants


def test_a_request_that_finds_the_queue_full_is_told_when_to_come_back() -> None:
    setup = Room(requests_max=0)

    with pytest.raises(RouterError, match="0 requests with 0 uncached tokens are waiting already") as found:
        setup.room.enter(setup, setup.hold("t"))

    assert (found.value.status, found.value.code) == (429, "queue_full")
    assert not len(setup.room)


def test_a_wait_that_expires_ends_with_408() -> None:
    setup = Room(timeout_s=0.5)
    setup.room.enter(setup, setup.hold("t"))

    setup.stage.run(1.0)

    assert setup.error is not None
    assert setup.error.status == 408
    assert setup.error.message.startswith("The request's deadline passed after 0.5")


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (QueueFull(5, 10, 2.0), 429, "queue_full"),
        (Displaced(2.0), 429, "request_displaced"),
        (Expired(2.0, by_operator=True), 408, "request_expired"),
        (Unpublished(), 500, "internal_error"),
    ],
)
def test_every_outcome_has_an_error(refusal: QueueRefusal, status: int, code: str) -> None:
    from router.gateway.waiting_room import _Translated

    setup = Room()
    _Translated(setup).refused(refusal)

    assert setup.error is not None
    assert (setup.error.status, setup.error.code) == (status, code)


def test_a_shed_without_a_promise_is_no_worker() -> None:
    assert isinstance(refusal_of(Shed("no_worker", 2.0)), NoWorker)


def test_a_ticket_that_cannot_be_published_is_not_entered() -> None:
    setup = Room()
    setup.stage.replicas[0].refuses = Waiting

    with pytest.raises(OpRefused):
        setup.room.enter(setup, setup.hold("t"))
    assert Unserved() == Unserved()
