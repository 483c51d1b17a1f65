"""Every path of one request, with a scripted worker on one side and a scripted client on the other.

Each test ends with `Bench.check`: one answer for the client, one release for each attempt, nothing left.
"""

from itertools import permutations
from typing import Any

import pytest
from fakes.gateway import JSON, SSE, Bench, FakeClient, FakeUpstream, chat
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    BytesPerToken,
    Circuit,
    CircuitSet,
    Finished,
    FirstToken,
    Placed,
    RedispatchRules,
    RetryBudget,
    Trim,
)
from router.engines import Description
from router.errors import StreamBroken, UpstreamError, WorkerSilent, WorkerUnreachable
from router.fleet import HealthRules, LocalWorker, ServedModel
from router.gateway.endpoints import Endpoint
from router.gateway.exchange import RequestExchange
from router.gateway.large import LARGE_BODY_BYTES
from router.tenant import ANONYMOUS


def unreachable() -> UpstreamError:
    return WorkerUnreachable("refused")


# The answer.


def test_an_answer_passes_through_with_our_headers(bench: Bench) -> None:
    _, client = bench.start(chat(), headers=[(b"x-request-id", b"mine")])
    upstream = bench.upstream
    upstream.head(200, [*JSON, (b"x-engine", b"1")], 7)
    assert client.status is None
    upstream.data(b'{"a":')
    upstream.data(b"1}")
    upstream.end()
    assert (client.status, client.length, client.body) == (200, 7, b'{"a":1}')
    assert client.headers[b"x-request-id"] == b"mine"
    assert client.headers[b"x-engine"] == b"1"
    assert client.headers[b"x-cacheway-worker"] == upstream.pool.url.removeprefix("http://").encode()
    assert client.headers[b"x-cacheway-cached-tokens"] == b"0"


def test_a_stream_does_not_keep_its_prompt(bench: Bench) -> None:
    """Until the answer begins, the prompt may be sent again."""
    exchange, _ = bench.start(chat(stream=True))
    sent = exchange._request.body
    bench.upstream.fail(unreachable())
    bench.upstream.head(200, SSE)
    assert exchange._request.body == sent
    bench.upstream.data(b"data: {}\n\n")
    assert exchange._request.body == b""
    bench.upstream.end()
    assert bench.log[-1]["request_bytes"] == len(sent)


REFUSING = HealthRules(unlisted_models="refuse")

CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'


def responding(bench: Bench) -> tuple[RequestExchange, FakeClient]:
    """A stream that begins at once, as those of /v1/responses do; its prefill takes two seconds from here."""
    exchange, client = bench.start(
        {"model": "m", "input": "word " * 1000, "stream": True}, path=b"/v1/responses"
    )
    bench.upstream.head(200, SSE)
    bench.upstream.data(CREATED)
    assert client.body == CREATED
    assert not bench.shared.said(FirstToken)
    bench.time.advance(2)
    return exchange, client


def test_what_a_stream_says_before_its_first_token_ends_no_prefill(bench: Bench) -> None:
    _, client = responding(bench)
    bench.upstream.data(DELTA)
    assert len(bench.shared.said(FirstToken)) == 1
    bench.time.advance(1)
    bench.upstream.data(DELTA)
    bench.upstream.end()
    assert client.body == CREATED + DELTA + DELTA
    assert len(bench.shared.said(FirstToken)) == 1
    assert bench.log[-1]["ttft_s"] == 2.0


def test_a_comment_ends_no_prefill(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True))
    bench.upstream.head(200, SSE)
    bench.upstream.data(b": ping\n\n")
    assert client.body == b": ping\n\n"
    assert not bench.shared.said(FirstToken)
    bench.upstream.data(b"data: {}\n\n")
    assert len(bench.shared.said(FirstToken)) == 1
    bench.upstream.end()


def test_a_stream_that_breaks_before_its_first_token_leaves_nothing_in_the_tree(bench: Bench) -> None:
    _, client = responding(bench)
    bench.upstream.fail(StreamBroken("reset"))
    assert client.body.startswith(CREATED)
    assert b"upstream_stream_broken" in client.body
    assert len(bench.upstreams) == 1
    assert bench.shared.said(Trim)
    assert "ttft_s" not in bench.log[-1]


def test_a_client_that_leaves_before_the_first_token_leaves_nothing_in_the_tree(bench: Bench) -> None:
    exchange, client = responding(bench)
    client.left = True
    exchange.client_left()
    assert bench.shared.said(Trim)


def test_an_answer_to_responses_that_is_not_streamed_is_an_answer(bench: Bench) -> None:
    _, client = bench.start({"model": "m", "input": "word"}, path=b"/v1/responses")
    bench.upstream.head(200, JSON, 7)
    bench.upstream.data(b'{"a":')
    bench.upstream.data(b"1}")
    assert len(bench.shared.said(FirstToken)) == 1
    bench.upstream.end()
    assert client.body == b'{"a":1}'


def test_an_answer_without_a_body_is_an_answer(bench: Bench) -> None:
    _, client = bench.start(chat())
    bench.upstream.head(200, [], 0)
    assert client.status is None
    bench.upstream.end()
    assert (client.status, client.body, client.finished) == (200, b"", True)
    assert not bench.shared.said(FirstToken)
    assert bench.shared.said(Finished)[0].prefilled_us > 0


def test_backpressure_is_passed_on(bench: Bench) -> None:
    exchange, _ = bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head(200, SSE)
    upstream.data(b"data: 1\n\n")
    exchange.pause()
    assert upstream.paused
    exchange.resume()
    assert not upstream.paused
    upstream.end()
    exchange.pause()
    exchange.resume()
    assert not upstream.paused


def test_the_same_prompt_goes_where_it_was(bench: Bench) -> None:
    """5,000 bytes at 4 bytes per token: four whole blocks, 1,024 of 1,250 tokens."""
    _, first = bench.start(chat())
    bench.upstream.answer()
    _, second = bench.start(chat())
    bench.upstream.answer()
    assert second.headers[b"x-cacheway-worker"] == first.headers[b"x-cacheway-worker"]
    assert second.headers[b"x-cacheway-cached-tokens"] == b"1024"


# Errors before a worker is asked.


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "not_an_object"),
        (b'{"messages": []}', 400, "missing_model"),
        (b'{"model": "m", "stream": "perhaps"}', 400, "invalid_value"),
        (b'{"model": "m\\ud83d", "messages": []}', 400, "invalid_json"),
    ],
)
def test_a_request_that_cannot_be_read_is_answered_at_once(
    bench: Bench, body: bytes, status: int, code: str
) -> None:
    bench.registry.rules = REFUSING
    _, client = bench.start(body)
    assert (client.status, client.error["code"]) == (status, code)
    assert client.headers[b"x-cacheway-worker"] == b"none"
    assert not bench.upstreams


def test_a_model_that_nobody_serves_is_not_found(bench: Bench) -> None:
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("other"), ServedModel("another")), Description("", 0))
    _, client = bench.start(chat())
    assert (client.status, client.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("body", [b'{"messages": []}', b'{"model": "default", "messages": []}'])
def test_a_fleet_of_one_model_takes_any_name_or_none(bench: Bench, body: bytes) -> None:
    """The body passes as it came; here the request goes by the name that workers list."""
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("m"),), Description("", 0))
    _, client = bench.start(body)
    (upstream,) = bench.upstreams
    assert b"".join(upstream.sent["body"]) == body
    upstream.answer()
    assert client.status == 200
    assert bench.gateway.reader.parse(Endpoint.CHAT, body, ANONYMOUS).model == "m"


def test_an_adapter_goes_to_workers_of_its_base_and_shares_no_cache_with_it(bench: Bench) -> None:
    first, second = bench.registry.all()
    bench.registry.described(first, (ServedModel("m"),), Description("", 0))
    bench.registry.described(second, (ServedModel("n"),), Description("", 0))
    told = []
    for model in ("n", "n:ad1"):
        _, client = bench.start(chat(model=model))
        bench.upstream.answer()
        told.append((client.headers[b"x-cacheway-worker"], client.headers[b"x-cacheway-cached-tokens"]))
    worker = second.worker.worker_id.encode()
    assert told == [(worker, b"0"), (worker, b"0")]


def test_without_a_worker_the_client_is_told_when_to_come_back() -> None:
    bench = Bench(workers=0)
    _, client = bench.start(chat())
    assert (client.status, client.error["code"]) == (503, "no_worker_available")
    assert int(client.headers[b"retry-after"]) >= 1
    bench.check()


def test_what_no_worker_can_hold_is_refused_with_the_longest_that_one_can() -> None:
    """At a hundred tokens to the byte 10,486 bytes are longer than the last bucket."""
    bench = Bench()
    bench.shared.publish(BytesPerToken("m", 1, "r2", 0.01))
    bench.start(chat("a" * 10_486))[0].client_left()
    assert len(bench.upstreams) == 1, "while nobody belongs to a bucket lengths do not matter"
    for worker_id in ("w0:80", "w1:80"):
        bench.registry.change(worker_id, labels={"bucket": "0"})
    _, client = bench.start(chat("a" * 10_486))
    assert (client.status, client.error["code"]) == (400, "context_length_exceeded")
    assert "1048576 tokens" in client.error["message"]
    bench.start(chat("a" * 10_000))[0].client_left()
    bench.registry.change("w1:80", labels={})
    bench.start(chat("a" * 10_486))[0].client_left()
    assert len(bench.upstreams) == 3


def test_a_mistake_of_ours_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    """A policy that prices with NaN breaks an assertion in the core."""
    bench = Bench()
    bench.gateway.placing.decider.policy = NotANumber()
    _, client = bench.start(chat())
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert "request.crashed" in {getattr(record, "event", "") for record in caplog.records}
    bench.check()


def test_a_mistake_of_ours_in_a_redispatch_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    _, client = bench.start(chat())
    bench.gateway.placing.decider.policy = NotANumber()
    bench.upstream.fail(unreachable())
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert "request.crashed" in {getattr(record, "event", "") for record in caplog.records}
    bench.check()


class NotANumber:
    """A broken policy."""

    name = "broken"

    def costs(self, request: Any, candidates: Any) -> Any:
        return candidates.backlog_s * float("nan")


# Redispatch.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_status_that_another_worker_may_better_is_redispatched(bench: Bench, status: int) -> None:
    _, client = bench.start(chat())
    first = bench.upstream
    first.head(status, JSON, 2)
    assert first.aborted
    second = bench.upstream
    assert second.pool is not first.pool
    second.answer(b"fine")
    assert (client.status, client.body) == (200, b"fine")


@pytest.mark.parametrize("status", [400, 404, 413, 422, 501])
def test_a_status_that_blames_the_request_passes_through(bench: Bench, status: int) -> None:
    _, client = bench.start(chat())
    bench.upstream.answer(b'{"theirs":1}', status)
    assert (client.status, client.body) == (status, b'{"theirs":1}')
    assert len(bench.upstreams) == 1


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_that_passes_through_takes_back_what_was_inserted_on_trust(status: int) -> None:
    bench = Bench(workers=1)
    bench.start(chat())
    bench.upstream.answer(b"{}", status)
    assert len(bench.shared.said(Trim)) == 1
    _, client = bench.start(chat())
    bench.upstream.answer()
    assert client.headers[b"x-cacheway-cached-tokens"] == b"0"
    bench.check()


def test_without_attempts_left_the_workers_own_answer_passes_through() -> None:
    bench = Bench(workers=3, reliability={"retry_max_retries": 1})
    _, client = bench.start(chat())
    bench.upstream.head(503, JSON, 2)
    bench.upstream.answer(b'{"busy":1}', 503)
    assert (client.status, client.body) == (503, b'{"busy":1}')
    assert len(bench.upstreams) == 2
    bench.check()


def test_without_budget_left_the_workers_own_answer_passes_through() -> None:
    """100 redispatches are saved up, and no time passes to earn more."""
    bench = Bench(workers=3, reliability={"retry_budget_ratio": 0.0})
    while bench.gateway.sending.retry_budget.withdraw(bench.time.time()):
        pass
    _, client = bench.start(chat())
    bench.upstream.answer(b'{"busy":1}', 503)
    assert (client.status, client.body, len(bench.upstreams)) == (503, b'{"busy":1}', 1)
    bench.check()


@pytest.mark.parametrize(
    ("headed", "error"),
    [
        (False, WorkerUnreachable("refused")),
        (False, WorkerSilent("silent")),
        (True, StreamBroken("reset")),
        (True, WorkerSilent("silent")),
    ],
)
def test_a_failure_before_the_first_byte_is_redispatched_unseen(
    bench: Bench, headed: bool, error: UpstreamError
) -> None:
    _, client = bench.start(chat(stream=True))
    first = bench.upstream
    if headed:
        first.head(200, SSE)
    first.fail(error)
    assert client.status is None
    second = bench.upstream
    assert second.pool is not first.pool
    second.head(200, SSE)
    second.data(b"data: [DONE]\n\n")
    second.end()
    assert client.body == b"data: [DONE]\n\n"


def test_a_redispatch_avoids_all_workers_that_failed_as_long_as_there_are_others() -> None:
    bench = Bench(workers=3)
    bench.start(chat())
    for _ in range(3):
        bench.upstream.fail(WorkerSilent("silent"))
    assert len({upstream.pool.url for upstream in bench.upstreams}) == 3
    bench.time.advance(1)
    bench.upstream.answer()
    bench.check()


def test_when_all_attempts_failed_the_client_hears_of_the_last_failure() -> None:
    bench = Bench(workers=2, reliability={"retry_max_retries": 1})
    _, client = bench.start(chat())
    bench.upstream.fail(WorkerUnreachable("refused"))
    bench.upstream.fail(WorkerSilent("silent for 600 s"))
    assert (client.status, client.error["code"]) == (504, "upstream_timeout")
    assert client.error["message"] == "silent for 600 s"
    bench.check()


def test_when_no_worker_is_left_the_client_hears_of_the_failure_not_of_the_lack() -> None:
    bench = Bench(workers=1)
    _, client = bench.start(chat())
    bench.registry.probed(bench.registry.all()[0], ok=False, refused=True, detail="")
    bench.upstream.fail(WorkerUnreachable("refused"))
    bench.time.advance(1)
    assert (client.status, client.error["code"]) == (502, "upstream_unreachable")
    bench.check()


def test_when_nobody_serves_the_model_any_more_the_client_hears_of_the_failure() -> None:
    bench = Bench(workers=1)
    _, client = bench.start(chat())
    bench.registry.described(bench.registry.all()[0], (ServedModel("other"),), Description("", 0))
    bench.upstream.fail(WorkerUnreachable("refused"))
    bench.time.advance(1)
    assert (client.status, client.error["code"]) == (502, "upstream_unreachable")
    bench.check()


def test_a_failed_attempt_takes_back_what_it_inserted_on_trust(bench: Bench) -> None:
    bench.start(chat())
    first = bench.upstream.pool.url.removeprefix("http://")
    bench.upstream.fail(WorkerSilent("silent"))
    (trim,) = bench.shared.said(Trim)
    assert (trim.worker, len(trim.path)) == (first, 8)
    bench.upstream.answer()
    _, client = bench.start(chat())
    assert bench.upstream.pool.url.removeprefix("http://") != first
    bench.upstream.answer()
    assert client.headers[b"x-cacheway-cached-tokens"] == b"1024"


def test_the_only_worker_is_asked_again_after_a_pause_that_grows() -> None:
    """0.1 s, then 0.2 s."""
    bench = Bench(workers=1)
    _, client = bench.start(chat())
    for attempts, pause_s in ((1, 0.1), (2, 0.2)):
        bench.upstream.fail(unreachable())
        bench.time.advance(pause_s - 0.01)
        assert len(bench.upstreams) == attempts
        bench.time.advance(0.02)
        assert len(bench.upstreams) == attempts + 1
    bench.upstream.answer()
    assert client.status == 200
    bench.check()


def test_an_answer_of_the_only_worker_passes_through() -> None:
    bench = Bench(workers=1)
    _, client = bench.start(chat())
    bench.upstream.answer(b'{"busy":1}', 429)
    assert (client.status, client.body, len(bench.upstreams)) == (429, b'{"busy":1}', 1)
    bench.check()


def test_a_client_that_leaves_in_the_pause_ends_it() -> None:
    bench = Bench(workers=1)
    exchange, client = bench.start(chat())
    bench.upstream.fail(unreachable())
    client.left = True
    exchange.client_left()
    bench.check()


# After the first byte.


def test_a_stream_that_breaks_ends_with_its_error(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head(200, SSE)
    upstream.data(b"data: 1\n\nda")
    upstream.fail(StreamBroken("reset"))
    assert client.finished
    assert client.body.startswith(b'data: 1\n\ndata: {"error":')
    assert b"upstream_stream_broken" in client.body
    assert len(bench.upstreams) == 1


def test_the_messages_api_names_its_error_event(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True), path=b"/v1/messages")
    bench.upstream.head(200, SSE)
    bench.upstream.data(b"event: ping\ndata: {}\n\nevent: pi")
    bench.upstream.fail(StreamBroken("reset"))
    assert client.body.startswith(b"event: ping\ndata: {}\n\nevent: error\ndata: {")


@pytest.mark.parametrize("length", [100, None])
def test_a_whole_answer_that_breaks_is_cut_off(bench: Bench, length: int | None) -> None:
    _, client = bench.start(chat())
    bench.upstream.head(200, JSON, length)
    bench.upstream.data(b'{"half":')
    bench.upstream.fail(StreamBroken("reset"))
    assert client.aborted
    assert client.body == b'{"half":'


# The client leaves.


@pytest.mark.parametrize("step", ["sent", "headed", "answering"])
def test_a_client_that_leaves_frees_the_worker_at_once(bench: Bench, step: str) -> None:
    exchange, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    if step != "sent":
        upstream.head(200, SSE)
    if step == "answering":
        upstream.data(b"data: 1\n\n")
    client.left = True
    exchange.client_left()
    assert upstream.aborted
    assert len(bench.shared.said(Finished)) == 1
    # Only a finished prefill leaves its blocks behind.
    assert len(bench.shared.said(Trim)) == (0 if step == "answering" else 1)
    assert bench.log[-1]["outcome"] == "client_left"
    bench.time.advance(1e5)


DONE = b'data: {"choices":[],"usage":{"prompt_tokens":1250,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


def test_a_client_that_leaves_with_the_last_event_has_its_answer(bench: Bench) -> None:
    """As by guidellm: only the end of the HTTP message is left, which comes a moment later."""
    exchange, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head(200, SSE)
    upstream.data(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    exchange.pause()
    upstream.data(DONE)
    client.left = True
    exchange.client_left()
    assert not upstream.aborted
    assert not upstream.paused
    upstream.end()
    assert bench.log[-1]["outcome"] == "completed"
    assert bench.gateway.metrics.totals().prompt_tokens == 1250


@pytest.mark.parametrize(("status", "stream"), [(400, True), (200, False)])
def test_only_a_stream_has_a_last_event(bench: Bench, status: int, stream: bool) -> None:
    exchange, client = bench.start(chat(stream=stream))
    upstream = bench.upstream
    upstream.head(status, SSE)
    upstream.data(DONE)
    client.left = True
    exchange.client_left()
    assert upstream.aborted
    assert bench.log[-1]["outcome"] == "client_left"


def test_a_client_that_leaves_after_the_prediction_leaves_the_blocks_behind(bench: Bench) -> None:
    exchange, client = bench.start(chat())
    bench.time.advance(1)
    client.left = True
    exchange.client_left()
    assert not bench.shared.said(Trim)


def test_a_client_that_leaves_a_redispatched_request_frees_the_second_worker(bench: Bench) -> None:
    exchange, client = bench.start(chat())
    bench.upstream.fail(unreachable())
    second = bench.upstream
    client.left = True
    exchange.client_left()
    assert second.aborted


def test_whatever_comes_after_the_end_does_nothing(bench: Bench) -> None:
    exchange, client = bench.start(chat())
    bench.upstream.answer(b"{}")
    said = len(bench.shared.ops)
    exchange.client_left()
    exchange.pause()
    exchange.resume()
    bench.time.advance(1e5)
    assert len(bench.shared.ops) == said
    assert client.body == b"{}"
    assert len(bench.log) == 1


# Time runs out.


@pytest.mark.parametrize("headed", [False, True])
def test_a_deadline_before_the_first_byte_is_an_answer(bench: Bench, headed: bool) -> None:
    _, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    if headed:
        upstream.head(200, SSE)
    bench.time.advance(bench.gateway.sending.exchanges.timeout_s - 1)
    assert client.status is None
    bench.time.advance(1)
    assert upstream.aborted
    assert (client.status, client.error["code"]) == (504, "request_timeout")


def test_a_deadline_within_a_stream_ends_it_with_its_error(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head(200, SSE)
    upstream.data(b"data: 1\n\n")
    bench.time.advance(bench.gateway.sending.exchanges.timeout_s)
    assert upstream.aborted
    assert client.finished
    assert b"request_timeout" in client.body


def test_a_deadline_within_a_whole_answer_cuts_it_off(bench: Bench) -> None:
    _, client = bench.start(chat())
    bench.upstream.head(200, JSON, 100)
    bench.upstream.data(b"{")
    bench.time.advance(bench.gateway.sending.exchanges.timeout_s)
    assert client.aborted


def test_the_deadline_is_the_requests_not_the_attempts(bench: Bench) -> None:
    _, client = bench.start(chat())
    bench.time.advance(bench.gateway.sending.exchanges.timeout_s - 1)
    bench.upstream.fail(unreachable())
    bench.time.advance(1)
    assert (client.status, client.error["code"]) == (504, "request_timeout")


# The process ends.


@pytest.mark.parametrize("headed", [False, True])
def test_a_request_without_an_answer_is_interrupted_with_an_error_to_try_elsewhere(
    bench: Bench, headed: bool
) -> None:
    exchange, client = bench.start(chat())
    upstream = bench.upstream
    if headed:
        upstream.head(200, JSON, 100)
    exchange.interrupt()
    assert upstream.aborted
    assert (client.status, client.error["code"]) == (503, "shutting_down")
    assert client.headers[b"retry-after"] == b"1"
    bench.check()


def test_an_interrupted_stream_ends_with_its_error(bench: Bench) -> None:
    exchange, client = bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head(200, SSE)
    upstream.data(b"data: 1\n\n")
    exchange.interrupt()
    assert upstream.aborted
    assert client.finished
    assert b"shutting_down" in client.body
    bench.check()


def test_an_interrupted_whole_answer_is_cut_off(bench: Bench) -> None:
    exchange, client = bench.start(chat())
    bench.upstream.head(200, JSON, 100)
    bench.upstream.data(b"{")
    exchange.interrupt()
    assert client.aborted
    bench.check()


def test_a_request_that_waits_for_its_next_attempt_is_interrupted(bench: Bench) -> None:
    bench.registry.change("w1:80", draining=True)
    exchange, client = bench.start(chat())
    bench.upstream.fail(unreachable())
    exchange.interrupt()
    bench.time.advance(60)
    assert (client.status, client.error["code"]) == (503, "shutting_down")
    bench.check()


# Several events in one moment.

EVENTS = ("left", "deadline", "prediction", "data", "end", "failed", "status")
"""Events that one pass of the event loop may deliver, in any order that the ports allow."""


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("step", ["sent", "headed", "begun"])
@pytest.mark.parametrize("workers", [1, 2])
def test_two_events_of_one_moment_end_a_request_once_in_either_order(
    step: str, streamed: bool, workers: int
) -> None:
    """If the request is still open after the two events, the client ends it by leaving."""
    for order in permutations(EVENTS, 2):
        bench = Bench(workers)
        exchange, client = bench.start(chat(stream=streamed))
        upstream = bench.upstream
        if step != "sent":
            upstream.head(200, SSE if streamed else JSON)
        if step == "begun":
            upstream.data(b"data: 1\n\n")
        for event in order:
            _deliver(event, bench, exchange, client, upstream)
        if not client.over:
            client.left = True
            exchange.client_left()
        bench.check()


def _deliver(
    event: str, bench: Bench, exchange: RequestExchange, client: FakeClient, upstream: FakeUpstream
) -> None:
    """Deliver an event, unless its port is closed. Client and clock may always send more."""
    match event:
        case "left":
            client.left = client.left or not client.over
            exchange.client_left()
        case "deadline":
            exchange.out_of_time()
        case "prediction":
            if exchange._attempt is not None:
                exchange._attempt.reservation.prefill_ended()
        case "data" if upstream.live and upstream.headed:
            upstream.data(b"data: 2\n\n")
        case "end" if upstream.live and upstream.headed:
            upstream.end()
        case "failed" if upstream.live:
            upstream.fail(StreamBroken("reset") if upstream.headed else unreachable())
        case "status" if upstream.live and not upstream.headed:
            upstream.head(503, JSON)


@pytest.mark.parametrize("end", ["whole", "broken", "error"])
def test_a_request_is_counted_out_when_its_answer_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request on the connection begins within `finish`, and must find its place free."""
    bench = Bench(workers=1, reliability={"disable_retries": True})
    _, client = bench.start(chat(stream=True))
    finish, counted = client.finish, []

    def begin_the_next() -> None:
        counted.append((bench.gateway.sending.inflight, len(bench.shared.fleet.loads.requests)))
        finish()

    monkeypatch.setattr(client, "finish", begin_the_next)
    if end == "error":
        bench.upstream.fail(unreachable())
    else:
        bench.upstream.head(200, SSE)
        bench.upstream.data(b"data: 1\n\n")
        if end == "broken":
            bench.upstream.fail(StreamBroken("reset"))
        else:
            bench.upstream.end()
    assert counted == [(0, 0)]
    bench.check()


# Circuits.


def test_what_a_worker_answers_moves_its_circuit(bench: Bench) -> None:
    """Five failures in a row open the circuit."""
    local = bench.registry.all()[0]
    bench.registry.change(bench.registry.all()[1].worker.worker_id, draining=True)
    bench.gateway.sending.retry_budget = RetryBudget(RedispatchRules(retry_budget_ratio=0))
    while bench.gateway.sending.retry_budget.withdraw(bench.time.time()):
        pass
    for _ in range(4):
        bench.start(chat())
        bench.upstream.answer(b"", 500)
    bench.start(chat())
    bench.upstream.answer(b"", 400)
    for _ in range(5):
        assert bench.registry.circuits.state(local) is Circuit.CLOSED
        bench.start(chat())
        bench.upstream.answer(b"", 500)
    assert bench.registry.circuits.state(local) is Circuit.OPEN
    _, client = bench.start(chat())
    assert client.status == 503


def ejected(bench: Bench) -> LocalWorker:
    """Return the only worker of a bench, whose circuit is open and whose wait is over."""
    (local,) = bench.registry.all()
    now_us = bench.time.clock.now_us()
    bench.shared.publish(CircuitSet(local.worker.worker_id, now_us, "r2", Circuit.OPEN, now_us + 10_000_000))
    _, client = bench.start(chat())
    assert client.status == 503
    bench.time.advance(10.001)
    return local


@pytest.mark.parametrize("leaves", ["client", "deadline"])
def test_a_probe_that_ends_without_an_outcome_lets_the_next_one_go(leaves: str) -> None:
    bench = Bench(workers=1, server={"request_timeout_s": 1})
    local = ejected(bench)
    exchange, client = bench.start(chat())
    assert bench.registry.circuits.state(local) is Circuit.HALF_OPEN
    _, other = bench.start(chat())
    assert other.status == 503
    if leaves == "client":
        client.left = True
        exchange.client_left()
    else:
        bench.time.advance(1)
    bench.start(chat())
    bench.upstream.answer()
    circuit = bench.registry.circuits.of(local)
    assert circuit is not None
    assert (circuit.state, circuit.successes) == (Circuit.HALF_OPEN, 1)
    bench.check()


def test_everybody_knows_of_a_probe() -> None:
    """Two requests of one turn are not two probes."""
    bench = Bench(workers=1)
    ejected(bench)
    bench.start(chat())
    told = [op.state for op in bench.shared.ops if isinstance(op, CircuitSet)]
    assert told == [Circuit.OPEN, Circuit.HALF_OPEN]
    bench.upstream.answer()


def test_a_worker_that_has_just_returned_takes_few_requests_until_it_is_the_only_one() -> None:
    """A tenth of its half; all of them when the other one is gone."""
    bench = Bench(queue={"disable_queue": True})
    bench.registry.rules = HealthRules(slow_start_s=10)
    back, other = bench.registry.all()
    bench.shared.fleet.returns(back.worker.slot, bench.time.clock.now_us())
    for number in range(100):
        bench.start(chat(f"{number} {'word ' * 1000}"))
    there = [upstream.pool.url == back.worker.url for upstream in bench.upstreams]
    assert 1 <= sum(there) <= 20
    bench.registry.change(other.worker.worker_id, draining=True)
    bench.start(chat())
    assert bench.upstreams[-1].pool.url == back.worker.url
    for upstream in bench.upstreams:
        upstream.answer()
    bench.check()


def test_a_request_without_a_prompt_is_an_arrival(bench: Bench) -> None:
    bench.start({"model": "m", "query": "q", "documents": ["d"]}, path=b"/v1/rerank")
    bench.upstream.answer()
    (placed,) = bench.shared.said(Placed)
    assert placed.paths
    arrivals_per_s, _ = bench.shared.fleet.loads.rates(placed.at_us)
    assert arrivals_per_s.sum() > 0


# Random courses of events.

STATUSES = (200, 400, 429, 500, 503)


@given(st.data())
def test_any_course_of_events_ends_every_request_once(data: st.DataObject) -> None:
    """Any legal events, in any order, for up to four requests at a time."""
    bench = Bench(workers=2, reliability={"retry_max_retries": 2})
    live: list[Any] = []
    for _ in range(data.draw(st.integers(1, 30), "steps")):
        live = [pair for pair in live if not pair[1].over]
        moves = ["time"]
        if len(live) < 4:
            moves += ["start", "start"]
        if live:
            moves += ["leave", "pause", "resume", "interrupt"]
        speaking = [upstream for upstream in bench.upstreams if upstream.live]
        assert len(speaking) <= len(live)
        if speaking:
            moves += ["worker"] * 6
        moves += ["ill", "well", "drain", "gone"]
        match data.draw(st.sampled_from(moves), "move"):
            case "start":
                body = chat(
                    "word " * data.draw(st.sampled_from((1, 400, 1000))), stream=data.draw(st.booleans())
                )
                live.append(bench.start(body))
            case "time":
                bench.time.advance(data.draw(st.sampled_from((0.01, 1.0, 700.0))))
            case "leave":
                exchange, client = data.draw(st.sampled_from(live))
                client.left = True
                exchange.client_left()
            case "pause":
                data.draw(st.sampled_from(live))[0].pause()
            case "resume":
                data.draw(st.sampled_from(live))[0].resume()
            case "interrupt":
                data.draw(st.sampled_from(live))[0].interrupt()
            case "worker":
                _act(data, data.draw(st.sampled_from(speaking)))
            case "ill":
                for local in bench.registry.all():
                    bench.registry.probed(local, ok=False, refused=data.draw(st.booleans()), detail="")
            case "well":
                for local in bench.registry.all():
                    bench.registry.probed(local, ok=True, refused=False, detail="")
            case "drain":
                for local in bench.registry.all():
                    bench.registry.change(local.worker.worker_id, draining=data.draw(st.booleans()))
            case "gone":
                bench.registry.remove("w0:80")
    bench.time.advance(2 * bench.gateway.sending.exchanges.timeout_s)
    bench.check()
    for exchange, client in live:
        if not client.left:
            exchange.client_left()
    bench.time.advance(2 * bench.gateway.sending.exchanges.timeout_s)
    bench.check()


def _act(data: st.DataObject, upstream: FakeUpstream) -> None:
    """Let the worker do one of its legal next steps."""
    if not upstream.headed:
        if data.draw(st.booleans(), "answers"):
            headers = data.draw(st.sampled_from((SSE, JSON, [])))
            upstream.head(data.draw(st.sampled_from(STATUSES)), headers)
        else:
            upstream.fail(data.draw(st.sampled_from((unreachable(), WorkerSilent("silent")))))
        return
    match data.draw(st.sampled_from(("data", "end", "fail")), "goes on"):
        case "data":
            upstream.data(
                b'data: {"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
            )
        case "end":
            upstream.end()
        case "fail":
            upstream.fail(data.draw(st.sampled_from((StreamBroken("reset"), WorkerSilent("silent")))))


# A large body: parsed in steps, between `begin` and placing.

LARGE = "word " * (LARGE_BODY_BYTES // 5)


def test_a_large_body_is_placed_after_begin_as_a_small_one_is_within_it(bench: Bench) -> None:
    exchange, client = bench.start(chat(LARGE))
    assert bench.upstreams == []
    assert bench.gateway.sending.inflight == 1

    bench.time.advance(0.0)

    (placed,) = bench.shared.said(Placed)
    assert placed.paths == bench.gateway.reader.parse(Endpoint.CHAT, exchange._request.body, ANONYMOUS).paths
    bench.upstream.answer(b"{}")
    assert client.status == 200


def test_a_client_that_leaves_while_its_body_is_parsed_reaches_no_worker(bench: Bench) -> None:
    exchange, client = bench.start(chat(LARGE))
    client.left = True
    exchange.client_left()

    bench.time.advance(0.0)

    assert bench.upstreams == []
    assert bench.log[0]["outcome"] == "client_left"


def test_the_end_of_the_process_ends_a_request_that_is_being_parsed(bench: Bench) -> None:
    exchange, client = bench.start(chat(LARGE))
    exchange.interrupt()

    bench.time.advance(0.0)

    assert (client.status, client.error["code"]) == (503, "shutting_down")
    assert bench.upstreams == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "m", "prompt": "' + LARGE.encode(), 400, "invalid_json"),
        (b'{"model": "unknown", "prompt": "%b"}' % LARGE.encode(), 404, "model_not_found"),
        (b'{"prompt": "%b"}' % LARGE.encode(), 400, "missing_model"),
    ],
)
def test_a_large_body_is_refused_as_a_small_one_is(bench: Bench, body: bytes, status: int, code: str) -> None:
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("m"),), Description("", 0))
    bench.registry.rules = REFUSING
    _, client = bench.start(body, path=b"/v1/completions")

    bench.time.advance(0.0)

    assert (client.status, client.error["code"]) == (status, code)


def test_no_worker_for_a_large_body_is_an_answer_too() -> None:
    bench = Bench(workers=0)
    _, client = bench.start(chat(LARGE))
    bench.time.advance(0.0)
    assert client.status == 503
    bench.check()


def test_a_mistake_of_ours_with_a_large_body_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.gateway.placing.decider.policy = NotANumber()
    _, client = bench.start(chat(LARGE))
    bench.time.advance(0.0)
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert "request.crashed" in {getattr(record, "event", "") for record in caplog.records}
    bench.check()


def test_a_request_that_would_miss_its_service_level_is_told_so_at_once() -> None:
    """The first request takes 50 ms of prefill, as predicted; behind it no first token comes within 60 ms."""
    bench = Bench(workers=1, admission={"ttft_slo_s": 0.06})
    bench.start(chat("one " * 500))
    _, client = bench.start(chat("two " * 500))
    assert client.status == 429
    assert client.error["code"] == "slo_unreachable"
    assert client.headers[b"retry-after"] == b"1"
    bench.upstream.answer()
    _, third = bench.start(chat("three " * 500))
    bench.upstream.answer()
    assert third.status == 200
    bench.check()
