"""Slowdowns: a worker's time over that of most of its class."""

from random import Random

import pytest

from policies.estimates.costs import ServiceModel
from policies.estimates.slowdowns import KEPT_US, PREFILLS_MIN, SLOWDOWN_MAX, Slowdowns
from radix import WORKERS_MAX

S = 1_000_000
MODEL = ServiceModel(0.1, 1e-4, 1e5)
WORKERS = ("a", "b", "c", "d")


class Bench:
    """Workers of one class; ``takes`` is the time of each over the price of the class."""

    def __init__(self, spread: float = 0.1, workers: tuple[str, ...] = WORKERS) -> None:
        self.seen = Slowdowns()
        self.takes = dict.fromkeys(workers, 1.0)
        self.random = Random(1)
        self.spread = spread
        self.now_us = 1000 * S

    def prefills(self, each: int, model: ServiceModel = MODEL, **only: float) -> None:
        for _ in range(each):
            for worker in only or self.takes:
                self.now_us += S // 10
                uncached, cached = self.random.choice([(100, 0), (4_000, 0), (1_000, 60_000)])
                took_s = MODEL.service_s(uncached, cached) * self.takes[worker]
                took_s *= self.random.uniform(1 - self.spread, 1 + self.spread)
                self.seen.observe(worker, (uncached, cached, took_s), model, self.now_us, 0)

    def word(self, worker: str, known: float = 1.0, *, renews: bool = False) -> float | None:
        return self.seen.word(worker, known, self.now_us, renews=renews)


def test_of_equal_workers_nothing_is_said_whatever_the_class_is_priced_at() -> None:
    """Prefills scatter by half, and a common error of the price of 40 % cancels."""
    bench = Bench(spread=0.5)
    cheap = ServiceModel(0.14, 1.4e-4, 1e5)
    for _ in range(400):
        bench.prefills(1, cheap)
        assert not any(bench.word(worker) for worker in WORKERS)


@pytest.mark.parametrize(("takes", "found"), [(2.0, 2.0), (0.5, 0.5), (1.3, 1.3), (9.0, SLOWDOWN_MAX)])
def test_a_worker_that_differs_is_found_and_no_other(takes: float, found: float) -> None:
    bench = Bench()
    bench.takes["d"] = takes
    bench.prefills(PREFILLS_MIN - 1)
    assert bench.word("d") is None
    bench.prefills(60)
    assert bench.word("d") == pytest.approx(found, rel=0.05)
    assert [bench.word(worker) for worker in "abc"] == [None] * 3


def test_a_difference_within_a_tenth_is_none() -> None:
    bench = Bench()
    bench.takes["d"] = 1.08
    bench.prefills(400)
    assert bench.word("d") is None


def test_one_worker_is_its_class() -> None:
    bench = Bench(workers=("a",))
    bench.prefills(50)
    bench.takes["a"] = 2.0
    bench.prefills(100)
    assert bench.word("a") is None


def test_prefills_that_waited_unseen_make_no_worker_slow() -> None:
    """One of eight takes twenty times as long: the mean would be tripled."""
    bench = Bench()
    for number in range(1_000):
        bench.takes["d"] = 20.0 if number % 8 == 0 else 1.0
        bench.prefills(1)
        assert bench.word("d") is None


def test_a_word_in_force_that_fits_is_not_said_again_unless_it_grows_old() -> None:
    """Other replicas see the same worker, and find 1.9 or 2.1."""
    bench = Bench(spread=0.3)
    bench.takes["d"] = 2.0
    bench.prefills(100)
    assert bench.word("d", 1.95) is None
    assert bench.word("d", 1.95, renews=True) == 1.95
    assert bench.word("d", 1.3) == pytest.approx(2.0, rel=0.1)


def test_a_worker_that_is_well_again_costs_what_its_class_does() -> None:
    bench = Bench()
    bench.takes["d"] = 2.0
    bench.prefills(100)
    bench.takes["d"] = 1.0
    bench.prefills(500)
    assert bench.word("d", 2.0) == 1.0


def test_what_lies_long_back_proves_nothing() -> None:
    bench = Bench()
    bench.takes["d"] = 2.0
    bench.prefills(200)
    bench.now_us += KEPT_US
    assert bench.word("d") is None


def test_a_restarted_worker_begins_anew() -> None:
    bench = Bench()
    bench.takes["d"] = 2.0
    bench.prefills(100)
    bench.seen.observe("d", (100, 0, 1.0), MODEL, bench.now_us + 2, bench.now_us + 1)
    assert bench.word("d") is None


def test_a_class_that_is_still_learned_proves_nothing_of_its_workers() -> None:
    """The first ones are measured against a profile five times too cheap, the others against the truth."""
    bench = Bench()
    profile = ServiceModel(0.02, 2e-5, 1e5)
    bench.prefills(100, profile, a=1, b=1)
    bench.prefills(100, c=1, d=1)
    bench.prefills(PREFILLS_MIN)
    assert not any(bench.word(worker) for worker in WORKERS)


def test_workers_that_come_and_go_do_not_pile_up() -> None:
    seen = Slowdowns()
    for number in range(WORKERS_MAX + 10):
        seen.observe(f"w{number}", (100, 0, 1.0), MODEL, number * S, 0)
    assert len(seen._workers) <= 10


@pytest.mark.parametrize("prefill", [(0, 0, 1.0), (1, -1, 1.0), (1, 0, 0.0), (1, 0, float("inf"))])
def test_what_is_no_prefill_teaches_nothing(prefill: tuple[float, float, float]) -> None:
    seen = Slowdowns()
    seen.observe("a", prefill, MODEL, S, 0)
    assert not seen._workers
