"""The link between sites: shares of transfers, and their arrival times."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.site_links import LinkPlan, SiteLink, Weather, busiest_window_bytes

CAPACITY = 100.0


class Bench:
    """A link of 100 bytes/s, and when transfers arrived."""

    def __init__(self, *weather: Weather, rtt_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.link = SiteLink(self.clock, LinkPlan(bytes_per_s=CAPACITY, rtt_s=rtt_s, weather=weather))
        self.arrived_s: dict[str, float] = {}

    def send(self, name: str, n_bytes: float, at_s: float, made_s: float) -> None:
        def begin() -> None:
            self.link.begin(n_bytes, at_s, made_s, partial(self._arrived, name))

        self.clock.call_at(at_s, begin)

    def _arrived(self, name: str) -> None:
        self.arrived_s[name] = self.clock.time()


def test_what_is_made_slowly_leaves_as_it_is_made() -> None:
    bench = Bench(rtt_s=0.5)
    bench.send("slow", 100.0, 1.0, 5.0)
    bench.clock.run()
    assert bench.arrived_s["slow"] == pytest.approx(5.5)
    times_s, sent_bytes = bench.link.egress()
    assert np.interp(3.0, times_s, sent_bytes) == pytest.approx(50.0)


def test_what_is_all_made_takes_the_whole_link() -> None:
    bench = Bench()
    bench.send("ready", 200.0, 1.0, 1.0)
    bench.clock.run()
    assert bench.arrived_s["ready"] == pytest.approx(3.0)


def test_who_wants_little_gets_it_and_the_others_share_the_rest() -> None:
    bench = Bench()
    bench.send("paced", 100.0, 0.0, 5.0)  # 20 bytes/s
    bench.send("first", 80.0, 0.0, 0.0)
    bench.send("second", 80.0, 0.0, 0.0)
    bench.clock.run()
    assert bench.arrived_s == pytest.approx({"first": 2.0, "second": 2.0, "paced": 5.0})


def test_a_transfer_that_fell_behind_catches_up() -> None:
    bench = Bench(Weather(at_s=1.0, capacity_ratio=0.1), Weather(at_s=2.0))
    bench.send("one", 200.0, 0.0, 4.0)  # 50 bytes/s: 40 behind after the second at 10 bytes/s
    bench.clock.run()
    assert bench.arrived_s["one"] == pytest.approx(4.0)
    times_s, sent_bytes = bench.link.egress()
    assert np.interp([1.0, 2.0, 2.8, 3.0], times_s, sent_bytes) == pytest.approx([50.0, 60.0, 140.0, 150.0])


def test_nothing_arrives_while_a_link_is_dead_and_all_does_when_it_is_back() -> None:
    bench = Bench(Weather(at_s=1.0, capacity_ratio=0.0), Weather(at_s=11.0))
    bench.send("one", 200.0, 0.0, 0.0)
    bench.send("two", 10.0, 5.0, 6.0)
    bench.clock.run()
    assert bench.arrived_s["two"] == pytest.approx(11.2)
    assert bench.arrived_s["one"] == pytest.approx(12.1)


def test_what_is_lost_is_sent_again() -> None:
    bench = Bench(Weather(at_s=0.0, loss_ratio=0.2))
    bench.send("one", 80.0, 0.0, 0.0)
    bench.clock.run()
    assert bench.arrived_s["one"] == pytest.approx(1.0)
    assert bench.link.egress()[1][-1] == pytest.approx(100.0)


def test_a_transfer_that_was_given_up_leaves_its_share_to_the_others() -> None:
    bench = Bench()
    given_up = bench.link.begin(1000.0, 0.0, 0.0, partial(bench._arrived, "given up"))
    bench.send("other", 100.0, 0.0, 0.0)
    bench.clock.call_at(1.0, partial(bench.link.give_up, given_up))
    bench.clock.call_at(1.1, partial(bench.link.give_up, given_up))
    bench.clock.run()
    assert bench.arrived_s == pytest.approx({"other": 1.5})
    assert bench.link.transfers == 0


moments = st.floats(0.0, 20.0)


@given(
    st.lists(st.tuples(moments, st.floats(0.0, 5.0), st.floats(1.0, 500.0)), min_size=1, max_size=8),
    st.lists(st.tuples(moments, st.sampled_from([0.0, 0.1, 0.5, 1.0])), max_size=4),
)
def test_all_bytes_arrive_and_the_link_never_carries_more_than_it_can(
    sent: list[tuple[float, float, float]], drops: list[tuple[float, float]]
) -> None:
    weather = [Weather(at_s=at_s, capacity_ratio=ratio) for at_s, ratio in sorted(drops)]
    bench = Bench(*weather, Weather(at_s=21.0))
    for number, (at_s, takes_s, n_bytes) in enumerate(sent):
        bench.send(str(number), n_bytes, at_s, at_s + takes_s)
    bench.clock.run()
    times_s, sent_bytes = bench.link.egress()
    assert sent_bytes[-1] == pytest.approx(sum(n_bytes for _, _, n_bytes in sent), abs=len(sent) + 1.0)
    for number, (at_s, takes_s, n_bytes) in enumerate(sent):
        assert bench.arrived_s[str(number)] >= at_s + max(takes_s, n_bytes / CAPACITY) - 0.1
    changes = [*weather, Weather(at_s=21.0)]
    for begins_s, ends_s in pairwise(times_s.tolist()):
        ratio = ([1.0] + [one.capacity_ratio for one in changes if one.at_s <= begins_s])[-1]
        moved = np.interp(ends_s, times_s, sent_bytes) - np.interp(begins_s, times_s, sent_bytes)
        assert moved <= ratio * CAPACITY * (ends_s - begins_s) * (1 + 1e-6) + 1e-6


def test_the_busiest_window_is_found_wherever_it_begins() -> None:
    times_s, sent_bytes = np.array([0.0, 2.5, 3.0, 10.0]), np.array([0.0, 10.0, 60.0, 61.0])
    most, begins_s = busiest_window_bytes(times_s, sent_bytes, 1.0)
    assert most == pytest.approx(52.0)
    assert begins_s == pytest.approx(2.0)
