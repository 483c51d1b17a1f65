"""One slow worker: all replicas learn it from its answers, and its class is not priced by it."""

import random
from collections import Counter

import msgspec
import pytest

from policies import (
    Attempt,
    BareRequest,
    Chosen,
    Feedback,
    FleetState,
    Op,
    OpLog,
    ServiceModel,
    SlowdownLearned,
    Usage,
    WorkerPut,
)

S = 1_000_000
TRUE = ServiceModel(0.04, 1 / 8_000, 140_000.0)
REQUEST = BareRequest("m", (b"12345678",), 4_000, 1, 1)


class Fleet:
    """Four workers, of which ``w3`` takes ``slow`` times as long; all replicas share one fold."""

    def __init__(self, slow: float = 2.0) -> None:
        self.fleet = FleetState()
        self.slow = slow
        self.said: Counter[type[Op]] = Counter()
        self.now_us = 1000 * S
        self.late_us = 0
        self.random = random.Random(1)
        for number in range(4):
            self.fleet.apply(WorkerPut(f"w{number}", 1, "static", f"http://w{number}"))

    def replica(self, name: str) -> Feedback:
        def publish(op: Op) -> None:
            self.said[type(op)] += 1
            self.fleet.apply(op)

        return Feedback(self.fleet, OpLog(name, publish, lambda: self.now_us), bytes_per_token=4.0)

    def answers(self, feedback: Feedback, count: int) -> None:
        """Streams on an idle worker, 20 a second."""
        for _ in range(count):
            self.now_us += S // 20
            worker, tokens = self.random.randrange(4), self.random.choice([500, 4_000, 20_000])
            took_s = TRUE.service_s(tokens, 0) * (self.slow if worker == 3 else 1.0)
            chosen = Chosen(worker, 0, 0, tokens, 0.3, 0.3, "cold")
            attempt = Attempt("a1", f"w{worker}", chosen, self.now_us, self.now_us - self.late_us, 256.0, 0.0)
            took_s *= self.random.uniform(0.9, 1.1)
            request = msgspec.structs.replace(REQUEST, prompt_bytes=4 * tokens)
            feedback.answered(request, attempt, Usage(tokens, None, 1), took_s, self.now_us)

    @property
    def slowdowns(self) -> list[float]:
        return [self.fleet.columns.slowdown(slot) for slot in range(4)]

    def price_s(self, slot: int) -> float:
        return self.fleet.model_at(slot).service_s(4_000, 0)


def test_a_slow_worker_has_its_own_price_and_its_class_that_of_the_others() -> None:
    fleet = Fleet()
    fleet.answers(fleet.replica("a"), 3_000)
    assert fleet.slowdowns == [1.0, 1.0, 1.0, pytest.approx(2.0, rel=0.05)]
    assert fleet.price_s(0) == pytest.approx(TRUE.service_s(4_000, 0), rel=0.05)
    assert fleet.price_s(3) == pytest.approx(2 * TRUE.service_s(4_000, 0), rel=0.07)


def test_equal_workers_are_their_class() -> None:
    fleet = Fleet(slow=1.0)
    fleet.answers(fleet.replica("a"), 3_000)
    assert not fleet.said[SlowdownLearned]


def test_eight_replicas_find_the_same_and_say_little() -> None:
    """A word each ten seconds at most while it is learned, and then none: 8 x 3,000 answers last 1,200 s."""
    fleet = Fleet()
    replicas = [fleet.replica(f"r{number}") for number in range(8)]
    for _ in range(300):
        for each in replicas:
            fleet.answers(each, 10)
    assert fleet.slowdowns == [1.0, 1.0, 1.0, pytest.approx(2.0, rel=0.07)]
    assert fleet.said[SlowdownLearned] <= 12


def test_a_worker_that_is_well_again_is_priced_as_its_class() -> None:
    fleet = Fleet()
    feedback = fleet.replica("a")
    fleet.answers(feedback, 2_000)
    fleet.slow = 1.0
    fleet.answers(feedback, 4_000)
    assert fleet.slowdowns == [1.0] * 4
    assert fleet.price_s(3) == pytest.approx(TRUE.service_s(4_000, 0), rel=0.05)


def test_a_prefill_behind_a_late_one_says_nothing_of_the_worker() -> None:
    """That one was predicted to be done, so the backlog is 0; a slow worker would seem slower than it is."""
    fleet = Fleet()
    fleet.late_us = 1
    fleet.answers(fleet.replica("a"), 1_000)
    assert not fleet.said[SlowdownLearned]
