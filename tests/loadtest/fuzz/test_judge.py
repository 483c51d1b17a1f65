"""Findings, and answers that are none."""

import json

import pytest

from loadtest.fuzz.judge import (
    BEGUN_MAX,
    HELD_S_MAX,
    answers_in,
    differences,
    failure_in,
    judge_answer,
    judge_line,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def failed(status: int, body: object, *lines: bytes) -> bytes:
    text = json.dumps(body).encode()
    head = b"\r\n".join([b"HTTP/1.1 %d X" % status, b"content-length: %d" % len(text), *lines])
    return head + b"\r\n\r\n" + text


def error(status: int, code: str, *lines: bytes) -> bytes:
    return failed(status, {"error": {"message": "x", "code": code}}, *lines)


def test_answers_are_taken_apart_as_they_were_framed() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    to_the_end = b"HTTP/1.0 404 Not Found\r\n\r\nrest HTTP/1.1 200 OK\r\n\r\n"
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + OK + chunked + b"HTTP/1.1 204 X\r\n\r\n" + to_the_end
    answers, wrong = answers_in(data)
    assert [answer.status for answer in answers] == [200, 200, 204, 404]
    assert not wrong


@pytest.mark.parametrize("data", [b"", b"HTT", OK[:20], OK + OK[:30]])
def test_a_last_answer_may_be_cut(data: bytes) -> None:
    assert answers_in(data)[1] == ""


def test_bytes_behind_an_answer_that_are_none_are_a_finding() -> None:
    answers, wrong = answers_in(OK + b"x-evil: 1\r\n\r\n")
    assert len(answers) == 1
    assert "x-evil" in wrong


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (OK, False),
        (failed(400, {"error": {"code": "invalid_json"}}), False),
        (error(503, "no_worker_available"), False),
        (error(502, "upstream_unreachable"), False),
        (error(505, "http_version_not_supported"), False),
        (error(500, "internal_error"), True),
        (failed(500, "Internal Server Error"), True),
        (failed(500, "an engine's own", b"x-cacheway-worker: a:1"), False),
        (error(500, "internal_error", b"x-cacheway-worker: a:1"), True),
        (error(503, "made_up"), True),
        (failed(503, ["no error"]), True),
        (failed(599, {}), True),
    ],
)
def test_only_documented_failures_are_answered(data: bytes, found: bool) -> None:
    ((answer,), _) = answers_in(data)
    assert bool(judge_answer(answer)) is found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"level": "info", "event": "request.finished"}, False),
        ({"level": "warning", "event": "redis.lost"}, False),
        ({"level": "error", "event": "task.failed"}, True),
        ({"level": "critical", "event": "x"}, True),
        ({"level": "info", "event": "x", "model": "z" * 200_000}, True),
        ({"level": "info", "event": "fuzz.held", "held_s": HELD_S_MAX / 2}, False),
        ({"level": "info", "event": "fuzz.held", "held_s": HELD_S_MAX * 2}, True),
        ({"level": "info", "event": "fuzz.burst", "begun": BEGUN_MAX}, False),
        ({"level": "info", "event": "fuzz.burst", "begun": BEGUN_MAX + 1}, True),
    ],
)
def test_errors_long_lines_and_a_held_loop_are_findings(line: dict[str, object], found: bool) -> None:
    assert bool(judge_line(json.dumps(line).encode())) is found


def test_a_line_that_is_no_json_is_a_finding_and_an_empty_one_is_not() -> None:
    assert judge_line(b"Traceback (most recent call last):")
    assert not judge_line(b"")


def test_a_failure_is_told_by_what_was_raised_and_where_in_our_code() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/x/lib/python3.11/asyncio/runners.py", line 3, in run\n'
        '  File "/x/router/fleet/registry.py", line 12, in all\n'
        '  File "/x/policies/state/ops.py", line 5, in f\n'
        "policies.state.ops.OpRefused: WorkerPut: too much"
    )
    told = failure_in(trace)
    assert "OpRefused: WorkerPut: too much" in told
    assert told.index("policies/state/ops.py") < told.index("router/fleet/registry.py")
    assert "asyncio" not in told
    assert failure_in("") == ""


def test_replicas_are_compared_view_by_view() -> None:
    assert differences([{"a": 1, "b": 2}, {"a": 1, "b": 2}]) == []
    assert differences([{"a": 1, "b": 2}, {"a": 1, "c": 3}]) == ["b: 2 beside None", "c: None beside 3"]
