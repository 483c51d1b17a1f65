"""The spans of a request, their parents and their attributes."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.gateway import SSE, Bench, chat
from fakes.handover import PairBench
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from router.errors import WorkerUnreachable
from router.gateway.spans import Spans

CLIENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CLIENT[:-1] + b"0"


class Collected:
    """Spans of requests, kept in memory."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self._now_s: Callable[[], float] = lambda: 0.0
        self.spans = Spans(
            SimpleSpanProcessor(self._exporter),
            ratio=ratio,
            resource={"service.name": "test"},
            now_s=lambda: self._now_s(),
        )

    def at(self, bench: Bench) -> None:
        """Use the test's clock."""
        self._now_s = bench.time.time

    @property
    def told(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.told if span.name == name]
        return span

    @property
    def root(self) -> ReadableSpan:
        return self.named("POST /v1/chat/completions")


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 6)


def said(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    if span.parent is None:
        return False
    same = span.context.trace_id == parent.context.trace_id
    return same and span.parent.span_id == parent.context.span_id


def make(ratio: float = 1.0, workers: int = 1, **sections: Any) -> tuple[Bench, Collected]:
    collected = Collected(ratio)
    bench = Bench(workers, spans=collected.spans, **sections)
    collected.at(bench)
    return bench, collected


def test_a_stream_is_told_phase_by_phase() -> None:
    bench, collected = make()
    exchange, _ = bench.start(chat(stream=True), headers=[(b"x-request-id", b"mine")])
    ours = exchange._record.worker_request_id.decode()
    bench.time.advance(0.4)
    bench.upstream.head(200, SSE)
    bench.upstream.data(b"data: {}\n\n")
    bench.time.advance(0.6)
    bench.upstream.data(b'data: {"usage":{"prompt_tokens":2500,"completion_tokens":7}}\n\n')
    bench.upstream.end()

    dispatch, root = collected.named("dispatch"), collected.root
    assert {span.name: seconds(span) for span in collected.told} == {
        "decision": 0.0,
        "prefill": 0.4,
        "decode": 0.6,
        "dispatch": 1.0,
        "POST /v1/chat/completions": 1.0,
    }
    assert is_child(collected.named("decision"), root)
    assert is_child(dispatch, root)
    assert is_child(collected.named("prefill"), dispatch)
    assert is_child(collected.named("decode"), dispatch)
    assert said(dispatch) == {"cacheway.worker": "w0:80"}
    assert said(collected.named("decision"))["cacheway.uncached_tokens"] > 0
    assert said(root) == {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "cacheway.request_id": "mine",
        "cacheway.worker_request_id": ours,
        "cacheway.attempts": 1,
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "cacheway.outcome": "completed",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 2500,
        "gen_ai.usage.output_tokens": 7,
    }
    bench.check()


def test_a_session_is_told() -> None:
    bench, collected = make()
    bench.start(chat(), headers=[(b"x-session-id", b"mine")])
    bench.upstream.answer()
    assert said(collected.root)["gen_ai.conversation.id"] == "mine"
    bench.check()


def test_the_worker_gets_our_context_and_the_client_is_its_parent() -> None:
    bench, collected = make()
    bench.start(chat(), headers=[(b"traceparent", CLIENT), (b"tracestate", b"other=1")])
    headers = dict(bench.upstream.sent["headers"])
    bench.upstream.answer()

    dispatch, root = collected.named("dispatch"), collected.root
    assert dispatch.context is not None
    assert root.parent is not None
    assert (
        headers[b"traceparent"] == b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % dispatch.context.span_id
    )
    assert headers[b"tracestate"] == b"other=1"
    assert root.parent.span_id == 0xB7AD6B7169203331
    assert [name for name, _ in bench.upstreams[0].sent["headers"]].count(b"traceparent") == 1


@pytest.mark.parametrize(("ratio", "headers"), [(0.0, []), (1.0, [(b"traceparent", UNSAMPLED)])])
def test_who_is_not_traced_passes_through(ratio: float, headers: list[tuple[bytes, bytes]]) -> None:
    bench, collected = make(ratio)
    bench.start(chat(), headers=headers)
    sent = [header for header in bench.upstream.sent["headers"] if header[0] == b"traceparent"]
    bench.upstream.answer()

    assert sent == headers
    assert collected.told == []


def test_a_client_may_ask_to_be_traced() -> None:
    bench, collected = make(0.0)
    bench.start(chat(), headers=[(b"traceparent", CLIENT)])
    bench.upstream.answer()
    assert said(collected.root)["cacheway.outcome"] == "completed"


@pytest.mark.parametrize("value", [b"", b"00-zz", b"\xff" * 400, CLIENT + b"-more"])
def test_what_is_no_context_begins_a_trace_of_its_own(value: bytes) -> None:
    bench, collected = make()
    bench.start(chat(), headers=[(b"traceparent", value)])
    bench.upstream.answer()
    assert collected.root.parent is None or value == CLIENT + b"-more"
    bench.check()


def test_each_attempt_is_a_dispatch_and_the_failed_one_says_why() -> None:
    bench, collected = make(workers=2)
    bench.start(chat())
    bench.time.advance(0.2)
    bench.upstream.fail(WorkerUnreachable("gone"))
    bench.time.advance(0.3)
    bench.upstream.answer()

    failed, completed = [span for span in collected.told if span.name == "dispatch"]
    assert (failed.status.status_code, failed.status.description) == (
        StatusCode.ERROR,
        "upstream_unreachable",
    )
    assert completed.status.status_code is StatusCode.UNSET
    assert (seconds(failed), seconds(completed)) == (0.2, 0.3)
    assert said(failed) != said(completed)
    assert said(collected.root)["cacheway.attempts"] == 2


def test_a_wait_is_told() -> None:
    bench, collected = make()
    long = "word " * 12_000  # a second of prefill, and the target backlog is half a second
    bench.start(chat(stream=True, messages=[{"role": "user", "content": "a" + long}]))
    bench.start(chat(stream=True, messages=[{"role": "user", "content": "b" + long}]))
    assert len(bench.upstreams) == 1
    bench.time.advance(0.25)
    bench.upstream.head(200, SSE)
    bench.upstream.data(b"data: {}\n\n")
    bench.upstream.end()
    bench.time.advance(0.05)
    bench.upstream.head(200, SSE)
    bench.upstream.end()

    waited = collected.named("queue")
    assert seconds(waited) == 0.25
    assert is_child(waited, collected.told[-1])
    bench.check()


def test_a_request_that_is_refused_has_one_span_and_is_no_error_of_ours() -> None:
    bench, collected = make()
    bench.start(b"{")
    (root,) = collected.told
    assert (said(root)["http.response.status_code"], root.status.status_code) == (400, StatusCode.UNSET)
    assert said(root)["error.type"] == said(root)["cacheway.outcome"]


def test_that_nobody_serves_is_an_error() -> None:
    bench, collected = make(workers=0)
    bench.start(chat())
    assert collected.root.status.status_code is StatusCode.ERROR


def test_a_client_that_leaves_ends_all_spans() -> None:
    bench, collected = make()
    exchange, client = bench.start(chat(stream=True))
    bench.time.advance(0.5)
    client.left = True
    exchange.client_left()
    assert {span.name: seconds(span) for span in collected.told} == {
        "decision": 0.0,
        "dispatch": 0.5,
        "POST /v1/chat/completions": 0.5,
    }
    assert said(collected.root)["http.response.status_code"] == 499


def test_a_pair_is_told_leg_by_leg() -> None:
    collected = Collected()
    bench = PairBench(1, 1, spans=collected.spans)
    collected.at(bench)
    bench.start(chat(stream=True))
    context = bench.paired.pair.lines
    paired = bench.paired
    bench.time.advance(0.3)
    paired.prefilled()
    bench.time.advance(0.1)
    paired.shipped()
    paired.head(200, SSE)
    paired.data(b"data: {}\n\n")
    bench.time.advance(0.6)
    paired.end()

    dispatch = collected.named("dispatch")
    assert {span.name: seconds(span) for span in collected.told if is_child(span, dispatch)} == {
        "prefill": 0.3,
        "hand-over": 0.1,
        "decode": 0.6,
    }
    assert said(dispatch) == {"cacheway.prefill_worker": "p0:80", "cacheway.worker": "d0:80"}
    assert dispatch.context is not None
    assert b"%016x" % dispatch.context.span_id in context


def test_no_word_of_a_prompt_or_an_answer_is_told() -> None:
    bench, collected = make()
    bench.start(chat(stream=True, messages=[{"role": "user", "content": "verysecret"}]))
    bench.upstream.head(200, SSE)
    bench.upstream.data(b'data: {"choices":[{"delta":{"content":"verysecret"}}]}\n\n')
    bench.upstream.end()
    assert collected.told
    assert not any("verysecret" in span.to_json() for span in collected.told)
