"""One attempt in the log: reserved, prefilled and released, each once and in this order."""

import pytest
from fakes.gateway import JSON, SSE, Bench, chat

from policies import Circuit, Finished, FirstToken, Left, Placed
from router.errors import WorkerUnreachable
from router.gateway.reservation import Reservation


def test_the_first_byte_of_a_stream_ends_its_prefill(bench: Bench) -> None:
    bench.start(chat(stream=True))
    upstream = bench.upstream
    assert upstream.sent["patient"] is False
    bench.time.advance(60)
    assert not bench.shared.said(FirstToken)
    upstream.head(200, SSE)
    assert not bench.shared.said(FirstToken)
    upstream.data(b"data: 1\n\n")
    assert len(bench.shared.said(FirstToken)) == 1
    assert bench.shared.fleet.loads.inflight_requests.sum() == 1
    upstream.data(b"data: [DONE]\n\n")
    upstream.end()


def test_the_prefill_of_a_whole_answer_ends_when_predicted(bench: Bench) -> None:
    """1,250 tokens: 20 ms and 15,000 tokens/s make 103 ms. The answer comes after the decode, much later."""
    bench.start(chat())
    bench.time.advance(0.09)
    assert not bench.shared.said(FirstToken)
    bench.time.advance(0.03)
    assert len(bench.shared.said(FirstToken)) == 1
    assert not bench.shared.fleet.loads.prefill_us.any()
    bench.time.advance(5)
    bench.upstream.answer()
    assert len(bench.shared.said(FirstToken)) == 1


def test_a_whole_answer_before_the_prediction_ends_the_prefill_in_the_same_word(bench: Bench) -> None:
    bench.start(chat())
    placed_us = bench.shared.said(Placed)[0].at_us
    bench.time.advance(0.05)
    bench.upstream.answer()
    (finished,) = bench.shared.said(Finished)
    assert abs(finished.prefilled_us - placed_us - 50_000) < 100
    bench.time.advance(5)
    assert not bench.shared.said(FirstToken)


def test_a_whole_answer_that_comes_in_pieces_ends_the_prefill_with_the_first(bench: Bench) -> None:
    bench.start(chat())
    upstream = bench.upstream
    upstream.head(200, JSON, 7)
    upstream.data(b'{"a":')
    assert len(bench.shared.said(FirstToken)) == 1
    upstream.data(b"1}")
    upstream.end()
    assert bench.shared.said(Finished)[0].prefilled_us == 0


def test_an_error_before_the_prediction_says_nothing_of_a_prefill(bench: Bench) -> None:
    bench.start(chat())
    bench.upstream.answer(b'{"theirs":1}', 400)
    assert not bench.shared.said(FirstToken)
    assert bench.shared.said(Finished)[0].prefilled_us == 0


def test_prefills_end_when_predicted_in_whatever_order_they_were_sent(bench: Bench) -> None:
    """12,500 tokens take 0.85 s, 1,250 tokens 0.1 s; the worker of the long one is not asked again."""
    bench.start(chat("long " * 10_000))
    bench.start(chat("word " * 1000))
    first, second = (op.request_id for op in bench.shared.said(Placed))
    bench.time.advance(0.2)
    assert [op.request_id for op in bench.shared.said(FirstToken)] == [second]
    bench.time.advance(1)
    assert [op.request_id for op in bench.shared.said(FirstToken)] == [second, first]
    for upstream in bench.upstreams:
        upstream.answer()


# Calls of its exchange.


def reserved(bench: Bench) -> Reservation:
    """The reservation of a stream that has just been sent."""
    exchange, _ = bench.start(chat(stream=True))
    assert exchange._attempt is not None
    assert isinstance(exchange._attempt.reservation, Reservation)
    return exchange._attempt.reservation


def test_a_release_counts_once_whatever_is_said_of_it_later(bench: Bench) -> None:
    said = len(bench.shared.ops)
    reservation = reserved(bench)
    bench.upstream.answer()
    assert reservation.released
    reservation.release(abandoned=True)
    reservation.prefill_ended()
    reservation.renew(bench.time.clock.now_us(), bench.time.clock.now_us() + 1)
    kinds = [type(op) for op in bench.shared.ops[said:] if isinstance(op, Placed | FirstToken | Finished)]
    assert kinds == [Placed, Finished]


@pytest.mark.parametrize("prefilled", [True, False])
def test_what_is_reserved_again_is_the_load_and_not_the_prompt(prefilled: bool) -> None:
    bench = Bench()
    reservation = reserved(bench)
    if prefilled:
        bench.upstream.head(200, SSE)
        bench.upstream.data(b"data: 1\n\n")
    left_us = bench.time.clock.now_us()
    bench.shared.publish(Left("r1", left_us))
    assert not bench.shared.fleet.loads.requests
    said = len(bench.shared.ops)
    reservation.renew(left_us, left_us + 1)
    again, *more = bench.shared.ops[said:]
    assert isinstance(again, Placed)
    assert (again.at_us, again.paths) == (left_us + 1, ())
    assert [type(op) for op in more] == [FirstToken] * prefilled
    assert len(bench.shared.fleet.loads.requests) == 1
    reservation.renew(left_us, left_us + 2)
    assert len(bench.shared.ops) == said + 1 + prefilled
    if not prefilled:
        bench.upstream.head(200, SSE)
    bench.upstream.end()


def test_a_failure_is_the_workers_in_its_circuit_and_in_metrics(bench: Bench) -> None:
    """Five failures open the circuit."""
    reservation = reserved(bench)
    for _ in range(5):
        assert bench.registry.circuits.state(reservation.local) is Circuit.CLOSED
        bench.count(reservation.worker_failed(WorkerUnreachable("refused")))
    assert bench.registry.circuits.state(reservation.local) is Circuit.OPEN
    assert f'worker="{reservation.attempt.worker_id}"' in bench.metrics.exposition()[0].decode()
    bench.upstream.answer()


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_published_reserves_nothing_and_leaves_its_worker(bench: Bench, stream: bool) -> None:
    bench.shared.refuses = Placed
    _, client = bench.start(chat(stream=stream))
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert bench.upstreams.pop().aborted
    assert not bench.shared.fleet.loads.inflight_requests.any()
    assert bench.gateway.placing.admission.closed is False
    bench.check()


def test_a_mistake_behind_the_reservation_releases_it() -> None:
    bench = Bench()
    bench.gateway.metrics.decided = None  # type: ignore[assignment,method-assign]
    _, client = bench.start(chat())
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert bench.upstreams[-1].aborted
    assert len(bench.shared.said(Finished)) == 1
    assert not bench.shared.fleet.loads.inflight_requests.any()
    assert bench.gateway.sending.inflight == 0


def test_one_absurd_request_leaves_the_sums_of_the_others_exact(bench: Bench) -> None:
    """The longest answers that are served, together with ten short ones that end meanwhile."""
    for _ in range(10):
        bench.start(chat(stream=True))
    short = list(bench.upstreams)
    bench.start(chat(stream=True, n=16_384, max_tokens=2**31 - 1))
    for upstream in short:
        upstream.head(200, SSE)
        upstream.data(b"data: [DONE]\n\n")
        upstream.end()
    last = bench.upstream
    last.head(200, SSE)
    last.data(b"data: [DONE]\n\n")
    last.end()
    bench.check()
