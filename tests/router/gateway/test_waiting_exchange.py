"""Waiting requests from the view of clients, workers and the log, at one replica.

A request of 60,000 bytes is 15,000 tokens, about 1.07 s of prefill; the target backlog is 0.5 s. So with
one worker the second request waits for 0.57 s after the first, if that one says nothing before.
"""

from typing import Any

import pytest
from fakes.gateway import Bench, FakeClient

from policies import Finished, Left, Placed, Waiting
from router.errors import WorkerUnreachable
from router.gateway.exchange import RequestExchange
from router.gateway.large import LARGE_BODY_BYTES

SSE = [(b"content-type", b"text/event-stream")]


def chat(name: str, size: int = 60_000, **more: Any) -> dict[str, Any]:
    content = (f"{name} " * size)[:size]
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}], **more}


def busy(workers: int = 1, **sections: Any) -> Bench:
    """A bench with workers that have no room."""
    bench = Bench(workers, **sections)
    for number in range(workers):
        bench.start(chat(f"first {number}"))
    assert len(bench.upstreams) == workers
    return bench


def start(
    bench: Bench, name: str = "second", headers: Any = (), **more: Any
) -> tuple[RequestExchange, FakeClient]:
    before = len(bench.upstreams)
    exchange, client = bench.start(chat(name, **more), headers=headers)
    assert len(bench.upstreams) == before
    return exchange, client


def tickets(bench: Bench) -> int:
    return bench.shared.fleet.tickets.count


def stream(bench: Bench, index: int) -> None:
    """Let a worker send a whole answer."""
    upstream = bench.upstreams[index]
    upstream.head(200, SSE)
    upstream.data(b"data: 1\n\n")
    upstream.end()


def finish(bench: Bench) -> None:
    """Let workers answer all requests, and check that nothing is left."""
    for index in range(1000):
        if index == len(bench.upstreams):
            bench.time.advance(1.0)
        if index == len(bench.upstreams):
            break
        if bench.upstreams[index].live:
            stream(bench, index)
    assert tickets(bench) == 0
    assert not len(bench.gateway.placing.room)
    waits = [op.request_id for op in bench.shared.said(Waiting)]
    ends = [op.request_id for op in bench.shared.ops if isinstance(op, Placed | Finished)]
    assert set(waits) <= set(ends)
    gone = bench.shared.said(Finished)
    placed = {op.request_id for op in bench.shared.said(Placed)}
    # A request that ended before its placement is no attempt.
    bench.shared.ops[:] = [op for op in bench.shared.ops if op not in gone or op.request_id in placed]
    bench.check()


def metric(bench: Bench, name: str) -> dict[str, float]:
    lines = bench.metrics.exposition()[0].decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(f"cacheway_{name}"))
    return {key.removeprefix("cacheway_"): float(value) for key, value in found if float(value)}


def test_a_waiting_request_goes_when_the_first_byte_of_another_leaves_room() -> None:
    bench = busy()
    start(bench)
    bench.time.advance(0.3)
    first = bench.upstreams[0]
    first.head(200, SSE)
    first.data(b"data: 1\n\n")
    bench.time.advance(0)
    assert len(bench.upstreams) == 2
    first.end()
    (said,) = bench.shared.said(Waiting)
    assert bench.shared.said(Placed)[-1].request_id == said.request_id
    assert said.arrived_us <= said.at_us < said.key_us
    assert (said.lane, said.flow, said.replica) == ("m|", "normal/", "r1")
    finish(bench)
    assert bench.log[-1]["wait_s"] == pytest.approx(0.3, abs=0.01)
    assert bench.log[-1]["flow"] == "normal/"
    assert "wait_s" not in bench.log[0]
    assert metric(bench, "waits")['waits_total{class="normal",outcome="dispatched"}'] == 1
    assert metric(bench, "wait_seconds_count")['wait_seconds_count{class="normal"}'] == 1


def test_a_waiting_request_goes_when_the_backlog_has_drained() -> None:
    bench = busy()
    start(bench)
    bench.time.advance(0.5)
    assert len(bench.upstreams) == 1
    bench.time.advance(0.2)
    assert len(bench.upstreams) == 2
    finish(bench)


def test_without_the_queue_nobody_waits() -> None:
    bench = busy(queue={"disable_queue": True})
    for number in range(5):
        bench.start(chat(f"more {number}"))
    assert len(bench.upstreams) == 6
    assert not bench.shared.said(Waiting)
    finish(bench)


def test_a_request_without_a_prompt_never_waits() -> None:
    bench = busy()
    bench.start({"model": "m", "prompt": "x"}, path=b"/tokenize")
    bench.start({"model": "m", "query": "q", "documents": ["d"]}, path=b"/v1/rerank")
    assert len(bench.upstreams) == 3
    finish(bench)


def test_a_large_body_waits_like_any_other() -> None:
    bench = busy()
    start(bench, size=2 * LARGE_BODY_BYTES)
    bench.time.advance(0.1)
    assert tickets(bench) == 1
    finish(bench)


def test_who_leaves_while_waiting_is_forgotten_everywhere() -> None:
    bench = busy()
    exchange, client = start(bench)
    client.left = True
    exchange.client_left()
    assert tickets(bench) == 0
    assert bench.log[-1]["outcome"] == "client_left"
    finish(bench)
    assert len(bench.upstreams) == 1
    assert metric(bench, "waits")['waits_total{class="normal",outcome="left"}'] == 1


def test_a_shutdown_answers_those_who_wait() -> None:
    bench = busy()
    exchange, client = start(bench)
    exchange.interrupt()
    assert (client.status, client.error["code"]) == (503, "shutting_down")
    assert tickets(bench) == 0
    finish(bench)


def test_a_failed_request_waits_again_from_its_first_arrival_and_is_not_turned_away() -> None:
    bench = busy(2, queue={"size": 1})
    start(bench, "other")
    first = bench.upstreams[0]
    arrived_us = bench.shared.said(Placed)[0].at_us
    bench.time.advance(0.2)
    first.fail(WorkerUnreachable("refused"))
    waits = bench.shared.said(Waiting)
    assert tickets(bench) == 2
    assert waits[-1].arrived_us == pytest.approx(arrived_us, abs=10)
    assert waits[-1].at_us > arrived_us + 190_000
    assert waits[-1].worker == "w1:80"
    finish(bench)
    assert [client.status for client in bench.clients] == [200] * 3


def test_what_waits_is_said_again_when_the_replica_was_given_up() -> None:
    bench = busy()
    start(bench)
    left = Left("r1", bench.time.clock.now_us())
    bench.shared.fleet.apply(left)
    assert tickets(bench) == 0
    bench.gateway.sending.given_up(left.at_us)
    assert tickets(bench) == 1
    bench.shared.ops[:] = [op for op in bench.shared.ops if not (isinstance(op, Placed) and not op.paths)]
    finish(bench)
    assert bench.clients[1].status == 200


def test_a_mistake_of_ours_ends_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = busy()
    _, broken = start(bench, "broken")
    _, client = start(bench, "sound")
    monkeypatch.setattr(bench.gateway.placing.decider, "decide", lambda *_: 1 / 0)
    bench.time.advance(0.3)
    assert (broken.status, client.status) == (500, 500)
    monkeypatch.undo()
    start(bench, "third")
    finish(bench)


# Deadlines.


def test_a_request_whose_time_in_the_queue_is_over_gets_408() -> None:
    bench = busy(queue={"timeout_s": 0.2})
    _, client = start(bench)
    bench.time.advance(0.19)
    assert client.status is None
    bench.time.advance(0.03)
    assert (client.status, client.error["code"]) == (408, "request_expired")
    assert bench.log[-1]["outcome"] == "request_expired"
    assert bench.log[-1]["wait_s"] == pytest.approx(0.2, abs=0.02)
    finish(bench)
    assert metric(bench, "waits")['waits_total{class="normal",outcome="expired"}'] == 1


def test_a_clients_own_deadline_counts_while_it_waits() -> None:
    bench = busy()
    _, client = start(bench, headers=[(b"x-request-timeout", b"250ms")])
    bench.time.advance(0.24)
    assert client.status is None
    bench.time.advance(0.03)
    assert (client.status, client.error["code"]) == (408, "request_expired")
    assert tickets(bench) == 0
    finish(bench)


def test_a_clients_own_deadline_counts_at_the_worker_until_the_answer_begins() -> None:
    bench = Bench()
    _, client = bench.start(chat("one"), headers=[(b"x-request-timeout", b"2")])
    bench.time.advance(1.99)
    assert client.status is None
    bench.time.advance(0.02)
    assert (client.status, client.error["code"]) == (408, "request_expired")
    assert bench.upstreams[0].aborted
    bench.check()


def test_an_answer_that_has_begun_by_its_deadline_ends_with_the_error() -> None:
    bench = Bench()
    _, client = bench.start(chat("one"), headers=[(b"x-request-timeout", b"2s")])
    bench.upstream.head(200, SSE)
    bench.upstream.data(b"data: 1\n\n")
    bench.time.advance(2.01)
    assert client.status == 200
    assert b'"request_timeout"' in client.body
    assert b"2 s" in client.body
    bench.check()


def test_an_answer_in_time_leaves_no_deadline_behind() -> None:
    bench = Bench()
    bench.start(chat("one"), headers=[(b"x-request-timeout", b"5")])
    bench.upstream.answer()
    assert bench.log[-1]["outcome"] == "completed"
    bench.check()


def test_the_gateways_own_limit_is_a_deadline_for_those_who_wait() -> None:
    bench = busy()
    exchange, client = start(bench)
    exchange.out_of_time()
    assert (client.status, client.error["code"]) == (408, "request_expired")
    finish(bench)


@pytest.mark.parametrize("header", [b"x-request-timeout", b"x-priority"])
@pytest.mark.parametrize("size", [10, 2 * LARGE_BODY_BYTES])
def test_a_header_without_a_meaning_is_refused(header: bytes, size: int) -> None:
    bench = Bench()
    _, client = bench.start(chat("one", size), headers=[(header, b"soon")])
    bench.time.advance(0.1)
    assert (client.status, client.error["code"]) == (400, "invalid_value")
    assert client.error["param"] == header.decode()
    bench.check()


# Classes and bounds.


@pytest.mark.parametrize(
    ("headers", "fields", "flow"),
    [
        ([], {}, "normal/"),
        ([(b"x-priority", b"low")], {}, "low/"),
        ([(b"x-priority", b"1")], {"priority": -1}, "high/"),
        ([], {"priority": -1}, "low/"),
        ([], {"service_tier": "priority"}, "high/"),
        ([], {"service_tier": None, "priority": None}, "normal/"),
        ([(b"x-tenant-id", b"acme")], {"service_tier": "flex"}, "low/acme"),
    ],
)
def test_a_ticket_says_who_waits(headers: Any, fields: dict[str, Any], flow: str) -> None:
    bench = busy()
    start(bench, headers=headers, **fields)
    assert bench.shared.said(Waiting)[-1].flow == flow
    assert (
        bench.gateway.placing.waiting(bench.gateway.reader.priorities.names)[
            ["high", "normal", "low"].index(flow.partition("/")[0])
        ][1]
        == 1
    )
    finish(bench)
    assert bench.shared.said(Placed)[-1].flow == flow


def test_what_nobody_waited_for_is_charged_to_nobody() -> None:
    bench = Bench()
    bench.start(chat("one"))
    assert bench.shared.said(Placed)[0].flow == ""
    finish(bench)


def test_classes_are_those_of_the_settings() -> None:
    bench = busy(queue={"classes": {"gold": 10, "tin": 1}, "default_class": "tin", "low_values_first": True})
    start(bench, "a")
    start(bench, "b", priority=-5)
    assert [op.flow for op in bench.shared.said(Waiting)] == ["tin/", "gold/"]
    finish(bench)


def test_a_full_queue_answers_429_with_whole_seconds() -> None:
    """Two requests of 1.07 s wait for the one worker."""
    bench = busy(queue={"size": 2})
    start(bench, "a")
    start(bench, "b")
    _, client = start(bench, "c")
    assert (client.status, client.error["code"]) == (429, "queue_full")
    assert client.headers[b"retry-after"] == b"3"
    assert bench.log[-1]["outcome"] == "queue_full"
    finish(bench)
    assert metric(bench, "waits")['waits_total{class="normal",outcome="rejected"}'] == 1


def test_a_queue_of_none_rejects_whatever_finds_no_room() -> None:
    bench = busy(queue={"size": 0})
    _, client = start(bench)
    assert client.status == 429
    finish(bench)


def test_who_is_displaced_is_told_so() -> None:
    bench = busy(queue={"size": 1})
    _, displaced = start(bench, "a", headers=[(b"x-priority", b"low")])
    start(bench, "b")
    assert (displaced.status, displaced.error["code"]) == (429, "request_displaced")
    assert displaced.headers[b"retry-after"] == b"2"
    assert bench.log[-1]["flow"] == "low/"
    finish(bench)
    assert metric(bench, "waits")['waits_total{class="low",outcome="displaced"}'] == 1
