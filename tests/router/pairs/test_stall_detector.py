"""Legs that are given up because their worker has stalled, and others that are kept."""

from typing import Any

import pytest
from fakes.gateway import chat
from fakes.handover import FakePaired, PairBench

from policies import HAND_OVERS, Circuit, Finished, FirstToken, Placed, Shipping
from policies.dispatch.feedback import FITTED_MIN
from router.gateway.exchange import RequestExchange
from router.handover import Leg
from router.pairs.pair_reservation import PairReservation
from router.pairs.stall_detector import LOOK_S

FACTOR, FLOOR_S = 4.0, 10.0
TOKENS = 1_250
SERVICE_S = 0.02 + TOKENS / 15_000 * (1 + TOKENS / 2 / 140_000)
"""Service time of a prompt of `chat`, by the default profile."""

LIMIT_S = FACTOR * 0.2 + FLOOR_S
"""Longer than a prompt may take here without any cached block, with its expected answer."""

PROTOCOLS = tuple(HAND_OVERS)


def usage(prompt_tokens: int = TOKENS) -> bytes:
    counts = (
        b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}'
    )
    return counts % (prompt_tokens, 20)


class Fitted(PairBench):
    """Pairs whose measured prefills took ``slower`` times as long as in the profile."""

    def __init__(self, *counts: int, slower: float = 1.0, prefills: int = FITTED_MIN, **more: Any) -> None:
        super().__init__(*counts, **more)
        for number in range(prefills):
            self.start(chat(f"{number} " + "word " * 1000))
            self.prefill(slower * SERVICE_S)
            self.paired.began()
            self.paired.answer(usage())

    def prefill(self, seconds: float) -> None:
        """Let the one prefill leg answer after some time."""
        self.time.advance(seconds)
        self.paired.prefilled(usage())

    def ask(self, name: str, **more: Any) -> FakePaired:
        """Send a request; return the latest one at the workers."""
        self.start(chat(f"{name} " + "word " * 1000, stream=True, **more))
        paired = self.upstreams[-1]
        assert isinstance(paired, FakePaired)
        return paired

    def learn_decode(self) -> None:
        """Let decode workers have a measured 0.1 s per token."""
        for _ in range(100):
            self.gateway.placing.feedback.learn_decodes("default").observe(1.0, 9.9, 100)

    def reserved(self, paired: FakePaired) -> PairReservation:
        """Return a request's reservation."""
        (pair,) = [
            exchange._record.pair
            for exchange in self.gateway.sending.exchanges
            if isinstance(exchange, RequestExchange)
            and exchange._attempt is not None
            and exchange._attempt.upstream is paired
        ]
        assert pair is not None
        return pair

    def failures(self) -> dict[str, float]:
        """Legs that failed, by leg and kind."""
        return {
            line.split('kind="')[1].split('"')[0]: float(line.split()[-1])
            for line in self.metrics.exposition()[0].decode().splitlines()
            if line.startswith("cacheway_leg_failures_total{")
        }

    def answer(self, paired: FakePaired) -> None:
        paired.began()
        paired.answer(b"data: [DONE]\n\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_prefill_worker_that_stalls_is_given_up_and_another_pair_answers(protocol: str) -> None:
    bench = Fitted(2, 2, protocol=protocol)
    first = bench.ask("new")
    bench.time.advance(FLOOR_S)
    assert first.live
    bench.time.advance(LIMIT_S - FLOOR_S + LOOK_S)
    assert not first.live
    second = bench.paired
    assert second.pair.prefill is not first.pair.prefill
    bench.answer(second)
    assert bench.clients[-1].status == 200
    assert bench.failures() == {"prefill_stalled": 1}
    assert bench.metrics.exposition()[0].decode().count('reason="prefill_stalled"} 1.0') == 1
    assert not len(bench.pairs.stall_detector)
    bench.check()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_decode_worker_that_stalls_is_given_up_and_another_pair_answers(protocol: str) -> None:
    bench = Fitted(2, 2, protocol=protocol)
    first = bench.ask("new")
    bench.prefill(SERVICE_S)
    if protocol == "sglang":
        first.shipped()
    bench.time.advance(LIMIT_S + LOOK_S)
    assert not first.live
    second = bench.paired
    assert second.pair.decode is not first.pair.decode
    bench.answer(second)
    assert bench.failures() == {"decode_stalled": 1}
    bench.check()


def test_the_last_failure_is_the_clients_if_nobody_answers() -> None:
    bench = Fitted(1, 1, reliability={"retry_max_retries": 1})
    bench.ask("new")
    bench.time.advance(4 * LIMIT_S)
    assert (bench.clients[-1].status, bench.clients[-1].error["code"]) == (504, "prefill_stalled")
    assert bench.failures() == {"prefill_stalled": 2}
    bench.check()


def test_a_stalled_worker_is_ejected() -> None:
    bench = Fitted(2, 2)
    for number in range(12):
        paired = bench.ask(f"new {number}")
        if paired.pair.prefill.worker.worker_id == "p1:80":
            bench.answer(paired)
        else:
            bench.time.advance(LIMIT_S + LOOK_S)
            bench.answer(bench.paired)
    assert bench.failures() == {"prefill_stalled": 5}
    assert bench.registry.circuits.state(bench.local("p0:80")) is Circuit.OPEN


def test_nothing_is_given_up_before_the_worker_class_was_fitted() -> None:
    """Four times slower than the profile says, or a hundred: there are too few measurements yet."""
    bench = Fitted(1, 1, prefills=FITTED_MIN - 1)
    paired = bench.ask("new")
    bench.time.advance(100 * LIMIT_S)
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_a_slow_worker_is_fitted_and_then_waited_for() -> None:
    bench = Fitted(1, 1, slower=200.0)
    paired = bench.ask("new")
    bench.time.advance(100 * SERVICE_S)
    assert paired.live
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_a_prompt_much_longer_than_any_before_is_waited_for() -> None:
    bench = Fitted(1, 1)
    paired = bench.ask("long " * 10_000)
    bench.time.advance(600)
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_a_long_queue_that_moves_is_waited_for() -> None:
    """Twenty prefills of five seconds each, predicted to take a tenth of one."""
    bench = Fitted(1, 2, queue={"disable_queue": True})
    sent = [bench.ask(f"new {number}") for number in range(20)]
    for paired in sent:
        bench.time.advance(5.0)
        bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_what_another_replica_hears_of_a_worker_is_progress() -> None:
    bench = Fitted(1, 1, protocol="nixl")
    paired = bench.ask("new")
    for number in range(5):
        bench.time.advance(LIMIT_S - 1.0)
        now_us = bench.time.clock.now_us()
        bench.shared.fleet.apply(Placed(f"theirs-{number}", now_us - 1, "p0:80", "r2", 1, 1, 1))
        bench.shared.fleet.apply(Finished(f"theirs-{number}", now_us, now_us))
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_behind_a_long_prefill_others_wait_for_it() -> None:
    """One prompt in front may have any length."""
    bench = Fitted(1, 1)
    now_us = bench.time.clock.now_us()
    bench.shared.fleet.apply(Placed("long", now_us, "p0:80", "r2", 100_000, 1, 2_000_000))
    paired = bench.ask("new")
    bench.time.advance(5 * LIMIT_S)
    assert paired.live
    bench.shared.fleet.apply(Finished("long", bench.time.clock.now_us(), bench.time.clock.now_us()))
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_all_that_wait_behind_a_stalled_prefill_go_elsewhere_together() -> None:
    bench = Fitted(2, 2, queue={"disable_queue": True})
    bench.registry.change("p1:80", draining=True)
    stuck = [bench.ask(f"new {number}") for number in range(3)]
    bench.registry.change("p1:80", draining=False)
    bench.time.advance(1.2 * LIMIT_S)
    assert not any(paired.live for paired in stuck)
    again = [upstream for upstream in bench.upstreams if upstream.live]
    assert len(again) == 3
    for paired in again:
        assert isinstance(paired, FakePaired)
        assert paired.pair.prefill.worker.worker_id == "p1:80"
        bench.answer(paired)
    bench.check()


def test_of_two_that_wait_for_each_other_the_one_without_progress_has_stalled() -> None:
    """SGLang's prefill leg ends when its KV was taken; a request at the other decode worker completes."""
    bench = Fitted(1, 2)
    stuck = bench.ask("stuck")
    for number in range(60):
        bench.time.advance(0.5)
        if not stuck.live:
            break
        other = bench.ask(f"new {number}")
        if other.pair.decode is not stuck.pair.decode:
            bench.answer(other)
    assert not stuck.live
    assert set(bench.failures()) == {"decode_stalled"}


def test_an_answer_that_is_not_streamed_is_due_when_all_its_tokens_are() -> None:
    """0.1 s each, in any batch; it may begin when the request that decodes there has ended, after 9.9 s."""
    bench = Fitted(2, 2)
    bench.learn_decode()
    bench.start(chat("whole " * 800, max_tokens=100))
    first = bench.paired
    bench.prefill(SERVICE_S)
    first.shipped()
    bench.time.advance(FACTOR * (10.0 + 9.9) + FLOOR_S - 1.0)
    assert first.live
    bench.time.advance(3.0)
    assert not first.live
    bench.answer(bench.paired)
    assert bench.failures() == {"decode_stalled": 1}
    bench.check()


@pytest.mark.parametrize("known", [False, True])
def test_an_answer_of_unknown_length_or_speed_is_waited_for(known: bool) -> None:
    bench = Fitted(1, 1)
    if known:
        bench.learn_decode()
    bench.start(chat("whole " * 800, **({} if known else {"max_tokens": 100})))
    bench.prefill(SERVICE_S)
    bench.paired.shipped()
    bench.time.advance(1000.0)
    bench.answer(bench.paired)
    assert bench.failures() == {}
    bench.check()


def test_a_decode_worker_that_begins_other_answers_has_not_stalled() -> None:
    bench = Fitted(1, 1)
    waits = bench.ask("waits")
    waits.began()
    for number in range(5):
        bench.time.advance(LIMIT_S - 1.0)
        now_us = bench.time.clock.now_us()
        bench.shared.fleet.apply(Placed(f"theirs-{number}", now_us - 1, "d0:80", "r2", 0, 0, 1))
        bench.shared.fleet.apply(FirstToken(f"theirs-{number}", now_us))
        bench.shared.fleet.apply(Finished(f"theirs-{number}", now_us))
    assert waits.live
    bench.answer(waits)
    bench.check()


def test_what_crosses_a_link_may_take_as_long_as_was_planned_for_it() -> None:
    """Thirty seconds, for which four times as much may pass."""
    bench = Fitted(2, 2)
    first = bench.ask("new")
    pair = bench.reserved(first)
    at_us = pair.placed.at_us
    pair.shipping = Shipping(
        pair.decode_placed.request_id, at_us, "r1", "far>", 10**9, at_us, at_us + 30 * 10**6
    )
    bench.pairs.stall_detector.prefilling(pair)
    bench.time.advance(FACTOR * 30.0 + FLOOR_S)
    assert first.live
    bench.time.advance(LIMIT_S - FLOOR_S + LOOK_S)
    assert not first.live
    bench.answer(bench.paired)
    bench.check()


def test_a_decode_worker_that_ends_other_answers_has_not_stalled() -> None:
    """Their KV came long before."""
    bench = Fitted(1, 1)
    others = [bench.ask(f"other {number}") for number in range(5)]
    for other in others:
        other.began()
        other.head(200)
        other.data(b"data: {}\n\n")
    waits = bench.ask("waits")
    waits.began()
    for other in others:
        bench.time.advance(LIMIT_S - 1.0)
        other.end()
    assert waits.live
    bench.time.advance(LIMIT_S + LOOK_S)
    assert bench.failures() == {"decode_stalled": 1}
    bench.answer(bench.paired)
    bench.check()


def test_nothing_is_given_up_where_that_is_turned_off() -> None:
    bench = Fitted(1, 1, reliability={"stall_factor": 0})
    paired = bench.ask("new")
    bench.time.advance(100 * LIMIT_S)
    bench.answer(paired)
    assert bench.failures() == {}
    bench.check()


def test_an_answer_that_has_begun_is_waited_for_no_more() -> None:
    bench = Fitted(1, 1)
    paired = bench.ask("new")
    assert len(bench.pairs.stall_detector) == 1
    paired.leg = Leg.DECODE
    paired.began()
    paired.head(200)
    paired.data(b"data: {}\n\n")
    assert len(bench.pairs.stall_detector) == 0
    bench.time.advance(10 * LIMIT_S)
    paired.end()
    bench.check()
