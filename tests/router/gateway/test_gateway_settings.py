"""A gateway applies new settings from its next decision on.

A request of 60,000 bytes is 15,000 tokens, about 1.07 s of prefill; the target backlog is 0.5 s. So one such
request leaves a worker without room.
"""

from typing import Any

import pytest
from fakes.gateway import Bench, FakeClient

from policies import BreakerRules, Circuit, Waiting
from router.settings import Settings

SSE = [(b"content-type", b"text/event-stream")]


def chat(name: str, size: int = 60_000, **more: Any) -> dict[str, Any]:
    content = (f"{name} " * size)[:size]
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}], **more}


def told(bench: Bench, **sections: dict[str, Any]) -> None:
    bench.gateway.use(Settings.model_validate(sections))


def send(bench: Bench, name: str, **more: Any) -> FakeClient:
    return bench.start(chat(name, **more))[1]


def workers(bench: Bench) -> list[str]:
    """Return the workers of the requests, in order."""
    return [upstream.pool.url.removeprefix("http://").partition(":")[0] for upstream in bench.upstreams]


def finish(bench: Bench) -> None:
    """Let workers answer all that they are sent."""
    for _ in range(50):
        for upstream in bench.upstreams:
            if upstream.live:
                if not upstream.headed:
                    upstream.head(200, SSE)
                upstream.data(b"data: 1\n\n")
                upstream.end()
        bench.time.advance(0.1)


def test_another_policy_chooses_from_the_next_request_on() -> None:
    """A prompt stays where it is cached; by turns it goes to all workers."""
    bench = Bench(3)
    for _ in range(3):
        send(bench, "same", size=8_000)
        finish(bench)
    assert len(set(workers(bench))) == 1
    told(bench, placement={"policy": "round_robin"})
    for _ in range(3):
        send(bench, "same", size=8_000)
        finish(bench)
    assert len(set(workers(bench)[3:])) == 3


def test_options_of_a_policy_count() -> None:
    """By affinity the holder of the prompt wins; with no weight on the match, the worker with less load."""
    bench = Bench(2)
    told(bench, placement={"policy": "affinity", "policy_options": {"match_weight": 50}})
    send(bench, "same", size=8_000)
    send(bench, "same", size=8_000)
    told(bench, placement={"policy": "affinity", "policy_options": {"match_weight": 0}})
    send(bench, "same", size=8_000)
    first, second, third = workers(bench)
    assert first == second != third
    finish(bench)


def test_a_queue_may_be_switched_off_with_requests_in_it_and_on_again() -> None:
    bench = Bench(1)
    send(bench, "first")
    send(bench, "second")
    assert (len(bench.upstreams), len(bench.gateway.placing.room)) == (1, 1)
    told(bench, queue={"disable_queue": True})
    send(bench, "third")
    assert len(bench.upstreams) == 2
    bench.time.advance(1.0)
    assert (len(bench.upstreams), len(bench.gateway.placing.room)) == (3, 0), "who waited goes, too"
    told(bench)
    send(bench, "fourth")
    assert (len(bench.upstreams), len(bench.gateway.placing.room)) == (3, 1)
    finish(bench)


@pytest.mark.parametrize("bound", [{"size": 1}, {"tokens_max": 1}, {"drain_s_max": 0.5}])
def test_bounds_of_the_queue_count_for_who_comes_next(bound: dict[str, Any]) -> None:
    bench = Bench(1)
    send(bench, "first")
    kept = send(bench, "second")
    told(bench, queue=bound)
    assert send(bench, "third").status == 429
    told(bench)
    assert send(bench, "fourth").status is None
    assert kept.status is None
    finish(bench)


def test_who_waits_keeps_its_deadline_and_who_comes_has_the_new_one() -> None:
    bench = Bench(1)
    told(bench, admission={"worker_running_max": 1})
    send(bench, "first")
    before = send(bench, "second")
    told(bench, admission={"worker_running_max": 1}, queue={"timeout_s": 2})
    after = send(bench, "third")
    bench.time.advance(3)
    assert (before.status, after.status) == (None, 408)
    finish(bench)


def test_the_weight_of_work_orders_who_comes_next() -> None:
    """By the least work the short request is first; by arrival the earlier one."""
    for weight, first in ((0.0, "long"), (1000.0, "short")):
        bench = Bench(1)
        send(bench, "first")
        told(bench, queue={"uncached_weight": weight})
        clients = {name: send(bench, name, size=size) for name, size in (("long", 50_000), ("short", 4_000))}
        bench.upstreams[0].head(200, SSE)
        bench.upstreams[0].data(b"data: 1\n\n")
        bench.time.advance(0)
        bench.upstreams[1].head(200, SSE)
        bench.upstreams[1].data(b"data: 1\n\n")
        assert [name for name, client in clients.items() if client.status] == [first]
        finish(bench)


def test_classes_are_told_apart_by_the_new_rules() -> None:
    bench = Bench(1)
    send(bench, "first")
    send(bench, "second")
    told(bench, queue={"default_class": "low", "low_values_first": True})
    send(bench, "third")
    send(bench, "fourth", priority=-1)
    assert [op.flow for op in bench.shared.said(Waiting)] == ["normal/", "low/", "normal/"]
    finish(bench)


def test_a_workers_room_follows_the_target_and_the_caps() -> None:
    bench = Bench(1)
    send(bench, "first")
    told(bench, admission={"backlog_target_s": 3.0})
    send(bench, "second")
    assert len(bench.upstreams) == 2
    told(bench, admission={"backlog_target_s": 3.0, "worker_running_max": 2})
    send(bench, "third")
    assert len(bench.upstreams) == 2
    told(bench, admission={"backlog_target_s": 3.0, "worker_running_max": 3})
    bench.time.advance(0.1)
    assert len(bench.upstreams) == 3, "who waits is asked again"
    finish(bench)


def test_what_is_promised_may_begin_and_end() -> None:
    bench = Bench(1)
    send(bench, "first")
    told(bench, admission={"ttft_slo_s": 1.2})
    client = send(bench, "second")
    assert (client.status, client.error["code"]) == (429, "slo_unreachable")
    told(bench)
    assert send(bench, "third").status is None
    finish(bench)


def test_failed_requests_are_tried_again_or_not() -> None:
    bench = Bench(2)
    told(bench, reliability={"disable_retries": True})
    client = send(bench, "first", size=4_000)
    bench.upstream.answer(status=503)
    assert client.status == 503
    told(bench)
    client = send(bench, "second", size=4_000)
    bench.upstream.answer(status=503)
    bench.upstream.answer(status=200)
    assert client.status == 200
    bench.check()


def test_the_budget_of_retries_follows_its_ratio() -> None:
    bench = Bench(2)
    told(bench, reliability={"retry_budget_ratio": 0.75})
    assert bench.gateway.sending.retry_budget.rules.retry_budget_ratio == 0.75


def test_so_many_requests_are_at_workers_as_the_new_bound_says() -> None:
    bench = Bench(4)
    for number in range(2):
        send(bench, f"{number}", size=4_000)
    told(bench, server={"max_concurrent_requests": 2})
    send(bench, "third", size=4_000)
    assert (len(bench.upstreams), len(bench.gateway.placing.room)) == (2, 1)
    told(bench, server={"max_concurrent_requests": 3})
    bench.time.advance(0.1)
    assert (len(bench.upstreams), len(bench.gateway.placing.room)) == (3, 0)
    finish(bench)


def test_a_request_ends_after_the_new_timeout() -> None:
    bench = Bench(1)
    client = send(bench, "first", size=4_000)
    told(bench, server={"request_timeout_s": 5})
    bench.time.advance(4)
    assert client.status is None
    bench.time.advance(3)
    assert (client.status, client.error["code"]) == (504, "request_timeout")
    bench.check()


def test_request_lines_are_written_or_not() -> None:
    bench = Bench(1)
    told(bench, observability={"request_logs": False})
    send(bench, "first", size=4_000)
    finish(bench)
    assert bench.log == []
    told(bench, observability={"request_log_ratio": 0.5})
    for number in range(4):
        send(bench, f"{number}", size=4_000)
        finish(bench)
    assert len(bench.log) == 2


def test_what_is_assumed_of_prompts_and_answers_counts_for_the_next_request() -> None:
    bench = Bench(1)
    told(bench, placement={"bytes_per_token": 2, "expected_output_tokens": 1000})
    send(bench, "first", size=20_000)
    placed = bench.shared.ops[-1]
    assert placed.context_tokens == pytest.approx(11_000, rel=0.02)  # type: ignore[union-attr]
    finish(bench)


def test_circuits_follow_the_new_rules_for_workers_that_are_there() -> None:
    """A worker that failed twice is ejected if two are enough; with ejections off it serves."""
    bench = Bench(2)
    told(bench, reliability={"disable_retries": True})
    registry = bench.registry
    rules = registry.circuits._rules

    def fail() -> None:
        send(bench, "same", size=8_000)
        bench.upstream.answer(status=500)

    fail()
    (worker,) = {upstream.pool.url for upstream in bench.upstreams}
    local = bench.local(worker.removeprefix("http://"))
    registry.circuits.use(BreakerRules(2, 1, 10.0), registry.all())
    fail()
    assert registry.circuits.state(local) is Circuit.OPEN
    registry.circuits.use(BreakerRules(disable_circuit_breaker=True), registry.all())
    assert registry.circuits.state(local) is Circuit.CLOSED
    assert len(registry.eligible("m", bench.time.clock.now_us())) == 2
    registry.circuits.use(rules, registry.all())
    assert registry.circuits.state(local) is Circuit.OPEN
