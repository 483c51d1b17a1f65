from collections.abc import Sequence

import pytest

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.shared_log import SharedLog
from policies import FirstToken, Op


class Ear:
    """A replica that only listens."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.heard_at: list[tuple[str, float]] = []

    def heard(self, ops: Sequence[Op]) -> None:
        self.heard_at += [(op.request_id, self._clock.time()) for op in ops if isinstance(op, FirstToken)]


def test_the_others_hear_a_lone_word_after_the_delay_and_a_burst_after_one_pause_more() -> None:
    """Delay 10 ms, pause 3 ms: the first word goes at once, what is said meanwhile 3 ms later, together."""
    clock = VirtualClock()
    log = SharedLog(clock, delay_s=0.010, pause_s=0.003)
    ears = [Ear(clock) for _ in range(3)]
    writer, *_ = [log.writer(ear) for ear in ears]
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
    here_writes, gone_writes = log.writer(here), log.writer(gone)
    gone_writes.put(FirstToken("last words", 1))
    here_writes.put(FirstToken("unheard", 1))
    clock.call_at(0.005, lambda: log.leave(gone))

    clock.run()

    assert here.heard_at == [("last words", 0.010)]
    assert gone.heard_at == []
