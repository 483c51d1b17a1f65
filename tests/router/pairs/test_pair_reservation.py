"""A pair's reservation: two attempts and a link, each released once, in any order of events."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes.gateway import chat
from fakes.handover import PairBench
from hypothesis import given
from hypothesis import strategies as st

from policies import Circuit, Finished, FirstToken, Left, OpRefused, Placed, Shipped, Shipping, Trim, Usage
from router.errors import HandoverFailed, TransferFailed, WorkerUnreachable
from router.handover import Leg
from router.pairs.pair_attempt import PairAttempt
from router.pairs.pair_phase import PairPhase
from router.pairs.pair_reservation import PairReservation


def reserved(bench: PairBench) -> PairReservation:
    """The reservation of a stream that has just been sent."""
    exchange, _ = bench.start(chat(stream=True))
    assert isinstance(exchange._attempt, PairAttempt)
    return exchange._attempt.pair


def answer(bench: PairBench) -> None:
    """End the only request well."""
    paired = bench.paired
    paired.began()
    paired.answer(b"data: [DONE]\n\n")


def with_link(reservation: PairReservation) -> PairReservation:
    """The same request, with a part of a link that is not reserved yet."""
    bench_us = reservation.placed.at_us
    shipping = Shipping(
        reservation.decode_placed.request_id, bench_us, "r1", "far>", 5_000_000, bench_us, bench_us + 10**6
    )
    return msgspec.structs.replace(reservation, shipping=shipping)


def said_of(bench: PairBench, request_id: str, since: int = 0) -> list[str]:
    return [
        type(op).__name__ for op in bench.shared.ops[since:] if getattr(op, "request_id", "") == request_id
    ]


def test_both_workers_are_reserved_before_anything_is_sent_and_released_one_after_the_other() -> None:
    bench = PairBench(1, 1)
    bench.start(chat(stream=True))
    loads = bench.shared.fleet.loads
    prefill, decode = (bench.local(name).worker.slot for name in ("p0:80", "d0:80"))
    assert (bench.course("p0"), bench.course("d0")) == (["Placed"], ["Placed"])
    assert loads.prefill_tokens[prefill] > 1000
    assert (loads.inflight_requests[decode], loads.prefill_us[decode]) == (2, 0)
    assert loads.inflight_tokens[decode] > 1000
    bench.paired.prefilled()
    assert (bench.course("p0"), bench.course("d0")) == (["Placed", "Finished"], ["Placed"])
    assert (loads.inflight_requests[prefill], loads.inflight_requests[decode]) == (0, 2)
    assert bench.shared.said(Finished)[0].prefilled_us > 0
    bench.paired.shipped()
    assert bench.course("d0") == ["Placed", "FirstToken"]
    bench.paired.answer(b"data: [DONE]\n\n")
    assert bench.course("d0") == ["Placed", "FirstToken", "Finished"]
    bench.check()


def test_the_prompt_is_cached_where_it_was_prefilled() -> None:
    """An SGLang decode worker keeps nothing; the next request finds the prompt at its prefill worker."""
    bench = PairBench(2, 1)
    bench.start(chat(stream=True))
    first = bench.paired.pair.prefill
    answer(bench)
    bench.start(chat(stream=True))
    assert bench.paired.pair.prefill is first
    answer(bench)
    held = [bench.shared.fleet.tree.held_blocks(bench.local(name).worker.slot) for name in ("d0:80", "p0:80")]
    assert held[0] == 0
    assert bench.log[-1]["cached_tokens"] == 1024
    bench.check()


@pytest.mark.parametrize("protocol", ["nixl", "mooncake"])
def test_a_decode_worker_that_keeps_prefixes_holds_the_prompt_too(protocol: str) -> None:
    bench = PairBench(1, 1, protocol=protocol)
    bench.start(chat(stream=True))
    paired = bench.paired
    answer(bench)
    for local in (paired.pair.prefill, paired.pair.decode):
        assert bench.shared.fleet.tree.held_blocks(local.worker.slot) == 4
    bench.check()


@pytest.mark.parametrize("prefilled", [False, True])
def test_what_was_inserted_on_trust_is_taken_back_as_far_as_it_did_not_come_true(prefilled: bool) -> None:
    """A finished prefill is in its worker's cache, independent of the decode."""
    bench = PairBench(1, 1, protocol="nixl", reliability={"disable_retries": True})
    bench.start(chat(stream=True))
    paired = bench.paired
    if prefilled:
        paired.prefilled()
    paired.fail_leg(Leg.DECODE, HandoverFailed("lost"))
    trimmed = {op.worker for op in bench.shared.said(Trim)}
    assert trimmed == ({"d0:80"} if prefilled else {"p0:80", "d0:80"})
    bench.check()


def test_the_link_is_free_when_the_kv_has_arrived() -> None:
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    answer(bench)
    again = with_link(reservation)
    again.phase = PairPhase.UNMADE
    since = len(bench.shared.ops)
    again.make()
    again.prefill_over()
    assert not bench.shared.said(Shipped)
    again.shipped()
    again.release(abandoned=False)
    assert said_of(bench, again.decode_placed.request_id, since) == [
        "Placed",
        "Shipping",
        "FirstToken",
        "Shipped",
        "Finished",
    ]


@pytest.mark.parametrize(("protocol", "said"), [("sglang", 1), ("nixl", 2)])
def test_a_pull_is_said_again_when_the_prefill_has_really_ended(protocol: str, said: int) -> None:
    """The KV leaves then, and takes as long as planned; parts sent during the prefill have left already."""
    bench = PairBench(1, 1, protocol=protocol)
    reservation = reserved(bench)
    answer(bench)
    again = with_link(reservation)
    again.phase = PairPhase.UNMADE
    again.make()
    bench.time.advance(3)
    over_us = bench.time.clock.now_us()
    again.prefill_over()
    plans = bench.shared.said(Shipping)
    assert len(plans) == said
    assert plans[-1].end_us - plans[-1].start_us == 10**6
    assert (plans[-1].start_us >= over_us) == (said == 2)
    again.release(abandoned=False)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_what_is_reserved_again_is_what_is_still_to_come(steps: int) -> None:
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    for step in (bench.paired.prefilled, bench.paired.shipped)[:steps]:
        step()
    left_us = bench.time.clock.now_us()
    bench.shared.publish(Left("r1", left_us))
    assert not bench.own
    since = len(bench.shared.ops)
    reservation.renew(left_us, left_us + 1)
    reservation.renew(left_us, left_us + 2)
    again = bench.shared.ops[since:]
    assert [type(op) for op in again] == [
        [Placed, Placed],
        [Placed],
        [Placed, FirstToken],
    ][steps]
    assert all(op.paths == () and op.at_us == left_us + 1 for op in again if isinstance(op, Placed))
    assert bench.own == [["d0:80", "p0:80"], ["d0:80"], ["d0:80"]][steps]
    answer(bench)
    assert not bench.own


def test_a_link_that_is_still_used_is_reserved_again() -> None:
    bench = PairBench(1, 1)
    reservation = with_link(reserved(bench))
    left_us = bench.time.clock.now_us()
    reservation.renew(left_us, left_us + 1)
    (shipping,) = bench.shared.said(Shipping)
    assert shipping.at_us == left_us + 1
    answer(bench)


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        (lambda pair: pair.shipped(), set()),
        (lambda pair: pair.release(abandoned=True), set()),
        (lambda pair: pair.worker_failed(HandoverFailed("lost")), {"d0:80"}),
    ],
)
def test_who_watches_the_link_hears_how_the_transfer_ended(
    ends: Callable[[PairReservation], None], blamed: set[str]
) -> None:
    bench = PairBench(1, 1)
    reservation = with_link(reserved(bench))
    reservation.phase = PairPhase.UNMADE
    watch = bench.pairs.link_watch
    reservation.make()
    reservation.prefill_over()
    assert len(watch) == 1
    ends(reservation)
    assert (len(watch), set(watch._failed_us)) == (0, blamed)


@pytest.mark.parametrize("leg", Leg)
def test_a_failure_is_one_workers_in_its_circuit_and_in_metrics(leg: Leg) -> None:
    """Five failures open the circuit; the partner's stays closed."""
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    bench.paired.leg = leg
    for _ in range(5):
        bench.count(reservation.worker_failed(WorkerUnreachable("refused")))
    states = {
        Leg.PREFILL: bench.registry.circuits.state(reservation.prefill),
        Leg.DECODE: bench.registry.circuits.state(reservation.decode),
    }
    assert states.pop(leg) is Circuit.OPEN
    assert [*states.values()] == [Circuit.CLOSED]
    metrics = bench.metrics.exposition()[0].decode()
    labels = f'kind="upstream_unreachable",leg="{leg.value}",protocol="sglang"'
    assert f"cacheway_leg_failures_total{{{labels}}} 5.0" in metrics
    bench.paired.leg = Leg.DECODE
    answer(bench)


def test_kv_that_does_not_come_counts_for_both_workers() -> None:
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    bench.paired.prefilled()
    for _ in range(5):
        bench.count(reservation.worker_failed(TransferFailed("no KV")))
    states = [bench.registry.circuits.state(each) for each in (reservation.prefill, reservation.decode)]
    assert states == [Circuit.OPEN, Circuit.OPEN]
    assert 'kind="kv_transfer_failed",leg="decode"' in bench.metrics.exposition()[0].decode()
    answer(bench)


def test_a_prefill_has_done_well_when_its_kv_has_arrived() -> None:
    """A good end of its leg proves nothing: the KV may still be lost."""
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    breaker = reservation.prefill.breaker
    assert breaker is not None
    bench.count(reservation.worker_failed(TransferFailed("no KV")))
    bench.paired.prefilled()
    assert breaker.failures == 1
    bench.paired.shipped()
    assert breaker.failures == 0
    answer(bench)


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        (lambda bench: answer(bench), "completed"),
        (lambda bench: bench.paired.fail_leg(Leg.PREFILL, HandoverFailed("lost")), "prefill_failed"),
        (lambda bench: bench.paired.fail_leg(Leg.DECODE, HandoverFailed("lost")), "decode_failed"),
        (lambda bench: bench.paired.refuse(Leg.PREFILL, 500), "prefill_failed"),
        (lambda bench: bench.paired.refuse(Leg.PREFILL, 400), "refused"),
        (lambda bench: next(iter(bench.gateway.sending.exchanges)).interrupt(), "client_left"),
    ],
)
def test_how_an_attempt_ended_is_counted(ends: Callable[[PairBench], None], outcome: str) -> None:
    bench = PairBench(1, 1, reliability={"disable_retries": True})
    bench.start(chat(stream=True))
    ends(bench)
    metrics = bench.metrics.exposition()[0].decode()
    counted = [line for line in metrics.splitlines() if line.startswith("cacheway_handovers_total")]
    assert counted == [f'cacheway_handovers_total{{outcome="{outcome}",protocol="sglang"}} 1.0']
    bench.check()


# Measurements.


@pytest.mark.parametrize(
    ("prefill", "decode", "both"),
    [
        (Usage(100, 60, 1), Usage(100, 0, 20), Usage(100, 60, 20)),
        (Usage(100, 60, 1), None, Usage(100, 60, None)),
        (Usage(100, None, 1), Usage(100, 3, 20), Usage(100, None, 20)),
        (None, Usage(100, 3, 20), Usage(100, None, 20)),
        (None, None, None),
    ],
)
def test_the_prefill_worker_knows_what_was_cached_and_the_decode_worker_what_was_generated(
    prefill: Usage | None, decode: Usage | None, both: Usage | None
) -> None:
    """A decode worker of vLLM counts only its own cache, without the KV that it received."""
    bench = PairBench(1, 1)
    reservation = reserved(bench)
    assert reservation.understood(prefill, decode) == both
    answer(bench)


USAGE = (
    b'{"usage":{"prompt_tokens":1250,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}'
)


@pytest.mark.parametrize(("protocol", "exposed_s"), [("sglang", 0.5), ("nixl", 0.0)])
@pytest.mark.parametrize("stream", [True, False])
def test_the_cost_model_learns_from_the_prefill_leg_alone(
    protocol: str, exposed_s: float, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SGLang prefill leg ends when its KV is sent; the exposed part of it was predicted."""
    bench = PairBench(1, 1, protocol=protocol)
    exchange, _ = bench.start(chat(stream=stream))
    reservation = exchange._attempt.reservation
    assert isinstance(reservation, PairReservation)
    chosen = msgspec.structs.replace(
        reservation.attempt.chosen,
        transfer_s=0.5,
        estimated_ttft_s=reservation.attempt.chosen.estimated_ttft_s + 0.5,
    )
    reservation.attempt = msgspec.structs.replace(reservation.attempt, chosen=chosen)
    learned: list[tuple[Any, ...]] = []
    decoded: list[tuple[Any, ...]] = []
    feedback = bench.gateway.placing.feedback
    monkeypatch.setattr(feedback, "_learn_service", lambda *values: learned.append(values))
    monkeypatch.setattr(feedback, "decoded", lambda *values: decoded.append(values))
    paired = bench.paired
    bench.time.advance(2.0)
    paired.prefilled(USAGE % (1, 256))
    bench.time.advance(1.0)
    paired.shipped()
    paired.head(200)
    if stream:
        paired.data(b"data: {}\n\n")
    bench.time.advance(4.0)
    paired.data(b"data: " + USAGE % (20, 0) + b"\n\n")
    paired.end()
    ((_, prompt_tokens, cached_tokens, prefill_s, _),) = learned
    assert (prompt_tokens, cached_tokens) == (1250, 256)
    assert prefill_s == pytest.approx(2.0 - exposed_s)
    ((worker_id, decode_s, tokens, _),) = decoded
    assert (worker_id, tokens) == ("d0:80", 20)
    # From the first byte of a stream on; for a whole answer from the predicted arrival of the KV.
    assert decode_s == pytest.approx(4.0 if stream else 5.0 if protocol == "sglang" else 4.5)
    bench.check()


def test_a_prefill_leg_that_does_not_say_when_it_ended_teaches_nothing_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decode leg's first byte reports the end, some time after it."""
    bench = PairBench(1, 1)
    bench.start(chat())
    for name in ("_learn_service", "decoded"):
        monkeypatch.setattr(bench.gateway.placing.feedback, name, lambda *_: pytest.fail("learned"))
    paired = bench.paired
    bench.time.advance(2.0)
    paired.began()
    paired.answer(USAGE % (20, 0))
    bench.check()


# Any order.

EVENTS: dict[str, Callable[[PairReservation], None]] = {
    "prefill_over": PairReservation.prefill_over,
    "shipped": PairReservation.shipped,
    "answer begins": PairReservation.prefill_ended,
    "fails": lambda reservation: reservation.worker_failed(HandoverFailed("lost")),
    "is released": lambda reservation: reservation.release(abandoned=True),
    "is done": lambda reservation: reservation.release(
        abandoned=False, prefilled_us=reservation.gateway.log.now_us()
    ),
}


@given(
    st.lists(st.sampled_from([*EVENTS, "given up"]), max_size=8),
    st.sampled_from(("is released", "is done")),
)
def test_each_reservation_is_released_once_in_any_order(events: list[str], end: str) -> None:
    bench = PairBench(1, 1, reliability={"disable_circuit_breaker": True})
    exchange, _ = bench.start(chat(stream=True))
    attempt = exchange._attempt
    assert isinstance(attempt, PairAttempt)
    reservation = with_link(attempt.pair)
    attempt.reservation = attempt.pair = exchange._record.pair = reservation
    assert reservation.shipping is not None
    bench.shared.publish(reservation.shipping)
    for event in [*events, end]:
        bench.time.advance(0.001)
        if event == "given up":
            left_us = bench.time.clock.now_us()
            bench.shared.publish(Left("r1", left_us))
            reservation.renew(left_us, left_us + 1)
        else:
            EVENTS[event](reservation)
    kinds = {name: Counter(bench.course(name)) for name in ("p0", "d0")}
    for said in kinds.values():
        assert said["Finished"] == 1
    assert kinds["p0"]["FirstToken"] == 0
    assert kinds["d0"]["Shipped"] <= 1
    assert not bench.own
    assert not bench.shared.fleet.loads.prefill_us.any()
    assert bench.gateway.sending.at_workers == 0
    exchange.client_left()
    assert not bench.own


@pytest.mark.parametrize("refused", [Placed, Shipping])
def test_if_one_of_the_three_cannot_be_published_none_is_reserved(refused: type[Any]) -> None:
    bench = PairBench(1, 1)
    reservation = with_link(reserved(bench))
    said, loads = len(bench.shared.ops), bench.shared.fleet.loads
    before = loads.inflight_requests.copy()
    again = msgspec.structs.replace(reservation, phase=PairPhase.UNMADE, request=None)
    bench.shared.refuses = refused
    with pytest.raises(OpRefused):
        again.make()
    again.release(abandoned=True)
    assert len(bench.shared.ops) == said
    assert (loads.inflight_requests == before).all()
