"""Links of 1,000 bytes a second in virtual time; a transfer ends within one step of the exact time."""

from typing import Any

import pytest
from fakes.virtual_clock import VirtualClock
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.link import ShapedLink, seconds_of
from loadtest.engine.link.shaped import DEAD, STEP_S


class Case:
    def __init__(self, rtt_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.link = ShapedLink(self.clock, 1000.0, rtt_s)
        self.ends: dict[str, tuple[float, str | None]] = {}

    def begin(self, name: str, n_bytes: float, **more: Any) -> Any:
        return self.link.begin(n_bytes, lambda problem: self.end(name, problem), **more)

    def end(self, name: str, problem: str | None) -> None:
        assert name not in self.ends
        self.ends[name] = (self.clock.now_s, problem)

    def at(self, name: str) -> float:
        when_s, problem = self.ends[name]
        assert problem is None
        return when_s


def soon(seconds: float) -> Any:
    return pytest.approx(seconds, abs=3 * STEP_S)


def test_a_transfer_takes_its_bytes_over_the_capacity_and_a_round_trip() -> None:
    case = Case(rtt_s=0.5)
    case.begin("a", 2000)
    case.begin("nothing", 0)
    case.clock.run()

    assert case.at("a") == soon(2.5)
    assert case.at("nothing") == soon(0.5)
    assert (case.link.arrived, case.link.under_way) == (2, 0)


def test_transfers_share_the_capacity_and_the_last_has_what_others_leave() -> None:
    """Half each until 1,000 bytes are over at 2 s; then 2,000 of 3,000 are left for the other."""
    case = Case()
    case.begin("short", 1000)
    case.begin("long", 3000)
    case.clock.run()

    assert case.at("short") == soon(2.0)
    assert case.at("long") == soon(4.0)


def test_what_is_sent_as_it_is_computed_leaves_the_rest_to_others() -> None:
    """800 bytes over 4 s are 200 a second: the other gets 800, and is over with 1,600 at 2 s."""
    case = Case()
    layers = case.begin("layers", 1000, ready_bytes=0, held_bytes=200, over_s=4.0)
    case.begin("whole", 1600)
    case.clock.run(until_s=4.0)
    assert case.at("whole") == soon(2.0)
    assert layers.sent_bytes == pytest.approx(800, abs=5)
    case.clock.run(until_s=5.0)
    assert "layers" not in case.ends  # the prefill takes longer than was thought

    case.link.computed(layers)
    case.clock.run()
    assert case.at("layers") == soon(5.2)


def test_a_link_slower_than_the_prefill_sends_what_is_left_over_behind_it() -> None:
    """4,000 bytes over 2 s: 2,000 have left when the prefill is over, which needs 2 s more."""
    case = Case()
    layers = case.begin("layers", 4000, ready_bytes=0, held_bytes=1000, over_s=2.0)
    case.clock.run(until_s=2.0)
    case.link.computed(layers)
    case.clock.run()

    assert case.at("layers") == soon(4.0)


def test_cached_blocks_go_at_once() -> None:
    case = Case()
    layers = case.begin("layers", 1000, ready_bytes=900, held_bytes=50, over_s=100.0)
    case.clock.run(until_s=0.9)

    assert layers.sent_bytes == pytest.approx(900, abs=5)


def test_a_capacity_that_falls_slows_what_is_under_way() -> None:
    """1,000 bytes in the first second, 100 a second for two, then 1,000 again."""
    case = Case()
    case.begin("a", 2200)
    case.clock.run(until_s=1.0)
    case.link.slow(0.1)
    assert case.link.bytes_per_s == pytest.approx(100)
    case.clock.run(until_s=3.0)
    case.link.restore()
    case.clock.run()

    assert case.at("a") == soon(4.0)


def test_a_link_that_carries_nothing_keeps_what_is_under_way() -> None:
    case = Case()
    case.begin("a", 100)
    case.link.slow(0.0)
    case.clock.run(until_s=50.0)
    assert case.link.under_way == 1
    case.link.restore()
    case.clock.run()

    assert case.at("a") == soon(50.1)


def test_a_dead_link_fails_what_is_under_way_and_all_that_comes() -> None:
    """Transfers that have left and are not known to have arrived count, too."""
    case = Case(rtt_s=1.0)
    case.begin("landing", 100)
    case.begin("sending", 5000)
    case.clock.run(until_s=0.5)
    case.link.die()
    assert case.ends == {"landing": (0.5, DEAD), "sending": (0.5, DEAD)}
    case.begin("late", 1)
    assert "late" not in case.ends
    case.clock.run()

    assert case.ends["late"] == (0.5, DEAD)
    case.link.restore()
    case.begin("again", 1)
    case.clock.run()
    assert case.at("again") == soon(0.5 + 1.001)
    assert (case.link.lost, case.link.under_way) == (3, 0)


def test_who_gives_up_frees_the_link_and_hears_nothing() -> None:
    case = Case(rtt_s=1.0)
    landing = case.begin("landing", 1)
    gone = case.begin("gone", 5000)
    case.begin("stays", 1000)
    case.clock.run(until_s=1.0)
    case.link.cancel(gone)
    case.link.cancel(landing)
    case.link.cancel(landing)
    case.clock.run()

    assert case.at("stays") == soon(2.5)
    assert case.ends.keys() == {"stays"}


def test_a_late_timer_does_not_change_what_left_when() -> None:
    case = Case()
    case.begin("a", 2000)
    case.clock.now_s = 10.0
    case.link.advance()

    assert [number for number, _ in case.link.egress.buckets()] == list(range(20))
    assert seconds_of(case.link.egress.buckets())[9] == (1.0, pytest.approx(1000))
    assert case.link.age_s == 10.0


@given(
    st.lists(
        st.tuples(
            st.floats(0, 3),
            st.floats(0, 3000),
            st.floats(0, 1),
            st.floats(0, 1),
            st.floats(0, 2),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.lists(st.tuples(st.floats(0, 4), st.floats(0, 1)), max_size=3),
)
def test_the_link_never_sends_more_than_it_can_nor_than_there_is(transfers: Any, slower: Any) -> None:
    """All bytes of the transfers that stay, at most the capacity per second, each end reported once."""
    case = Case()
    stay_bytes = 0.0
    for number, (at_s, n_bytes, ready, held, over_s, leaves) in enumerate(transfers):

        def begin(number: int = number, args: Any = (n_bytes, ready, held, over_s, leaves)) -> None:
            n_bytes, ready, held, over_s, leaves = args
            transfer = case.begin(
                str(number), n_bytes, ready_bytes=n_bytes * ready, held_bytes=n_bytes * held, over_s=over_s
            )
            after_s = case.clock.now_s + over_s
            if leaves:
                case.clock.call_at(after_s, lambda: case.link.cancel(transfer))
            else:
                case.clock.call_at(after_s, lambda: case.link.computed(transfer))

        stay_bytes += 0 if leaves else n_bytes
        case.clock.call_at(at_s, begin)
    for at_s, ratio in slower:
        case.clock.call_at(at_s, lambda ratio=ratio: case.link.slow(ratio))
    case.clock.call_at(5.0, case.link.restore)
    case.clock.run()

    staying = {str(number) for number, one in enumerate(transfers) if not one[-1]}
    assert staying <= case.ends.keys()
    assert all(problem is None for _, problem in case.ends.values())
    assert case.link.under_way == 0
    egress = case.link.egress
    assert egress.total_bytes >= stay_bytes - len(transfers)
    assert egress.total_bytes <= sum(one[1] for one in transfers) + 1e-6
    assert all(n_bytes <= 1000 * (1 + 1e-9) for _, n_bytes in seconds_of(egress.buckets()))
