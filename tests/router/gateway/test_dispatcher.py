"""A request for a prefill and a decode worker: placed, sent, and redispatched if a leg fails."""

import pytest
from fakes.gateway import SSE, chat
from fakes.handover import FakePaired, PairBench

from policies import Circuit, Placed, Shipping
from router.engines import Description
from router.errors import (
    HandoverFailed,
    StreamBroken,
    TransferFailed,
    WorkerRefused,
    WorkerUnreachable,
)
from router.fleet import ServedModel
from router.gateway.exchange import RequestExchange
from router.handover import Leg
from router.pairs.pair_attempt import PairAttempt


def pair_of(request: FakePaired) -> dict[Leg, str]:
    return {
        Leg.PREFILL: request.pair.prefill.worker.worker_id,
        Leg.DECODE: request.pair.decode.worker.worker_id,
    }


@pytest.mark.parametrize("leg", Leg)
def test_the_worker_of_a_failed_leg_is_avoided_and_its_partner_is_not(leg: Leg) -> None:
    bench = PairBench(2, 2)
    bench.start(chat(stream=True))
    first = bench.paired
    first.fail_leg(leg, HandoverFailed("lost"))
    second = bench.paired
    assert pair_of(first)[leg] != pair_of(second)[leg]
    second.began()
    second.answer(b"data: [DONE]\n\n")
    assert bench.clients[0].status == 200
    bench.check()


def test_the_innocent_partner_is_the_only_one_left_and_is_asked_again() -> None:
    bench = PairBench(2, 1)
    bench.start(chat(stream=True))
    first = bench.paired
    first.fail_leg(Leg.PREFILL, WorkerRefused("refused"))
    second = bench.paired
    assert pair_of(first)[Leg.PREFILL] != pair_of(second)[Leg.PREFILL]
    assert pair_of(second)[Leg.DECODE] == "d0:80"
    second.began()
    second.answer(b"data: [DONE]\n\n")
    bench.check()


@pytest.mark.parametrize("leg", Leg)
def test_the_only_pair_is_asked_again_after_a_pause(leg: Leg) -> None:
    bench = PairBench(1, 1)
    bench.start(chat(stream=True))
    bench.paired.fail_leg(leg, WorkerUnreachable("reset"))
    assert not any(upstream.live for upstream in bench.upstreams)
    assert bench.own == []
    bench.time.advance(0.2)
    bench.paired.began()
    bench.paired.answer(b"data: [DONE]\n\n")
    assert bench.clients[0].status == 200
    bench.check()


@pytest.mark.parametrize("leg", Leg)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_error_of_either_leg_that_another_worker_may_better_is_redispatched(leg: Leg, status: int) -> None:
    bench = PairBench(2, 2)
    bench.start(chat())
    first = bench.paired
    first.refuse(leg, status)
    assert first.aborted
    second = bench.paired
    assert pair_of(first)[leg] != pair_of(second)[leg]
    second.began()
    second.answer()
    assert bench.clients[0].status == 200
    bench.check()


@pytest.mark.parametrize("leg", Leg)
def test_an_error_that_blames_the_request_passes_through_with_both_workers_named(leg: Leg) -> None:
    bench = PairBench(2, 2)
    _, client = bench.start(chat())
    pair = pair_of(bench.paired)
    bench.paired.refuse(leg, 400)
    assert (client.status, client.body) == (400, b'{"theirs":1}')
    assert client.headers[b"x-cacheway-worker"] == pair[Leg.DECODE].encode()
    assert client.headers[b"x-cacheway-prefill-worker"] == pair[Leg.PREFILL].encode()
    bench.check()


def test_without_attempts_left_the_failure_of_the_leg_is_the_answer() -> None:
    bench = PairBench(2, 2, reliability={"retry_max_retries": 1})
    _, client = bench.start(chat())
    bench.paired.fail_leg(Leg.PREFILL, HandoverFailed("the room stayed empty"))
    bench.paired.fail_leg(Leg.DECODE, HandoverFailed("no KV came"))
    assert (client.status, client.error["code"]) == (502, "handover_failed")
    assert client.error["message"] == "no KV came"
    bench.check()


def test_kv_that_did_not_come_is_fetched_by_another_decode_worker_first() -> None:
    bench = PairBench(2, 2, protocol="nixl")
    bench.start(chat())
    first = bench.paired
    first.prefilled()
    first.fail_leg(Leg.DECODE, TransferFailed("no KV"))
    assert pair_of(first)[Leg.DECODE] != pair_of(bench.paired)[Leg.DECODE]
    bench.paired.began()
    bench.paired.answer()
    bench.check()


def test_kv_that_did_not_come_to_the_only_decode_worker_is_asked_of_another_prefill_worker() -> None:
    bench = PairBench(2, 1, protocol="nixl")
    bench.start(chat())
    first = bench.paired
    first.prefilled()
    first.fail_leg(Leg.DECODE, TransferFailed("no KV"))
    assert pair_of(first)[Leg.PREFILL] != pair_of(bench.paired)[Leg.PREFILL]
    assert pair_of(bench.paired)[Leg.DECODE] == "d0:80"
    bench.paired.began()
    bench.paired.answer()
    bench.check()


def test_the_decode_worker_of_the_only_pair_computes_alone_what_did_not_come() -> None:
    bench = PairBench(1, 1, protocol="nixl")
    bench.start(chat())
    bench.paired.prefilled()
    bench.paired.fail_leg(Leg.DECODE, TransferFailed("no KV"))
    alone = bench.upstream
    assert not isinstance(alone, FakePaired)
    alone.answer()
    assert bench.clients[0].status == 200
    assert bench.clients[0].headers[b"x-cacheway-worker"] == b"d0:80"
    bench.check()


def test_a_pair_that_fails_makes_way_for_a_plain_worker_and_the_other_way_round() -> None:
    bench = PairBench(1, 1, plain=1)
    bench.start(chat())
    kinds = []
    for _ in range(2):
        upstream = bench.upstream
        kinds.append(isinstance(upstream, FakePaired))
        if len(kinds) == 2:
            break
        if isinstance(upstream, FakePaired):
            upstream.fail_leg(Leg.DECODE, HandoverFailed("lost"))
        else:
            upstream.fail(WorkerUnreachable("reset"))
    assert sorted(kinds) == [False, True]
    if isinstance(bench.upstream, FakePaired):
        bench.paired.began()
    bench.upstream.answer()
    log = bench.log[-1]
    assert ("prefill_worker_id" in log) == kinds[-1]
    assert (b"x-cacheway-prefill-worker" in bench.clients[0].headers) == kinds[-1]
    bench.check()


def test_a_circuit_opens_for_the_worker_that_fails_and_parts_no_other_pair() -> None:
    """Every leg at `d0` fails; each prefill worker still works with `d1`."""
    bench = PairBench(2, 2, reliability={"retry_max_retries": 10})
    for number in range(12):
        bench.start(chat(f"{number} " * 1000, stream=True))
        while pair_of(bench.paired)[Leg.DECODE] == "d0:80":
            bench.paired.fail_leg(Leg.DECODE, WorkerUnreachable("reset"))
        bench.paired.began()
        bench.paired.answer(b"data: [DONE]\n\n")
    circuits = bench.registry.circuits
    states = {local.worker.worker_id: circuits.state(local) for local in bench.registry.all()}
    assert states.pop("d0:80") is Circuit.OPEN
    assert set(states.values()) == {Circuit.CLOSED}
    bench.check()


def test_a_stream_that_began_ends_with_its_error_and_is_not_redispatched() -> None:
    bench = PairBench(2, 2)
    _, client = bench.start(chat(stream=True))
    paired = bench.paired
    paired.began()
    paired.head(200, SSE)
    paired.data(b"data: {}\n\n")
    paired.fail_leg(Leg.DECODE, StreamBroken("reset"))
    assert client.finished
    assert client.body.endswith(b"}}\n\n")
    assert b"upstream_stream_broken" in client.body
    assert len(bench.shared.said(Placed)) == 2
    bench.check()


# Across a link.


def far_pair(prefill: int = 1) -> tuple[PairBench, RequestExchange]:
    """A request on its way to a prefill worker in another site; a local one comes only now."""
    bench = PairBench(0, 1)
    for number in range(prefill):
        bench.add_half(f"far{number}:80", "prefill", site="far")
    exchange, _ = bench.start(chat(stream=True))
    pair = exchange._record.pair
    assert pair is not None
    now_us = pair.placed.at_us
    pair.shipping = Shipping(
        pair.decode_placed.request_id, now_us, "r1", "far>", 5_000_000, now_us, now_us + 10**6
    )
    return bench, exchange


def late(exchange: RequestExchange) -> None:
    """The KV of a pair is late on its link."""
    assert isinstance(exchange._attempt, PairAttempt)
    exchange._attempt.late()


@pytest.mark.parametrize("prefilled", [False, True])
def test_a_transfer_that_is_late_makes_way_for_a_prefill_on_this_side(prefilled: bool) -> None:
    """Neither worker is to blame."""
    bench, exchange = far_pair(2)
    bench.add_half("p0:80", "prefill")
    first = bench.paired
    if prefilled:
        first.prefilled()
    late(exchange)
    assert first.aborted
    second = bench.paired
    assert pair_of(second) == {Leg.PREFILL: "p0:80", Leg.DECODE: "d0:80"}
    second.began()
    second.answer(b"data: [DONE]\n\n")
    metrics = bench.metrics.exposition()[0].decode()
    assert 'cacheway_handovers_total{outcome="transfer_late",protocol="sglang"} 1.0' in metrics
    assert 'cacheway_redispatches_total{reason="transfer_late"} 1.0' in metrics
    assert "cacheway_leg_failures_total{" not in metrics
    bench.check()


def test_a_transfer_that_is_late_is_waited_for_while_there_is_no_other_way() -> None:
    bench, exchange = far_pair(2)
    paired = bench.paired
    late(exchange)
    assert not paired.aborted
    paired.began()
    late(exchange)
    paired.answer(b"data: [DONE]\n\n")
    assert bench.clients[0].status == 200
    bench.check()


def test_a_transfer_that_is_late_is_waited_for_without_budget_for_another_attempt() -> None:
    bench, exchange = far_pair()
    bench.add_half("p0:80", "prefill")
    while bench.gateway.sending.retry_budget.withdraw(bench.time.time()):
        pass
    late(exchange)
    assert not bench.paired.aborted
    bench.paired.began()
    bench.paired.answer(b"data: [DONE]\n\n")
    bench.check()


@pytest.mark.parametrize("leg", Leg)
def test_what_fails_across_a_link_is_prefilled_on_this_side(leg: Leg) -> None:
    """The other workers of that site are not tried: it may be the link. The only decode worker is."""
    bench, _ = far_pair(3)
    bench.add_half("p0:80", "prefill")
    bench.paired.refuse(leg, 500)
    assert pair_of(bench.paired) == {Leg.PREFILL: "p0:80", Leg.DECODE: "d0:80"}
    bench.paired.began()
    bench.paired.answer(b"data: [DONE]\n\n")
    bench.check()


# Requests that cannot be served.


def test_what_is_missing_in_a_fleet_of_halves_is_said() -> None:
    bench = PairBench(1, 0)
    _, client = bench.start(chat())
    assert (client.status, client.error["code"]) == (503, "no_worker_available")
    assert "have no decode worker for it that is well: add one." in client.error["message"]
    bench.add_half("d0:80", "decode", "nixl")
    bench.registry.described(bench.local("p0:80"), (ServedModel(chat()["model"]),), Description("", 0))
    bench.registry.described(bench.local("d0:80"), (ServedModel("other"),), Description("", 0))
    _, client = bench.start(chat())
    assert "have no decode worker" in client.error["message"]
    bench.check()


def test_a_request_that_cannot_be_split_goes_to_a_worker_that_does_all_of_it() -> None:
    """Several samples: NIXL's decode workers compute prompts, too; SGLang's do not."""
    bench = PairBench(1, 1, protocol="nixl")
    _, client = bench.start(chat(n=2))
    assert not isinstance(bench.upstream, FakePaired)
    *_, last = bench.upstream.sent["body"]
    assert last == b" ", "the hand-over has a say in what it hears"
    bench.upstream.answer()
    assert client.headers[b"x-cacheway-worker"] == b"d0:80"
    assert 'cacheway_whole_at_decode_total{worker="d0:80"} 1.0' in bench.metrics.exposition()[0].decode()
    bench.check()
    bench = PairBench(1, 1, protocol="sglang")
    _, client = bench.start(chat(n=2))
    assert (client.status, client.error["code"]) == (503, "no_worker_available")
    assert "they need a plain worker" in client.error["message"]
    bench.check()


def test_pairs_that_cannot_share_a_request_are_nobody_else_to_ask() -> None:
    """Its only worker is asked again after a pause, and an answer of it passes through."""
    bench = PairBench(1, 1, plain=1)
    _, client = bench.start(chat(n=2))
    bench.upstream.fail(WorkerUnreachable("reset"))
    assert not any(upstream.live for upstream in bench.upstreams)
    bench.time.advance(0.2)
    bench.upstream.answer(b'{"busy":1}', 503)
    assert (client.status, client.body) == (503, b'{"busy":1}')
    bench.check()


def test_what_needs_no_prefill_goes_to_either_half() -> None:
    bench = PairBench(1, 1)
    _, client = bench.start({"model": "m", "prompt": "x"}, path=b"/tokenize")
    bench.upstream.answer()
    assert client.status == 200
    bench.check()
