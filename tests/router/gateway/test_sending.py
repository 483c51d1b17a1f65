"""Limits of what is in flight, and what a replica does that was given up while it lives."""

from typing import Any

from fakes.gateway import Bench

from policies import Finished, FirstToken, Left, Placed
from router.errors import WorkerSilent

TEXT = "word " * 1000


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


# The limit.


def rejected_until_others_end(bench: Bench) -> None:
    for _ in range(2):
        bench.start(chat())
    _, third = bench.start(chat())
    assert (third.status, third.error["code"]) == (429, "too_many_requests")
    assert third.headers[b"retry-after"] == b"1"
    bench.upstreams[0].answer()
    _, fourth = bench.start(chat())
    assert fourth.status is None
    for upstream in bench.upstreams[1:]:
        upstream.answer()
    bench.check()


def test_requests_for_which_there_are_no_files_are_rejected_until_others_end() -> None:
    rejected_until_others_end(Bench(requests_max=2))


def test_requests_beyond_the_limit_are_rejected_if_none_may_wait() -> None:
    rejected_until_others_end(Bench(server={"max_concurrent_requests": 2}, queue={"disable_queue": True}))


def test_requests_beyond_the_limit_wait_whoever_has_room() -> None:
    """Each ends before the next one goes; workers have room all the time."""
    bench = Bench(workers=3, server={"max_concurrent_requests": 1})
    for _ in range(3):
        bench.start(chat())
    for number in range(3):
        assert len(bench.upstreams) == number + 1
        assert bench.shared.fleet.tickets.count == 2 - number
        bench.upstreams[number].answer()
        bench.time.advance(0.1)
    assert [client.status for client in bench.clients] == [200] * 3
    bench.check()


# Given up while alive.


def test_a_gateway_that_was_given_up_reserves_again_what_it_has_in_flight() -> None:
    """One in its prefill, one past it; what is placed later or has ended stands as it is."""
    bench = Bench()
    for number in range(3):
        bench.start(chat(f"{number} {TEXT}", stream=True))
    bench.upstreams[0].answer()
    bench.upstreams[2].head()
    bench.upstreams[2].data(b"data: 1\n\n")
    left = Left("r1", bench.time.clock.now_us())
    bench.start(chat(stream=True))
    loads, fleet = bench.shared.fleet.loads, bench.shared.fleet
    before = {name: getattr(loads, name).tolist() for name in ("prefill_us", "inflight_tokens")}
    said = len(bench.shared.ops)
    fleet.apply(left)
    assert len(loads.requests) == 1
    bench.gateway.sending.given_up(left.at_us)
    renewed = bench.shared.ops[said:]
    assert sorted(type(op).__name__ for op in renewed) == ["FirstToken", "Placed", "Placed"]
    assert all(op.paths == () and op.at_us > left.at_us for op in renewed if isinstance(op, Placed))
    assert {name: getattr(loads, name).tolist() for name in before} == before
    said = len(bench.shared.ops)
    bench.gateway.sending.given_up(left.at_us)
    assert len(bench.shared.ops) == said
    for upstream in bench.upstreams[1:]:
        upstream.end() if upstream.headed else upstream.answer()
    assert (loads.requests, bench.gateway.sending.inflight) == ({}, 0)
    assert len({op.request_id for op in bench.shared.said(Finished)}) == 4
    assert len(bench.shared.said(FirstToken)) == 2  # of the one past its prefill
    assert sum(op.prefilled_us > 0 for op in bench.shared.said(Finished)) == 3


def test_a_request_that_waits_for_its_next_attempt_has_nothing_to_renew() -> None:
    bench = Bench(workers=1)
    bench.start(chat())
    bench.upstream.fail(WorkerSilent("silent"))
    said = len(bench.shared.ops)
    bench.gateway.sending.given_up(bench.time.clock.now_us())
    assert len(bench.shared.ops) == said
    bench.time.advance(1)
    bench.upstream.answer()
    bench.check()


def test_many_reservations_are_renewed_in_turns() -> None:
    bench = Bench(queue={"disable_queue": True})
    for number in range(450):
        bench.start(chat(f"{number} {TEXT}"))
    left = Left("r1", bench.time.clock.now_us())
    bench.shared.fleet.apply(left)
    bench.gateway.sending.given_up(left.at_us)
    assert len(bench.shared.fleet.loads.requests) == 200
    bench.time.advance(0.001)
    assert len(bench.shared.fleet.loads.requests) == 450
