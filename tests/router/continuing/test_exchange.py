"""An exchange whose stream another worker continues.

On sockets: `tests/integration/test_continued_streams.py`.
"""

import json
from typing import Any

import pytest
from fakes.gateway import SSE, Bench, FakeClient, FakeUpstream, chat
from fakes.handover import PairBench

from policies import Finished, Placed
from router.continuing.exchange import KeptExchange
from router.continuing.keeper import CONTINUE_HEADER
from router.errors import StreamBroken
from router.gateway.exchange import RequestExchange
from router.handover import Leg

ASKS = [(CONTINUE_HEADER, b"true")]


def started(bench: Bench, **more: Any) -> tuple[KeptExchange, FakeClient]:
    exchange, client = bench.start(chat(stream=True, **more), headers=ASKS)
    assert isinstance(exchange, KeptExchange)
    return exchange, client


def event(
    text: str, tokens: int, prompt_tokens: int = 7, reason: str | None = None, number: str = "a"
) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    chunk = {"id": number, "created": 1, "model": "m", "choices": [choice], "usage": counts}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def says(upstream: FakeUpstream, *texts: str, number: str = "a") -> None:
    upstream.head(200, SSE)
    for tokens, text in enumerate(texts, 1):
        upstream.data(event(text, tokens, number=number))


def body_of(upstream: FakeUpstream) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(b"".join(upstream.sent["body"]))
    return whole


def text_of(client: FakeClient) -> str:
    events = [each for each in client.body.split(b"\n\n") if each.startswith(b"data: {")]
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in events]
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if "choices" in chunk)


def breaks(bench: Bench) -> None:
    bench.upstream.fail(StreamBroken("gone"))
    bench.time.advance(0.001)  # the body is read in steps


def test_a_request_that_does_not_ask_has_the_ordinary_exchange(bench: Bench) -> None:
    exchange, _ = bench.start(chat(stream=True))
    assert type(exchange) is RequestExchange
    assert b"continuous_usage_stats" not in b"".join(bench.upstream.sent["body"])
    bench.upstream.answer()


def test_the_rest_is_a_request_of_its_own(bench: Bench) -> None:
    _, client = started(bench, max_tokens=50)
    says(bench.upstream, "Hi", " there")
    first = bench.upstream
    breaks(bench)
    assert len(bench.shared.said(Finished)) == 1
    second = bench.upstream
    assert second.pool is not first.pool
    sent = body_of(second)
    assert sent["messages"][-1] == {"role": "assistant", "content": "Hi there"}
    assert sent["max_tokens"] == 48
    one, two = bench.shared.said(Placed)
    (path,) = two.paths
    assert path.startswith(one.paths[0])  # the prompt, and the text behind it
    says(second, ", you", number="b")
    second.data(event("!", 2, number="b", reason="stop") + DONE)
    second.end()
    assert (text_of(client), client.finished) == ("Hi there, you!", True)
    assert client.body.count(b"[DONE]") == client.body.count(b": continued\n\n") == 1
    assert client.headers[b"x-cacheway-continue"] == b"true"
    (line,) = bench.log
    assert (line["outcome"], line["continued"], line["attempts"]) == ("completed", 1, 2)


def test_the_rest_belongs_to_the_same_session(bench: Bench) -> None:
    """Its name is shown as before: a client may write anything into `prompt_cache_key`."""
    started(bench, prompt_cache_key="private")
    says(bench.upstream, "Hi")
    breaks(bench)
    bench.upstream.head(200, SSE)
    bench.upstream.data(event("!", 2, number="b", reason="stop") + DONE)
    bench.upstream.end()
    (line,) = bench.log
    assert str(line["session"]).startswith("key-")
    assert len(bench.told) == 1


def test_the_times_of_the_request_and_of_the_worker_are_told_apart(bench: Bench) -> None:
    started(bench)
    bench.time.advance(0.5)
    says(bench.upstream, "Hi")
    bench.time.advance(10)
    breaks(bench)
    bench.time.advance(0.25)
    says(bench.upstream, " you", number="b")
    bench.upstream.data(event("!", 2, number="b", reason="stop") + DONE)
    bench.upstream.end()
    (line,) = bench.log
    assert line["ttft_s"] == 0.5
    (decision,), _ = bench.gateway.reports.decisions.since(0)
    assert decision.answered_s - decision.received_s == pytest.approx(0.5)
    assert decision.continued == 1


def test_a_client_that_is_too_slow_holds_the_next_worker_back(bench: Bench) -> None:
    exchange, client = started(bench)
    says(bench.upstream, "Hi")
    exchange.pause()
    breaks(bench)
    assert bench.upstream.paused
    exchange.resume()
    assert not bench.upstream.paused
    says(bench.upstream, "!", number="b")
    bench.upstream.data(event("", 2, number="b", reason="stop") + DONE)
    bench.upstream.end()
    assert text_of(client) == "Hi!"


def test_the_body_stays_as_long_as_the_stream_may_be_continued(bench: Bench) -> None:
    exchange, client = started(bench)
    says(bench.upstream, "Hi")
    assert exchange._request.body
    thinking = event("", 2).replace(b'"content": ""', b'"reasoning": "Hm"')
    bench.upstream.data(thinking)
    assert not exchange._request.body
    assert client.body_released
    bench.upstream.fail(StreamBroken("gone"))
    assert client.finished
    assert b"upstream_stream_broken" in client.body


def test_a_client_that_leaves_before_the_next_worker_is_asked(bench: Bench) -> None:
    exchange, client = started(bench)
    says(bench.upstream, "Hi")
    bench.upstream.fail(StreamBroken("gone"))
    client.left = True
    exchange.client_left()
    bench.time.advance(1)
    assert len(bench.shared.said(Placed)) == 1


def test_the_process_ends_before_the_next_worker_answers(bench: Bench) -> None:
    exchange, client = started(bench)
    says(bench.upstream, "Hi")
    breaks(bench)
    exchange.interrupt()
    assert client.finished
    assert b"shutting_down" in client.body
    again, other = started(bench)
    says(bench.upstream, "Hi")
    again.interrupt()
    assert b"shutting_down" in other.body
    assert b": continued" not in other.body


def test_the_next_worker_fails_before_its_first_byte_and_a_third_one_takes_over(bench: Bench) -> None:
    _, client = started(bench)
    says(bench.upstream, "Hi")
    breaks(bench)
    bench.upstream.answer(b"busy", 503)
    says(bench.upstream, "!", number="b")
    bench.upstream.data(event("", 2, number="b", reason="stop") + DONE)
    bench.upstream.end()
    assert (text_of(client), len(bench.shared.said(Placed))) == ("Hi!", 3)


@pytest.mark.parametrize("status", [400, 404, 501])
def test_a_refusal_ends_the_stream_with_the_first_error(bench: Bench, status: int) -> None:
    _, client = started(bench)
    says(bench.upstream, "Hi")
    breaks(bench)
    bench.upstream.answer(b"{}", status)
    assert client.finished
    assert b"gone" in client.body
    assert (text_of(client), client.status) == ("Hi", 200)


def test_an_answer_that_is_no_stream_ends_it_too(bench: Bench) -> None:
    _, client = started(bench)
    says(bench.upstream, "Hi")
    breaks(bench)
    bench.upstream.answer(b'{"choices":[]}')
    assert client.finished
    assert b"upstream_stream_broken" in client.body
    assert b'"choices":[]' not in client.body


def test_retries_that_are_off_continue_nothing() -> None:
    bench = Bench(workers=2, reliability={"disable_retries": True})
    _, client = started(bench)
    says(bench.upstream, "Hi")
    breaks(bench)
    assert client.finished
    assert b"upstream_stream_broken" in client.body
    bench.check()


def test_a_pairs_stream_is_continued_by_another_pair() -> None:
    bench = PairBench(2, 2)
    _, client = bench.start(chat(stream=True), headers=ASKS)
    first = bench.paired
    first.began()
    first.head(200, SSE)
    first.data(event("Hi", 1))
    first.fail_leg(Leg.DECODE, StreamBroken("gone"))
    bench.time.advance(0.001)
    second = bench.paired
    second.began()
    second.head(200, SSE)
    second.data(event("!", 1, number="b", reason="stop") + DONE)
    second.end()
    assert (text_of(client), client.finished) == ("Hi!", True)
    assert client.headers[b"x-cacheway-worker"] != b""
    bench.check()
