"""One record of a request for all reports."""

from typing import Any

import pytest
from fakes.gateway import Bench, chat

from policies import Placed
from router.errors import NoWorker
from router.gateway.record import RequestRecord, outcome_of


def test_an_answer_that_reports_its_usage_corrects_the_estimates(bench: Bench) -> None:
    """5,000 bytes in 2,500 tokens: two bytes per token instead of four."""
    bench.start(chat())
    bench.upstream.answer(b'{"usage":{"prompt_tokens":2500,"completion_tokens":1}}')
    assert bench.gateway.placing.feedback.bytes_per_token("m") < 4


def test_a_worker_that_has_lost_its_cache_is_logged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bench.gateway.placing.feedback, "answered", lambda *_: True)
    bench.start(chat())
    bench.upstream.answer(b'{"usage":{"prompt_tokens":2500,"completion_tokens":1}}')
    (line,) = [vars(each) for each in caplog.records if each.levelname == "WARNING"]
    assert (line["event"], line["worker_id"]) == ("worker.flushed", bench.shared.said(Placed)[0].worker)


def test_the_log_line_says_what_happened_and_no_prompt(bench: Bench) -> None:
    bench.start(chat(), headers=[(b"x-request-id", b"mine")])
    bench.upstream.answer(b"{}")
    (line,) = bench.log
    assert line["request_id"] == "mine"
    assert line["worker_request_id"].encode() == dict(bench.upstreams[0].sent["headers"])[b"x-request-id"]
    assert (line["status"], line["outcome"], line["attempts"]) == (200, "completed", 1)
    assert (line["endpoint"], line["model"], line["stream"]) == ("/v1/chat/completions", "m", False)
    assert "word" not in repr(line)


def record(bench: Bench, **known: Any) -> RequestRecord:
    """Return the record of a request that came two seconds ago."""
    received_s = bench.time.time()
    bench.time.advance(2)
    return RequestRecord(b"/v1/completions", "127.0.0.1", received_s, 7, gateway=bench.gateway, **known)


def test_of_a_request_that_went_nowhere_little_is_told() -> None:
    bench = Bench()
    told = record(bench, request_id=b"mine")
    headers = b"x-request-id: mine\r\nx-cacheway-worker: none\r\nx-cacheway-cached-tokens: 0\r\n"
    assert told.lines() == headers
    told.ended("no_worker", 503, NoWorker("Nobody is there.", retry_after_s=1.0))
    assert bench.log == [
        {
            "event": "request.finished",
            "request_id": "mine",
            "endpoint": "/v1/completions",
            "client": "127.0.0.1",
            "status": 503,
            "outcome": "no_worker",
            "duration_s": 2.0,
            "request_bytes": 7,
            "answer_bytes": 0,
            "attempts": 0,
            "detail": "Nobody is there.",
        }
    ]
    assert not bench.trace


def test_all_waits_of_a_request_are_one_wait() -> None:
    """The request waits again after its worker failed."""
    bench = Bench()
    told = record(bench, flow="normal/")
    for wait_s in (1.5, 0.25):
        told.waits_since_s = bench.time.time()
        bench.time.advance(wait_s)
        told.waited()
        bench.time.advance(10)
    told.ended("client_left", 499)
    assert (bench.log[0]["wait_s"], bench.log[0]["flow"]) == (1.75, "normal/")


def test_a_completed_request_is_traced_when_its_counts_are_known(bench: Bench) -> None:
    bench.start(chat())
    bench.upstream.answer(b'{"usage":{"prompt_tokens":2500,"completion_tokens":1}}')
    (line,) = bench.trace
    assert (line.outcome, line.prompt_tokens, line.estimated) == ("completed", 2500, False)


def test_what_failed_is_traced_without_counts() -> None:
    bench = Bench(workers=1, reliability={"disable_retries": True})
    bench.start(chat())
    bench.upstream.answer(b"{}", 500)
    (line,) = bench.trace
    assert (line.outcome, line.status, line.estimated) == ("worker_error", 500, True)
    bench.check()


def test_of_completed_requests_a_share_is_logged_and_of_others_all() -> None:
    """At a quarter: every fourth request."""
    bench = Bench(observability={"request_log_ratio": 0.25})
    for _ in range(8):
        record(bench).ended("completed", 200)
    assert len(bench.log) == 2
    record(bench).ended("client_left", 499)
    record(bench).ended("no_worker", 503, NoWorker("Nobody is there.", retry_after_s=1.0))
    assert [line["outcome"] for line in bench.log[2:]] == ["client_left", "no_worker"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "completed"), (400, "worker_refused"), (404, "worker_refused"), (422, "worker_refused")]
    + [(each, "worker_error") for each in (401, 403, 429, 500, 503)],
)
def test_a_request_that_its_worker_refuses_is_no_failure_of_the_worker(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome
