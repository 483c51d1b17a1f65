"""The request trace's lines for all outcomes of requests."""

from typing import Any

import msgspec
import orjson
import pytest
from fakes.gateway import EPOCH_S, Bench

from radix import chain_token_ids
from router.errors import StreamBroken, WorkerUnreachable
from router.request_trace import TraceLine

TEXT = "The secret of the prompt. " * 200
"""5,200 bytes: with the frame of a chat some more than five blocks of 1 KiB."""

USAGE = {"prompt_tokens": 1300, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 512}}


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def only(bench: Bench) -> TraceLine:
    (line,) = bench.trace
    return line


def test_a_completed_request_is_noted_with_what_the_engine_counted() -> None:
    """Sent 0 s after the epoch of the wall clock, answered after 0.5 s, complete after 2 s."""
    bench = Bench(workers=1)
    arrived_unix_s = bench.time.clock.now_us() / 1e6
    bench.start(chat(stream=True))
    upstream = bench.upstream
    upstream.head()
    bench.time.advance(0.5)
    upstream.data(b"data: 1\n\n")
    bench.time.advance(1.5)
    upstream.data(b"data: " + orjson.dumps({"usage": USAGE}) + b"\n\n")
    assert bench.trace == []
    upstream.end()

    line = only(bench)
    assert arrived_unix_s >= EPOCH_S
    assert line.arrived_unix_s == pytest.approx(arrived_unix_s, abs=1e-5)
    assert (line.ttft_s, line.duration_s) == pytest.approx((0.5, 2.0))
    assert (line.status, line.outcome, line.endpoint) == (200, "completed", "/v1/chat/completions")
    assert (line.model, line.stream, line.session) == ("m", True, "")
    assert (line.prompt_tokens, line.output_tokens, line.cached_tokens) == (1300, 7, 512)
    assert (line.estimated, line.predicted_tokens) == (False, 0)
    assert (line.worker_id, line.attempts, line.block_tokens) == ("w0:80", 1, 256)
    assert 5.0 < line.prompt_blocks < 5.2
    assert len(line.blocks) == 5 * 8


def test_equal_prefixes_are_equal_blocks_of_one_tenant() -> None:
    bench = Bench(workers=1)
    for text, tenant in ((TEXT, b"a"), (TEXT + "more" * 500, b"a"), (TEXT, b"b")):
        bench.start(chat(text), headers=[(b"x-tenant-id", tenant)])
        bench.upstream.answer()

    short, long, other = (line.blocks for line in bench.trace)
    assert long.startswith(short)
    assert len(long) > len(short)
    assert other[:8] != short[:8]


def test_token_ids_are_counted_and_their_blocks_are_whole() -> None:
    bench = Bench(workers=1)
    bench.start({"model": "m", "prompt": list(range(600))}, path=b"/v1/completions")
    bench.upstream.answer()

    line = only(bench)
    assert (line.prompt_tokens, line.estimated) == (600, True)
    assert line.prompt_blocks == pytest.approx(600 / 256, abs=1e-3)
    assert len(line.blocks) == len(chain_token_ids(range(600), 1)) == 16


def test_lengths_that_nobody_reported_are_estimated_and_a_streams_pieces_counted() -> None:
    """At four bytes per token; the length of a whole answer is not known."""
    bench = Bench(workers=1)
    bench.start(chat(stream=True))
    bench.upstream.head()
    for _ in range(9):
        bench.upstream.data(b"data: x\n\n")
    bench.upstream.end()
    bench.start(chat())
    bench.upstream.answer()

    stream, whole = bench.trace
    assert stream.estimated
    assert 1300 <= stream.prompt_tokens <= 1310
    assert (stream.output_tokens, whole.output_tokens) == (9, None)
    assert stream.cached_tokens is None
    assert whole.predicted_tokens > 1000


def test_a_session_is_noted_as_a_hash_of_its_tenant() -> None:
    bench = Bench(workers=1)
    for name, tenant in (
        ("my secret project", b"a"),
        ("my secret project", b"a"),
        ("my secret project", b"b"),
    ):
        bench.start(chat(prompt_cache_key=name), headers=[(b"x-tenant-id", tenant)])
        bench.upstream.answer()

    one, again, other = (line.session for line in bench.trace)
    assert len(one) == 16
    assert one == again != other


def test_no_text_and_no_name_of_a_session_is_in_a_line() -> None:
    bench = Bench(workers=1)
    bench.start(chat(stream=True, prompt_cache_key="my secret project", user="secret@user"))
    bench.upstream.head()
    bench.upstream.data(b"data: a secret answer\n\n")
    bench.upstream.end()

    assert b"secret" not in msgspec.json.encode(only(bench))


def test_every_end_is_noted_once() -> None:
    """Rejected, failed, broken off, and left by the client; after a redispatch as one request."""
    bench = Bench(workers=2)

    bench.start(chat())
    bench.upstream.answer(b"{}", 400)

    bench.start(chat())
    bench.upstream.fail(WorkerUnreachable("gone"))
    bench.upstream.answer()

    bench.start(chat(stream=True))
    bench.upstream.head(headers=[(b"content-type", b"text/event-stream")])
    bench.upstream.data(b"data: x\n\n")
    bench.upstream.fail(StreamBroken("gone"))

    exchange, client = bench.start(chat(stream=True))
    client.left = True
    exchange.client_left()

    for number in range(2):
        bench.registry.probed(bench.local(f"w{number}:80"), ok=False, refused=True, detail="")
    bench.start(chat())

    found = [(line.status, line.outcome, line.attempts) for line in bench.trace]
    assert found[:2] == [(400, "worker_refused", 1), (200, "completed", 2)]
    assert found[2][::2] == (200, 1)
    assert found[3:] == [(499, "client_left", 1), (503, "no_worker_available", 0)]
    assert (bench.trace[3].ttft_s, bench.trace[3].output_tokens) == (None, 0)
    assert (bench.trace[4].worker_id, bench.trace[4].predicted_tokens) == ("", 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/chat/completions", b"not json"),
        (b"/tokenize", b'{"model": "m", "prompt": "four"}'),
    ],
)
def test_what_has_no_prompt_for_a_cache_is_not_noted(path: bytes, body: bytes) -> None:
    bench = Bench(workers=1)
    _, client = bench.start(body, path=path)
    if not client.finished:
        bench.upstream.answer()

    assert client.finished
    assert bench.trace == []


def test_a_gateway_without_a_trace_notes_nothing() -> None:
    bench = Bench(workers=1)
    bench.gateway.reports.trace_request = None
    bench.start(chat())
    bench.upstream.answer()

    assert bench.trace == []
