"""Slow after a second of late answers, well again after three in time, and one stall counts once."""

from router.shared.degraded_reasons import DegradedReasons
from router.shared.ports import NoListener
from router.shared.redis_latency import RedisLatency


class Answers:
    """Round trips, one after another."""

    def __init__(self) -> None:
        self.degraded_reasons = DegradedReasons(NoListener())
        self.unheard = False
        self.redis_latency = RedisLatency(self.degraded_reasons, lambda: self.unheard)
        self.at_s = 100.0

    def take(self, *took_s: float, expected_s: float = 0.0) -> bool:
        """Measure some; whether Redis is slow now."""
        for one_s in took_s:
            self.redis_latency.measured(self.at_s, self.at_s + one_s, expected_s)
            self.at_s += one_s
        return self.degraded_reasons.reason is not None


def test_a_second_of_late_answers_is_slow_and_says_how_late() -> None:
    answers = Answers()
    assert not answers.take(0.1, 0.001, 0.1, 0.001)
    assert not answers.take(*9 * [0.1])
    assert answers.take(0.11)
    assert answers.degraded_reasons.reason == "Redis answers late: after 110 ms"


def test_a_busy_moment_of_the_machine_is_not_slow() -> None:
    """Two or three late answers within a second come and go; a banner and a log line for each say nothing."""
    answers = Answers()
    for _ in range(10):
        assert not answers.take(0.24, 0.24, 0.24, 0.001)


def test_it_is_well_again_after_three_answers_that_are_clearly_in_time() -> None:
    """60 ms are neither late nor in time: they change nothing."""
    answers = Answers()
    assert answers.take(0.6, 0.6)
    assert answers.take(0.001, 0.001, 0.06, 0.001, 0.001)
    assert not answers.take(0.001)
    assert not answers.take(0.06, 0.06, 0.06)


def test_a_blocking_read_is_late_by_what_exceeds_its_block() -> None:
    answers = Answers()
    assert not answers.take(*10 * [0.21], expected_s=0.2)
    assert answers.take(*4 * [0.3], expected_s=0.2)


def test_an_answer_that_is_overdue_is_slow_until_answers_are_in_time_again() -> None:
    answers = Answers()
    answers.redis_latency.overdue(0.25)
    assert answers.degraded_reasons.reason == "Redis has not answered for 0.25 s"
    assert answers.take(0.3, 0.001, 0.001)
    assert answers.degraded_reasons.reason == "Redis answers late: after 300 ms"
    assert not answers.take(0.001)


def test_one_stall_counts_once_however_much_was_under_way() -> None:
    answers = Answers()
    for sent_s in (100.0, 100.1, 100.2):
        answers.redis_latency.measured(sent_s, 101.5)
    assert answers.degraded_reasons.reason is None
    answers.redis_latency.measured(101.5, 101.7)
    assert answers.degraded_reasons.reason is not None


def test_a_replica_alone_with_its_own_valkey_is_never_slow_until_another_one_comes() -> None:
    answers = Answers()
    answers.unheard = True
    assert not answers.take(0.5, 0.5, 0.5, 0.5)
    answers.redis_latency.overdue(0.25)
    assert not answers.take(0.5)

    answers.unheard = False
    assert answers.take(0.5, 0.5)
    answers.unheard = True
    assert not answers.take(0.5)
