"""Deadlines, noticed by looks at the oldest."""

from typing import Any, cast

from fakes.gateway import VirtualTime

from router.gateway.inflight import ENDED_AT_ONCE, Inflight


class Request:
    """An exchange with a deadline, and nothing else."""

    def __init__(self, inflight: Inflight, time: VirtualTime) -> None:
        self.inflight = inflight
        self.received_s = time.time()
        self.ended_s = 0.0
        self._time = time
        inflight[cast(Any, self)] = None
        inflight.watch()

    def out_of_time(self) -> None:
        self.ended_s = self._time.time()
        self.inflight.pop(cast(Any, self), None)


def setup(timeout_s: float) -> tuple[Inflight, VirtualTime]:
    time = VirtualTime()
    return Inflight(cast(Any, time), time.time, timeout_s), time


def test_each_is_ended_when_its_time_is_up_and_at_most_a_look_later() -> None:
    inflight, time = setup(60.0)
    requests = []
    for _ in range(20):
        requests.append(Request(inflight, time))
        time.advance(0.3)
    time.advance(70)
    assert len(inflight) == 0
    for request in requests:
        assert 60 <= request.ended_s - request.received_s <= 61


def test_a_short_timeout_is_looked_at_more_often() -> None:
    inflight, time = setup(0.4)
    request = Request(inflight, time)
    time.advance(0.5)
    assert 0.4 <= request.ended_s - request.received_s <= 0.5


def test_what_has_ended_is_left_alone_and_looking_stops_with_the_last() -> None:
    inflight, time = setup(60.0)
    request = Request(inflight, time)
    inflight.pop(cast(Any, request), None)
    inflight.pop(cast(Any, request), None)
    time.advance(100)
    assert (request.ended_s, time.pending) == (0.0, 0)
    later = Request(inflight, time)
    time.advance(61)
    assert later.ended_s > 0
    assert time.pending == 0


def test_many_deadlines_of_one_moment_are_spread_over_turns_of_the_loop() -> None:
    inflight, time = setup(60.0)
    requests = [Request(inflight, time) for _ in range(3 * ENDED_AT_ONCE + 1)]
    while not requests[0].ended_s:
        time.turn()
    ended = sum(request.ended_s > 0 for request in requests)
    assert ended == ENDED_AT_ONCE
    for _ in range(3):
        time.turn()
    assert all(request.ended_s == requests[0].ended_s for request in requests)
