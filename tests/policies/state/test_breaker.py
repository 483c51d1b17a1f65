"""A circuit opens on failures in a row and closes after single probes, for all replicas at once."""

import pytest

from policies import Breaker, BreakerRules, Circuit, CircuitSet, probe_from_us
from policies.state.breaker import PROBE_STAGGER_US

SECOND = 1_000_000
RULES = BreakerRules(cb_failure_threshold=3, cb_success_threshold=2, cb_timeout_duration_secs=60)
REPLICAS = ("one", "two", "three", "four")


class Gateway:
    """Some replicas, and the one circuit they share."""

    def __init__(self) -> None:
        self.breakers = {replica: Breaker(RULES, "a:1", replica) for replica in REPLICAS}
        self.known: CircuitSet | None = None

    @property
    def state(self) -> Circuit:
        return Circuit.CLOSED if self.known is None else self.known.state

    def allows(self, now_s: float, replica: str = "one") -> bool:
        """True if a replica, if it were alone, may dispatch now."""
        if self.known is None or self.known.state is Circuit.CLOSED:
            return True
        return round(now_s * SECOND) >= probe_from_us(self.known, replica, (replica,))

    def say(self, kind: str, now_s: float, sent_s: float = -1.0, replica: str = "one") -> bool:
        """Publish one replica's event; return True if it moved the circuit."""
        breaker, now_us = self.breakers[replica], round(now_s * SECOND)
        sent_us = round((now_s if sent_s < 0 else sent_s) * SECOND)
        match kind:
            case "dispatched":
                op = breaker.dispatched(self.known, now_us)
            case "succeeded":
                op = breaker.succeeded(self.known, now_us, sent_us)
            case "restarted":
                op = breaker.restarted(self.known, now_us)
            case "failed":
                op = breaker.failed(self.known, now_us, sent_us)
            case _:
                op = breaker.released(self.known, now_us, sent_us)
        if op is not None:
            assert self.known is None or op.at_us > self.known.at_us
            assert (op.worker, op.replica) == ("a:1", replica)
            self.known = op
        return op is not None


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def opened(now_s: float = 0.0) -> Gateway:
    gateway = Gateway()
    for _ in range(3):
        gateway.say("failed", now_s)
    assert gateway.state is Circuit.OPEN
    return gateway


def test_only_failures_in_a_row_open_it(gateway: Gateway) -> None:
    for _ in range(5):
        for kind in ("failed", "failed", "succeeded"):
            assert not gateway.say(kind, 0.0)
    assert [gateway.say("failed", 0.0) for _ in range(3)] == [False, False, True]
    assert gateway.state is Circuit.OPEN


def test_each_replica_counts_its_own_failures(gateway: Gateway) -> None:
    for replica in REPLICAS:
        assert not gateway.say("failed", 0.0, replica=replica)
        assert not gateway.say("failed", 0.0, replica=replica)
    assert gateway.breakers["four"].failures == 2


def test_open_lets_nothing_through_until_its_time_is_up() -> None:
    gateway = opened(now_s=5.0)
    assert not gateway.allows(64.9)
    assert gateway.allows(65.0)


def test_half_open_lets_exactly_one_through() -> None:
    gateway = opened()
    assert gateway.say("dispatched", 60.0)
    assert gateway.state is Circuit.HALF_OPEN
    assert not any(gateway.allows(60.1, replica) for replica in REPLICAS)


def test_replicas_take_turns_to_probe_so_that_no_two_do_at_once() -> None:
    """The first in rank may go at once, the others a quarter of a second apart; all agree on the order."""
    gateway = opened()
    assert gateway.known is not None
    turns = {replica: probe_from_us(gateway.known, replica, REPLICAS) for replica in REPLICAS}
    assert sorted(turns.values()) == [60 * SECOND + rank * PROBE_STAGGER_US for rank in range(4)]
    survivors = tuple(replica for replica in REPLICAS if turns[replica] != 60 * SECOND)
    assert min(probe_from_us(gateway.known, replica, survivors) for replica in survivors) == 60 * SECOND


def test_of_two_probes_that_crossed_in_the_log_only_the_later_ones_outcome_counts() -> None:
    """Two replicas whose turns have begun send within the log's lag, and have not heard of each other."""
    gateway = opened()
    before = gateway.known
    assert gateway.say("dispatched", 61.0, replica="one")
    first, gateway.known = gateway.known, before
    assert gateway.say("dispatched", 61.001, replica="two")
    assert first is not None
    assert gateway.known is not None
    assert gateway.known.at_us > first.at_us  # the newer word wins in every replica

    assert not gateway.say("succeeded", 61.5, 61.0, "one")
    assert gateway.state is Circuit.HALF_OPEN
    assert gateway.say("succeeded", 61.6, 61.001, "two")


def test_workers_are_probed_by_different_replicas() -> None:
    first = set()
    for number in range(40):
        known = CircuitSet(f"w{number}:1", 0, "one", Circuit.OPEN, 0)
        first |= {replica for replica in REPLICAS if probe_from_us(known, replica, REPLICAS) == 0}
    assert first == set(REPLICAS)


def test_another_process_is_probed_at_once() -> None:
    """Failures of the old process say nothing of the new one; only its own answers prove it well."""
    gateway = Gateway()
    assert not gateway.say("restarted", 0)
    for _ in range(3):
        gateway.say("failed", 1)
    assert gateway.say("restarted", 2, replica="two")
    assert gateway.state is Circuit.HALF_OPEN
    assert gateway.allows(2)
    gateway.say("dispatched", 2)
    assert not gateway.allows(3)
    assert not gateway.say("restarted", 3)


def test_successful_probes_close_it_whoever_sends_them() -> None:
    gateway = opened()
    gateway.say("dispatched", 60.0)
    assert gateway.say("succeeded", 61.0, 60.0)
    assert (gateway.state, gateway.allows(61.0)) == (Circuit.HALF_OPEN, True)
    gateway.say("dispatched", 61.0, replica="two")
    assert gateway.say("succeeded", 62.0, 61.0, replica="two")
    assert gateway.state is Circuit.CLOSED
    assert not gateway.say("failed", 63.0)


def test_a_failed_probe_opens_it_again_and_the_successes_before_do_not_count() -> None:
    gateway = opened()
    for now_s, outcome in ((60.0, "succeeded"), (61.0, "failed")):
        gateway.say("dispatched", now_s)
        assert gateway.say(outcome, now_s + 0.5, now_s)
    assert gateway.state is Circuit.OPEN
    assert not gateway.allows(121.4)
    assert gateway.allows(121.5)
    gateway.say("dispatched", 121.5)
    gateway.say("succeeded", 122.0, 121.5)
    assert gateway.state is Circuit.HALF_OPEN


def test_late_answers_to_old_requests_neither_close_nor_prolong_it() -> None:
    gateway = opened()
    assert not gateway.say("succeeded", 1.0, 0.0)
    assert not gateway.say("failed", 30.0, 0.0)
    assert gateway.allows(60.0)


@pytest.mark.parametrize("replica", ["one", "two"])
def test_answers_to_requests_from_before_do_not_count_as_the_probes(replica: str) -> None:
    """Two streams of the bad minute end while the probe is out, one well, one not, at either replica."""
    gateway = opened()
    gateway.say("dispatched", 60.0)
    assert not gateway.say("succeeded", 61.0, 0.0, replica)
    assert not gateway.say("failed", 62.0, 0.0, replica)
    assert not gateway.say("released", 62.0, 0.0, replica)
    assert not gateway.allows(62.0)
    assert gateway.say("succeeded", 63.0, 60.0)


def test_failures_from_before_do_not_count_against_a_restored_worker() -> None:
    gateway = opened()
    for now_s in (60.0, 61.0):
        gateway.say("dispatched", now_s)
        gateway.say("succeeded", now_s + 0.5, now_s)
    for replica in REPLICAS:
        assert not any(gateway.say("failed", 62.0, 0.0, replica) for _ in range(9))
    assert [gateway.say("failed", 62.0, 62.0) for _ in range(3)] == [False, False, True]


def test_failures_counted_before_another_replica_opened_and_closed_it_are_forgotten() -> None:
    gateway = Gateway()
    for _ in range(2):
        gateway.say("failed", 0.0, replica="two")
    for _ in range(3):
        gateway.say("failed", 0.0)
    for now_s in (60.0, 61.0):
        gateway.say("dispatched", now_s)
        gateway.say("succeeded", now_s + 0.5, now_s)
    assert not gateway.say("failed", 63.0, replica="two")


def test_a_probe_whose_client_left_gives_its_turn_back() -> None:
    gateway = opened()
    gateway.say("dispatched", 60.0)
    assert gateway.say("succeeded", 60.5, 60.0)
    gateway.say("dispatched", 61.0)
    assert gateway.say("released", 62.0, 61.0)
    assert (gateway.state, gateway.allows(62.0)) == (Circuit.HALF_OPEN, True)
    gateway.say("dispatched", 62.0)
    gateway.say("succeeded", 63.0, 62.0)
    assert gateway.state is Circuit.CLOSED


def test_a_probe_that_has_its_outcome_is_released_without_a_word() -> None:
    gateway = opened()
    gateway.say("dispatched", 60.0)
    gateway.say("failed", 61.0, 60.0)
    assert not gateway.say("released", 61.0, 60.0)


def test_a_probe_that_is_never_reported_does_not_block_for_ever() -> None:
    """Its replica died."""
    gateway = opened()
    gateway.say("dispatched", 60.0)
    assert not gateway.allows(119.0, "two")
    assert gateway.allows(120.0, "two")
    gateway.say("dispatched", 120.0, replica="two")
    assert not gateway.say("succeeded", 121.0, 60.0)
    assert gateway.say("succeeded", 121.0, 120.0, "two")


def test_a_word_is_newer_than_what_it_follows_although_that_clock_was_ahead(gateway: Gateway) -> None:
    gateway.known = CircuitSet("a:1", 100 * SECOND, "two", Circuit.OPEN, 10 * SECOND)
    assert gateway.say("dispatched", 99.0)
    assert gateway.say("failed", 99.5, 99.0)


@pytest.mark.parametrize("now_s", [0.0, 1e9])
def test_a_closed_circuit_ignores_dispatches(gateway: Gateway, now_s: float) -> None:
    assert not gateway.say("dispatched", now_s)
    assert not gateway.say("released", now_s)
    assert gateway.allows(now_s)


@pytest.mark.parametrize(
    ("ratio", "workers", "ejected", "spared"),
    [
        *((0.5, 1, 1, 1), (0.5, 2, 1, 0), (0.5, 2, 2, 1), (0.5, 3, 3, 2), (0.5, 10, 5, 0), (0.5, 10, 7, 2)),
        *((0.0, 4, 2, 2), (0.9, 10, 10, 1), (0.999, 3, 3, 1), (1.0, 1, 1, 0), (1.0, 5, 5, 0)),
    ],
)
def test_no_more_than_a_share_is_ejected_and_below_one_never_the_last(
    ratio: float, workers: int, ejected: int, spared: int
) -> None:
    assert BreakerRules(ejected_ratio_max=ratio).spared(workers, ejected) == spared
