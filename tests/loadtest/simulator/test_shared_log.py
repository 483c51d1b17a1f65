from collections.abc import Sequence

import pytest
from fakes.loads import FakeLoads

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.shared_log import SharedLog
from policies import FirstToken, LoadVector, Op
from policies.state.load_vectors import INTERVAL_S


class Ear:
    """A replica that only listens."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.heard_at: list[tuple[str, float]] = []
        self.vectors_at: list[float] = []

    def heard(self, ops: Sequence[Op]) -> None:
        self.heard_at += [(op.request_id, self._clock.time()) for op in ops if isinstance(op, FirstToken)]
        self.vectors_at += [self._clock.time() for op in ops if isinstance(op, LoadVector)]
        assert not any(isinstance(op, LoadVector) for op in ops[:-1])


def test_the_others_hear_a_lone_word_after_the_delay_and_a_burst_after_one_pause_more() -> None:
    """Delay 10 ms, pause 3 ms: the first word goes at once, the words meanwhile 3 ms later, together."""
    clock = VirtualClock()
    log = SharedLog(clock, delay_s=0.010, pause_s=0.003)
    ears = [Ear(clock) for _ in range(3)]
    writer, *_ = [log.writer(ear, FakeLoads(), lambda: 1) for ear in ears]
    for name, at_s in (("a", 1.0), ("b", 1.001), ("c", 1.002), ("d", 2.0)):
        clock.call_at(at_s, lambda name=name: writer.put(FirstToken(name, 1)))

    clock.run()

    assert ears[0].heard_at == []
    for ear in ears[1:]:
        names, times_s = zip(*ear.heard_at, strict=True)
        assert names == ("a", "b", "c", "d")
        assert times_s == pytest.approx((1.010, 1.013, 1.013, 2.010))


def test_who_left_hears_nothing_but_what_it_said_is_still_delivered() -> None:
    clock = VirtualClock()
    log = SharedLog(clock, delay_s=0.010, pause_s=0.0)
    here, gone = Ear(clock), Ear(clock)
    here_writes, gone_writes = (log.writer(ear, FakeLoads(), lambda: 1) for ear in (here, gone))
    gone_writes.put(FirstToken("last words", 1))
    here_writes.put(FirstToken("unheard", 1))
    clock.call_at(0.005, lambda: log.leave(gone))

    clock.run()

    assert here.heard_at == [("last words", 0.010)]
    assert gone.heard_at == []


@pytest.mark.parametrize(("urgent", "told_s"), [(False, (0.010, INTERVAL_S + 0.010)), (True, (0.010, 0.013))])
def test_loads_are_told_behind_what_was_said_at_once_while_requests_wait(
    urgent: bool, told_s: tuple[float, ...]
) -> None:
    """Delay 10 ms, pause 3 ms. The second change comes 1 ms after the first."""
    clock = VirtualClock()
    log = SharedLog(clock, delay_s=0.010, pause_s=0.003)
    loads, here, there = FakeLoads(), Ear(clock), Ear(clock)
    writer = log.writer(here, loads, lambda: 1)
    log.writer(there, FakeLoads(), lambda: 1)

    def change() -> None:
        loads.due, loads.urgent = True, urgent
        writer.loads_changed()

    writer.put(FirstToken("a", 1))
    change()
    clock.call_at(0.001, change)

    clock.run()

    assert there.vectors_at == pytest.approx(told_s)
    assert there.heard_at == [("a", 0.010)]
    assert here.vectors_at == []


def test_alone_nobody_is_told_of_loads() -> None:
    clock = VirtualClock()
    loads, ear = FakeLoads(), Ear(clock)
    writer = SharedLog(clock, delay_s=0.010, pause_s=0.003).writer(ear, loads, lambda: 1)
    loads.due = True
    writer.loads_changed()

    clock.run()

    assert not loads.made
