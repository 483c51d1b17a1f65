"""The layer between the attempts of a kept stream and its client."""

import json

from fakes.gateway import JSON, SSE, Bench, chat

from router.continuing.keeper import CONTINUE_HEADER
from router.continuing.stream import COMMENT, HEAD_LINE
from router.gateway.stream_events import has_token

ASKS = [(CONTINUE_HEADER, b"true")]
CHUNK = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


def test_the_comment_and_the_line_are_what_http_and_event_streams_allow() -> None:
    assert COMMENT.startswith(b":")
    assert COMMENT.endswith(b"\n\n")
    assert not has_token(None, COMMENT)
    assert HEAD_LINE.endswith(b"\r\n")


def test_an_error_answer_passes_as_it_came(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True), headers=ASKS)
    bench.upstream.head(400, JSON, 2)
    bench.upstream.data(b"{}")
    bench.upstream.end()
    assert (client.status, client.body, client.length) == (400, b"{}", 2)
    assert b"x-cacheway-continue" not in client.headers


def test_a_whole_answer_to_a_stream_passes_as_it_came(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True), headers=ASKS)
    bench.upstream.answer(json.dumps({"usage": {"prompt_tokens": 1}, "x": 1}).encode())
    assert client.body == b'{"usage": {"prompt_tokens": 1}, "x": 1}'


def test_a_failure_in_the_first_event_is_continued_too(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True), headers=ASKS)
    bench.upstream.head(200, SSE)
    bench.upstream.data(b'data: {"error":{"message":"dead","code":500}}\n\n')
    bench.time.advance(0.001)
    bench.upstream.head(200, SSE)
    bench.upstream.data(CHUNK + b"data: [DONE]\n\n")
    bench.upstream.end()
    assert client.body == COMMENT + CHUNK + b"data: [DONE]\n\n"
    assert client.finished


def test_a_last_event_without_its_blank_line_is_the_end(bench: Bench) -> None:
    _, client = bench.start(chat(stream=True), headers=ASKS)
    bench.upstream.head(200, SSE)
    bench.upstream.data(CHUNK)
    bench.upstream.data(b"data: [DONE]")
    bench.upstream.end()
    assert client.body == CHUNK + b"data: [DONE]"
    assert client.finished


def test_an_end_without_the_last_event_is_an_error_if_no_worker_is_left() -> None:
    bench = Bench(workers=1)
    _, client = bench.start(chat(stream=True), headers=ASKS)
    bench.upstream.head(200, SSE)
    bench.upstream.data(CHUNK)
    bench.upstream.end()
    assert client.finished
    assert b"upstream_stream_broken" in client.body
    bench.check()
