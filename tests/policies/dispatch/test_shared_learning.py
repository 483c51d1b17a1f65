"""Learned values are the fleet's: a replica that starts goes on from them, and replicas do not take turns.

Every replica folds every operation, as with the shared log.
"""

import random
from collections import Counter

import pytest

from loadtest.bench.shared_learning import learn
from policies import EarlyRatio, Feedback, Fitted, FleetState, Op, OpLog, ServiceModel, WorkerPut
from policies.dispatch.feedback import FITTED_MIN
from policies.state.ops import BytesPerToken

S = 1_000_000
SLOW = ServiceModel(0.2, 1 / 1500, 140_000.0)
"""Ten times slower than the profile."""


class Fleet:
    """One fold that all replicas share, as if the log took no time."""

    def __init__(self) -> None:
        self.fleet = FleetState()
        self.said: Counter[type[Op]] = Counter()
        self.now_us = 1000 * S
        self.random = random.Random(1)
        self.fleet.apply(WorkerPut("w:1", 1, "static", "http://w:1"))

    def replica(self, name: str) -> Feedback:
        def publish(op: Op) -> None:
            self.said[type(op)] += 1
            self.fleet.apply(op)

        return Feedback(self.fleet, OpLog(name, publish, lambda: self.now_us), bytes_per_token=4.0)

    def prefills(
        self, feedback: Feedback, answers: int, spread: float = 0.1, every_us: int = S // 20
    ) -> None:
        for _ in range(answers):
            self.now_us += every_us
            uncached = self.random.choice([500, 2000, 8000, 20_000])
            cached = self.random.choice([0, 0, 10_000, 50_000])
            took_s = SLOW.service_s(uncached, cached) * self.random.uniform(1 - spread, 1 + spread)
            feedback._learn_service("default", uncached + cached, cached, took_s, self.now_us)

    @property
    def price_s(self) -> float:
        return self.fleet.service_model("default").service_s(4000, 0)


def test_a_newcomer_never_moves_a_learned_price_by_more_than_5_percent() -> None:
    """Each replica restarts once in a rolling restart; answers scatter by a factor of two."""
    fleet = Fleet()
    fleet.prefills(fleet.replica("a"), 1000)
    learned_s = fleet.price_s
    assert learned_s == pytest.approx(SLOW.service_s(4000, 0), rel=0.05)
    for number in range(10):
        newcomer = fleet.replica(f"n{number}")
        for _ in range(200):
            fleet.prefills(newcomer, 1, spread=0.5)
            assert fleet.price_s == pytest.approx(learned_s, rel=0.05)


def test_a_newcomer_says_nothing_of_a_price_before_it_has_seen_enough() -> None:
    fleet = Fleet()
    fleet.prefills(fleet.replica("a"), 1000)
    said, newcomer = fleet.said[Fitted], fleet.replica("b")
    for _ in range(FITTED_MIN - 1):
        fleet.now_us += S
        newcomer._learn_service("default", 1000, 0, 60.0, fleet.now_us)  # as a worker that hangs
    assert fleet.said[Fitted] == said


def test_a_machine_that_becomes_slower_is_learned_by_all_replicas_together() -> None:
    fleet = Fleet()
    replicas = [fleet.replica(name) for name in "abcd"]
    for _ in range(300):
        for each in replicas:
            fleet.prefills(each, 1)
    assert fleet.price_s == pytest.approx(SLOW.service_s(4000, 0), rel=0.1)


def test_replicas_that_see_the_same_workers_do_not_overwrite_each_other() -> None:
    """Together they say a fit once a second at most, and not each of them."""
    fleet = Fleet()
    replicas = [fleet.replica(f"r{number}") for number in range(8)]
    for _ in range(200):
        for each in replicas:
            fleet.prefills(each, 1, spread=0.35, every_us=S // 40)
    fleet.said.clear()
    before_us = fleet.now_us
    for _ in range(200):
        for each in replicas:
            fleet.prefills(each, 1, spread=0.35, every_us=S // 40)
    assert fleet.said[Fitted] <= (fleet.now_us - before_us) / S


def test_one_late_answer_at_a_newcomer_does_not_move_how_early_queues_end() -> None:
    fleet = Fleet()
    a, b = fleet.replica("a"), fleet.replica("b")
    for _ in range(200):
        fleet.now_us += S
        a._learn_early("default", 2.0, 0.3, fleet.now_us)
    learned = fleet.fleet.early_ratio("default")
    assert learned < 0.25
    fleet.now_us += S
    b._learn_early("default", 2.0, 2.0, fleet.now_us)
    assert fleet.fleet.early_ratio("default") == learned


def test_a_newcomer_does_not_overturn_bytes_per_token_by_one_prompt() -> None:
    fleet = Fleet()
    a, b = fleet.replica("a"), fleet.replica("b")
    for _ in range(200):
        fleet.now_us += S
        a._learn_bytes("m", 25_000, 10_000, fleet.now_us)
    assert fleet.fleet.bytes_per_token("m", 4.0) == pytest.approx(2.5, rel=0.03)
    b._learn_bytes("m", 90_000, 20_000, fleet.now_us + S)
    assert fleet.fleet.bytes_per_token("m", 4.0) == pytest.approx(2.7, rel=0.1)
    assert fleet.said[BytesPerToken] < 20


def test_bytes_per_token_go_on_from_each_newer_word() -> None:
    fleet = Fleet()
    a = fleet.replica("a")
    for number, bytes_per_token in enumerate((2.0, 6.0)):
        fleet.fleet.apply(
            BytesPerToken("m", fleet.now_us + number * S, f"other {number}", bytes_per_token, 50_000)
        )
        a._learn_bytes("m", round(1_000 * bytes_per_token), 1_000, fleet.now_us + number * S)
        seen = a._seen["m"]
        assert seen.bytes / seen.tokens == pytest.approx(bytes_per_token, rel=0.15)


def test_what_an_older_version_says_is_gone_on_from() -> None:
    """It does not say how many observations its word stands for."""
    fleet = Fleet()
    fleet.fleet.apply(Fitted("default", fleet.now_us, "old", SLOW.a_s, SLOW.b_s, SLOW.c0_tokens))
    fleet.fleet.apply(EarlyRatio("default", fleet.now_us, "old", 0.2))
    new = fleet.replica("new")
    fleet.prefills(new, 100)
    assert fleet.price_s == pytest.approx(SLOW.service_s(4000, 0), rel=0.05)
    for _ in range(FITTED_MIN):
        fleet.now_us += S
        new._learn_early("default", 2.0, 0.4, fleet.now_us)
    assert fleet.fleet.registers.newest(EarlyRatio, "default") is not None
    assert fleet.fleet.early_ratio("default") == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(("replicas", "words_per_s"), [(1, 1.0), (8, 1.2), (50, 2.0)])
def test_words_that_cross_on_their_way_cost_observations_and_no_accuracy(
    replicas: int, words_per_s: float
) -> None:
    """The newest of two words, each 3 ms late, lacks the facts of the other one (decision 0063)."""
    found = learn(replicas, delay_us=3_000, answers=5_000)
    assert found.last_prices == [pytest.approx(1.0, rel=0.05)] * replicas
    assert found.words_per_s <= words_per_s
