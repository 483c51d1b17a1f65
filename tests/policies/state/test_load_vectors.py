"""Loads are published soon, but not too often; sooner while requests wait; whole after a possible loss."""

import pytest
from fakes.loads import FakeLoads

from policies import LoadVector, LoadVectors
from policies.state.load_vectors import ALONE_S, FULL_S, INTERVAL_S


class Bench:
    """The vectors of a replica on a clock of its own, in company."""

    def __init__(self, *, alone: bool = False) -> None:
        self.now_s = 1000.0
        self.loads = FakeLoads()
        self.vectors = LoadVectors(
            self.loads, lambda: round(self.now_s * 1e6), lambda: alone, lambda: self.now_s
        )

    def change(self, *inflight: str) -> None:
        self.loads.due, self.loads.inflight = True, inflight

    def told(self) -> LoadVector | None:
        """The vector that is due."""
        return self.vectors.take()


def test_a_change_is_told_in_turn_and_nothing_twice() -> None:
    bench = Bench()
    assert (bench.vectors.wait_s(), bench.told()) == (None, None)
    bench.change("a:1")
    first = bench.told()
    assert first is not None
    assert (first.workers, first.full) == (("a:1",), True)
    assert (bench.vectors.wait_s(), bench.told()) == (None, None)
    bench.change("b:1")
    assert (bench.vectors.wait_s(), bench.told()) == (pytest.approx(INTERVAL_S), None)
    bench.now_s += INTERVAL_S
    second = bench.told()
    assert second is not None
    assert (second.workers, second.full) == (("b:1",), False)


def test_placements_alone_make_no_vector_but_a_full_one_later() -> None:
    """They are published themselves; later changes are published as soon as without them."""
    bench = Bench()
    bench.change()
    assert bench.told() is not None
    bench.now_s += INTERVAL_S
    bench.change()
    assert (bench.vectors.wait_s(), bench.told()) == (0.0, None)
    assert not bench.loads.due
    bench.change("a:1")
    assert bench.told() is not None
    bench.now_s += INTERVAL_S
    bench.change()
    assert bench.told() is None
    bench.now_s += FULL_S
    full = bench.told()
    assert full is not None
    assert full.full


def test_while_requests_wait_every_change_is_told_at_once() -> None:
    bench = Bench()
    for _ in range(3):
        bench.change("a:1")
        bench.loads.urgent = True
        assert bench.vectors.wait_s() == 0.0
        assert bench.told() is not None


def test_alone_the_loads_are_told_at_leisure() -> None:
    bench = Bench(alone=True)
    bench.change("a:1")
    assert bench.told() is not None
    bench.change("a:1")
    assert bench.vectors.wait_s() == ALONE_S


def test_what_is_in_flight_is_told_again_now_and_then_and_an_idle_replica_says_nothing() -> None:
    bench = Bench()
    bench.change("a:1")
    bench.told()
    bench.now_s += FULL_S
    again = bench.told()
    assert again is not None
    assert (again.workers, again.full) == (("a:1",), True)
    bench.loads.inflight = ()
    bench.now_s += FULL_S
    last = bench.told()
    assert last is not None
    assert (last.workers, last.full) == ((), True)
    bench.now_s += FULL_S
    assert (bench.vectors.wait_s(), bench.told()) == (None, None)


def test_all_is_told_when_something_may_be_lost_and_nothing_after_the_end() -> None:
    bench = Bench()
    bench.change("a:1")
    bench.told()
    bench.vectors.lost()
    assert bench.vectors.wait_s() == 0.0
    again = bench.told()
    assert again is not None
    assert again.full
    bench.change("a:1")
    bench.vectors.lost()
    bench.vectors.close()
    assert (bench.vectors.wait_s(), bench.told()) == (None, None)
