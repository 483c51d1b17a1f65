from collections import deque
from collections.abc import Callable

from router.gateway.step_runner import TURN_S, StepRunner, Steps


class Loop:
    """Runs what it was given, one call at a time."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()

    def turn(self) -> bool:
        if self.calls:
            self.calls.popleft()()
        return bool(self.calls)


def work(done: list[str], name: str, steps: int) -> Steps:
    for number in range(steps):
        done.append(f"{name}{number}")
        yield
    done.append(name)


def endless() -> Steps:
    while True:
        yield


def test_work_is_done_in_order_of_arrival_and_not_before_add_returns() -> None:
    loop, done = Loop(), list[str]()
    lane = StepRunner(loop.calls.append)

    lane.add(work(done, "a", 2))
    lane.add(work(done, "b", 1))
    assert done == []
    while loop.turn():
        pass

    assert done == ["a0", "a1", "a", "b0", "b"]
    lane.add(work(done, "c", 0))
    loop.turn()
    assert done[-1] == "c"


def test_the_loop_has_its_turn_although_work_goes_on() -> None:
    loop = Loop()
    lane = StepRunner(loop.calls.append)
    lane.add(endless())

    assert [loop.turn() for _ in range(3)] == [True, True, True]
    assert len(loop.calls) == 1
    assert TURN_S < 0.002


def test_closed_work_is_skipped_whether_it_has_begun_or_not() -> None:
    loop, done = Loop(), list[str]()
    lane = StepRunner(loop.calls.append)
    begun, waiting = endless(), work(done, "never", 3)
    lane.add(begun)
    lane.add(waiting)
    lane.add(work(done, "last", 0))
    loop.turn()

    begun.close()
    waiting.close()
    while loop.turn():
        pass

    assert done == ["last"]


def test_work_may_add_work() -> None:
    loop, done = Loop(), list[str]()
    lane = StepRunner(loop.calls.append)

    def more() -> Steps:
        lane.add(work(done, "added", 0))
        yield

    lane.add(more())
    while loop.turn():
        pass

    assert done == ["added"]
