"""Every path of one request that two workers share; the test plays both workers and the client.

Each test ends with `PairBench.check`: one answer for the client, one release for each attempt, nothing left.
"""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.gateway import JSON, SSE, FakeClient, chat
from fakes.handover import FakePaired, PairBench
from hypothesis import given
from hypothesis import strategies as st

from policies import Left, Placed, Waiting
from router.errors import HandoverFailed, StreamBroken, UpstreamError, WorkerSilent
from router.gateway.exchange import RequestExchange
from router.handover import Leg

STEPS = ("sent", "prefilled", "shipped", "headed", "answering")


def reach(bench: PairBench, step: str) -> None:
    """Bring the only request to a step."""
    paired = bench.paired
    moves: list[Callable[[], object]] = [
        paired.prefilled,
        paired.shipped,
        lambda: paired.head(200, SSE),
        lambda: paired.data(b"data: {}\n\n"),
    ]
    for move in moves[: STEPS.index(step)]:
        bench.time.advance(0.01)
        move()


def test_an_answer_names_both_workers_and_so_does_the_log() -> None:
    bench = PairBench(1, 1)
    _, client = bench.start(chat(), headers=[(b"x-request-id", b"mine"), (b"x-cacheway-hops", b"1")])
    paired = bench.paired
    assert paired.pair.request_id == b"mine"
    lines = paired.pair.lines.splitlines()
    assert b"x-cacheway-hops: 2" in lines
    assert b"mine" not in paired.pair.lines
    paired.began()
    paired.answer(b'{"a":1}')
    assert (client.status, client.body) == (200, b'{"a":1}')
    assert client.headers[b"x-cacheway-worker"] == b"d0:80"
    assert client.headers[b"x-cacheway-prefill-worker"] == b"p0:80"
    log = bench.log[-1]
    assert b"x-request-id: %b" % log["worker_request_id"].encode() in lines
    assert (log["worker_id"], log["prefill_worker_id"], log["decode_worker_id"], log["handover"]) == (
        "d0:80",
        "p0:80",
        "d0:80",
        "sglang",
    )
    bench.check()


def test_a_plain_workers_answer_names_no_prefill_worker() -> None:
    bench = PairBench(0, 0, plain=1)
    _, client = bench.start(chat())
    bench.upstream.answer()
    assert b"x-cacheway-prefill-worker" not in client.headers
    bench.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_leaves_ends_both_legs_at_once(step: str) -> None:
    bench = PairBench(2, 2)
    exchange, client = bench.start(chat(stream=True))
    paired = bench.paired
    reach(bench, step)
    client.left = True
    exchange.client_left()
    assert paired.aborted
    assert bench.own == []
    bench.check()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("end", ["out_of_time", "interrupt"])
def test_the_end_of_time_or_of_the_process_ends_both_legs(step: str, end: str) -> None:
    bench = PairBench(2, 2)
    exchange, client = bench.start(chat(stream=True))
    paired = bench.paired
    reach(bench, step)
    getattr(exchange, end)()
    assert paired.aborted
    assert bench.own == []
    answering = step == "answering"
    assert client.status == (200 if answering else 504 if end == "out_of_time" else 503)
    assert (b"error" in client.body, client.finished) == (True, True)
    bench.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_deadline_of_the_client_ends_both_legs(step: str) -> None:
    bench = PairBench(2, 2)
    _, client = bench.start(chat(stream=True), headers=[(b"x-request-timeout", b"5")])
    paired = bench.paired
    reach(bench, step)
    bench.time.advance(6)
    assert paired.aborted
    assert client.status == (200 if step == "answering" else 408)
    bench.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_replica_that_was_given_up_goes_on_with_its_pairs(step: str) -> None:
    bench = PairBench(1, 1)
    bench.start(chat(stream=True))
    reach(bench, step)
    before = bench.own
    left_us = bench.time.clock.now_us()
    bench.shared.fleet.apply(Left("r1", left_us))
    assert bench.own == []
    bench.gateway.sending.given_up(left_us)
    assert bench.own == before
    bench.paired.fail_leg(Leg.DECODE, StreamBroken("reset"))
    if step != "answering":
        bench.time.advance(0.2)
        bench.paired.began()
        bench.paired.answer(b"data: [DONE]\n\n")
    assert bench.own == []


def test_backpressure_is_passed_on() -> None:
    bench = PairBench(1, 1)
    exchange, _ = bench.start(chat(stream=True))
    reach(bench, "answering")
    exchange.pause()
    assert bench.paired.paused
    exchange.resume()
    assert not bench.paired.paused
    bench.paired.end()
    bench.check()


def test_a_request_waits_for_a_decode_worker_with_room_and_goes_on_when_one_has_it() -> None:
    """Each decode worker runs two requests, one of them from another replica."""
    bench = PairBench(2, 1)
    bench.registry.change("d0:80", labels={"handover": "sglang", "max_running_requests": "2"})
    bench.start(chat("first " * 1000, stream=True))
    first = bench.paired
    first.began()
    _, client = bench.start(chat("second " * 1000, stream=True))
    assert len(bench.shared.said(Waiting)) == 1
    assert bench.paired is first
    first.answer(b"data: [DONE]\n\n")
    bench.time.advance(0.1)
    second = bench.paired
    assert second is not first
    second.began()
    second.answer(b"data: [DONE]\n\n")
    assert client.status == 200
    bench.check()


# Any order.


@given(st.data())
def test_any_course_of_events_ends_every_request_once(data: st.DataObject) -> None:
    """Any legal events, in any order, for up to four requests at pairs and a plain worker."""
    bench = PairBench(
        2,
        2,
        plain=1,
        protocol=data.draw(st.sampled_from(("sglang", "nixl"))),
        reliability={"retry_max_retries": 2},
    )
    if data.draw(st.booleans(), "gives up what stalls"):
        bench.gateway.placing.feedback.knows_prefills = lambda *_: True  # type: ignore[method-assign]
    live: list[tuple[RequestExchange, FakeClient]] = []
    for _ in range(data.draw(st.integers(1, 30), "steps")):
        live = [pair for pair in live if not pair[1].over]
        moves = ["time", "ill", "well", "given up"]
        if len(live) < 4:
            moves += ["start", "start", "start"]
        if live:
            moves += ["leave", "interrupt"]
        speaking = [upstream for upstream in bench.upstreams if upstream.live]
        if speaking:
            moves += ["worker"] * 8
        match data.draw(st.sampled_from(moves), "move"):
            case "start":
                text = "word " * data.draw(st.sampled_from((1, 400, 1000)))
                live.append(bench.start(chat(text, stream=data.draw(st.booleans()))))
            case "time":
                bench.time.advance(data.draw(st.sampled_from((0.01, 1.0, 700.0))))
            case "leave":
                exchange, client = data.draw(st.sampled_from(live))
                client.left = True
                exchange.client_left()
            case "interrupt":
                data.draw(st.sampled_from(live))[0].interrupt()
            case "worker":
                _act(data, data.draw(st.sampled_from(speaking)))
            case "given up":
                bench.time.advance(0.001)
                left_us = bench.time.clock.now_us()
                bench.shared.fleet.apply(Left("r1", left_us))
                bench.gateway.sending.given_up(left_us)
            case "ill":
                local = data.draw(st.sampled_from(bench.registry.all()))
                bench.registry.probed(local, ok=False, refused=data.draw(st.booleans()), detail="")
            case "well":
                for local in bench.registry.all():
                    bench.registry.probed(local, ok=True, refused=False, detail="")
    bench.time.advance(2 * bench.gateway.sending.exchanges.timeout_s)
    assert bench.own == []
    assert not bench.shared.fleet.loads.prefill_us.any()
    assert bench.gateway.sending.inflight == 0
    assert bench.gateway.sending.at_workers == 0
    assert all(client.over for client in bench.clients)
    assert not any(upstream.live for upstream in bench.upstreams)
    for request_id in {op.request_id for op in bench.shared.said(Placed)}:
        said = [type(op).__name__ for op in bench.shared.ops if getattr(op, "request_id", "") == request_id]
        assert said.count("Finished") == 1
        assert said[-1] == "Finished"


def _act(data: st.DataObject, upstream: Any) -> None:
    """Let a worker, or one of two, do one of its legal next steps."""
    error: UpstreamError = data.draw(st.sampled_from((HandoverFailed("lost"), WorkerSilent("silent"))))
    paired = isinstance(upstream, FakePaired)
    if upstream.headed:
        match data.draw(st.sampled_from(("data", "end", "fail")), "goes on"):
            case "data":
                upstream.data(b'data: {"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n')
            case "end":
                upstream.end()
            case "fail":
                upstream.fail(StreamBroken("reset"))
        return
    moves = ["answers", "fails", "refuses"]
    if paired:
        moves += ["prefilled", "shipped"]
    if paired:
        upstream.leg = data.draw(st.sampled_from(Leg), "leg")
    match data.draw(st.sampled_from(moves), "does"):
        case "answers":
            if paired:
                upstream.leg = Leg.DECODE
                upstream.began()
            upstream.head(200, data.draw(st.sampled_from((SSE, JSON))))
        case "fails":
            upstream.fail(error)
        case "refuses":
            upstream.head(data.draw(st.sampled_from((400, 429, 500))), JSON)
        case "prefilled":
            upstream.prefilled(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1}}}')
        case "shipped":
            upstream.began()
