"""A failure that a second worker repeats is the request's; else it is the first worker's."""

from typing import Any

import pytest
from fakes.gateway import JSON, SSE, Bench, FakeUpstream, chat

from policies import BreakerRules, Circuit
from router.errors import StreamBroken, UpstreamError, WorkerRefused, WorkerSilent, WorkerUnreachable
from router.gateway.blame import Blame, Failure

BROKE = WorkerUnreachable("it closed the connection")


def failures(bench: Bench) -> list[int]:
    """How many failures count against each worker."""
    breakers = [local.breaker for local in bench.registry.all()]
    return sorted(breaker.failures for breaker in breakers if breaker is not None)


def fail(upstream: FakeUpstream, how: UpstreamError | int) -> None:
    if isinstance(how, UpstreamError):
        upstream.fail(how)
    else:
        upstream.answer(b"{}", status=how)


@pytest.mark.parametrize("how", [500, 502, BROKE, StreamBroken("cut"), WorkerSilent("silent")])
def test_what_a_second_worker_repeats_counts_against_no_worker(how: Any) -> None:
    bench = Bench(reliability={"retry_max_retries": 1})
    for _ in range(20):
        bench.start(chat())
        fail(bench.upstream, how)
        fail(bench.upstream, how)
    assert failures(bench) == [0, 0]
    metrics = bench.metrics.exposition()[0].decode()
    assert "cacheway_requests_at_fault_total 20.0" in metrics
    bench.check()


@pytest.mark.parametrize("how", [500, BROKE, StreamBroken("cut"), WorkerSilent("silent")])
@pytest.mark.parametrize("stream", [False, True])
def test_what_another_worker_does_better_counts_against_the_first(
    bench: Bench, how: Any, stream: bool
) -> None:
    bench.start(chat(stream=stream))
    fail(bench.upstream, how)
    assert failures(bench) == [0, 0], "nobody knows yet"
    second = bench.upstream
    second.head(200, SSE if stream else JSON)
    assert failures(bench) == [0, 0], "a head is no answer"
    second.data(b"data: 1\n\n")
    assert failures(bench) == [0, 1]
    second.end()


def test_an_answer_that_blames_the_client_says_nothing_of_the_first_worker(bench: Bench) -> None:
    bench.start(chat())
    fail(bench.upstream, 500)
    bench.upstream.answer(b"{}", status=400)
    assert failures(bench) == [0, 0]


def test_a_worker_that_could_not_be_asked_is_at_fault_at_once(bench: Bench) -> None:
    """So is the second one: the request cannot have done anything to it."""
    bench.start(chat())
    bench.upstream.fail(WorkerRefused("nobody listens"))
    assert failures(bench) == [0, 1]
    bench.upstream.fail(WorkerRefused("nobody listens"))
    assert failures(bench) == [1, 1]
    bench.time.advance(1)
    bench.upstream.answer()


def test_without_another_attempt_the_worker_is_at_fault() -> None:
    bench = Bench(reliability={"disable_retries": True})
    bench.start(chat())
    bench.upstream.fail(BROKE)
    bench.start(chat())
    bench.upstream.answer(b"{}", status=500)
    assert sum(failures(bench)) == 2
    bench.check()


def test_a_client_that_leaves_after_a_failure_blames_no_worker() -> None:
    """Else it could send requests that fail, leave at once, and eject one worker after the other."""
    bench = Bench()
    exchange, _ = bench.start(chat())
    fail(bench.upstream, 500)
    exchange.client_left()
    assert failures(bench) == [0, 0]


def test_the_only_worker_repeats_nobody() -> None:
    """It is asked again after a pause; both failures are its own."""
    bench = Bench(workers=1, reliability={"retry_max_retries": 1})
    bench.start(chat())
    bench.upstream.fail(BROKE)
    bench.time.advance(1)
    bench.upstream.fail(BROKE)
    assert failures(bench) == [2]
    bench.check()


def test_a_probe_has_an_outcome_at_once(bench: Bench) -> None:
    """The circuit would wait for it, and let the next request through to a worker that may be broken."""
    local = bench.local("w0:80")
    now_us = bench.time.clock.now_us()
    for _ in range(5):
        bench.registry.circuits.failed(local, now_us, now_us, "upstream_timeout")
    bench.time.advance(20)
    blame = Blame(bench.registry, b"r")
    bench.registry.circuits.dispatched(local, bench.time.clock.now_us())
    assert bench.registry.circuits.state(local) is Circuit.HALF_OPEN
    now_us = bench.time.clock.now_us()
    assert not blame.failed(Failure(local, now_us, "upstream_timeout", asked=True), now_us, last=False)
    assert bench.registry.circuits.state(local) is Circuit.OPEN


def test_a_request_that_breaks_two_workers_is_not_sent_to_a_third() -> None:
    bench = Bench(workers=4)
    _, client = bench.start(chat())
    bench.upstream.fail(BROKE)
    bench.upstream.fail(BROKE)
    assert (client.status, client.error["code"]) == (502, "upstream_unreachable")
    assert len(bench.upstreams) == 2
    bench.check()


def test_ten_poisoned_requests_eject_nobody_and_never_the_last() -> None:
    """With the default share, of the breaker and of the fleet, and without retries: each failure counts."""
    bench = Bench(reliability={"disable_retries": True})
    bench.registry.circuits.use(BreakerRules(), bench.registry.all())
    for _ in range(40):
        _, client = bench.start(chat())
        assert client.status is None, "a worker takes it"
        bench.upstream.answer(b"{}", status=500)
    states = {bench.registry.circuits.state(local) for local in bench.registry.all()}
    assert states == {Circuit.OPEN}
    assert len(bench.registry.circuits.spared) == 1
    _, client = bench.start(chat())
    bench.upstream.answer()
    assert client.status == 200
    bench.check()
