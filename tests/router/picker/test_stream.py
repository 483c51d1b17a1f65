import json
from typing import Any, cast

import orjson
import pytest
from fakes.gateway import Bench, chat
from fakes.handover import PairBench
from fakes.proxy_stream import CHAT, Proxy, destination_of, joined, set_headers

from policies import Attempt, Finished, FirstToken, Fitted, Placed
from router.admin.decisions_view import described
from router.errors import WorkerSilent
from router.handover import Leg
from router.picker.exchange import PickedExchange, Reach
from router.picker.intents import targets_of
from router.picker.proto import ext_proc_pb2 as pb
from router.picker.sidecar import SidecarRequest
from router.picker.stream import OutOfOrder
from router.proxy import HeldBytes

USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":1250,"completion_tokens":2,"prompt_tokens_details":'
    b'{"cached_tokens":64}}}\n\n'
)
EVENTS = (b"content-type", b"text/event-stream")


def immediate(proxy: Proxy) -> tuple[int, dict[str, Any]]:
    """The status and the error of an answer that no worker gave."""
    (answer,) = (each.immediate_response for each in proxy.got if each.HasField("immediate_response"))
    assert set_headers(answer.headers)[b"content-type"] == b"application/json"
    assert b"content-length" not in set_headers(answer.headers)
    return answer.status.code, orjson.loads(answer.body)["error"]


def outcome(bench: Bench) -> object:
    return bench.log[-1]["outcome"]


# The choice.


def test_a_choice_answers_head_and_body_at_once_when_the_body_is_complete() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    body = orjson.dumps(chat())
    assert proxy.head() == []
    assert proxy.body(body[:100], ends=False) == []
    choice, *pieces = proxy.body(body[100:])
    assert destination_of(choice) in ("w0:80", "w1:80")
    assert set_headers(choice.request_headers.response.header_mutation)[b"content-length"] == b"%d" % len(
        body
    )
    assert joined(pieces, "request_body") == (body, True)


def test_a_large_body_goes_back_in_pieces_of_62_kb() -> None:
    proxy = Proxy(Bench())
    proxy.head()
    body = orjson.dumps(chat("x" * 200_000))
    _, *pieces = proxy.body(body)
    assert len(pieces) == 4
    assert joined(pieces, "request_body") == (body, True)


def test_trailers_end_a_request_and_follow_its_body() -> None:
    proxy = Proxy(Bench())
    proxy.head()
    proxy.body(chat(), ends=False)
    choice, *pieces, trailers = proxy.say(request_trailers=pb.HttpTrailers())
    assert destination_of(choice)
    assert joined(pieces, "request_body") == (orjson.dumps(chat()), False)
    assert trailers.HasField("request_trailers")


def test_a_buffering_proxy_gets_its_choice_with_the_body() -> None:
    proxy = Proxy(Bench())
    (ready,) = proxy.head(modes=(pb.BUFFERED, pb.BUFFERED))
    assert ready == pb.ProcessingResponse(request_headers=pb.HeadersResponse())
    (choice,) = proxy.body(chat())
    assert destination_of(choice)
    assert choice.request_body.response.body_mutation.body == orjson.dumps(chat())


@pytest.mark.parametrize("mode", [pb.NONE, pb.STREAMED, pb.BUFFERED_PARTIAL, pb.GRPC])
def test_other_modes_of_the_request_are_refused(mode: pb.BodyMode) -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head(modes=(mode, pb.NONE))
    status, error = immediate(proxy)
    assert (status, error["code"]) == (500, "unsupported_body_mode")
    assert pb.BodyMode.Name(mode) in error["message"]
    proxy.check()


def test_the_next_turn_of_a_chat_goes_to_the_worker_of_the_first() -> None:
    bench = Bench(workers=4)
    first = Proxy(bench)
    first.head()
    (choice, *_) = first.body(chat("word " * 2000))
    endpoint = destination_of(choice)
    first.answer_head()
    first.answer(b"{}", ends=True)
    for _ in range(3):
        proxy = Proxy(bench)
        proxy.head()
        (choice, *_) = proxy.body(chat("word " * 2000 + "and more"))
        assert destination_of(choice) == endpoint
        proxy.answer_head()
        proxy.answer(b"{}", ends=True)
        proxy.check()


def test_only_endpoints_of_the_subset_are_chosen() -> None:
    bench = Bench(workers=5)
    for subset in (["w3:80"], "w3:80, w9:80"):
        for number in range(6):
            proxy = Proxy(bench)
            proxy.head(subset=subset)
            (choice, *_) = proxy.body(chat(f"{number} " * 3000))
            assert destination_of(choice) == "w3:80"
            proxy.stream.gone()


@pytest.mark.parametrize("subset", [[], ["w9:80"], [""]])
def test_a_subset_without_a_worker_is_503(subset: list[str]) -> None:
    proxy = Proxy(Bench())
    proxy.head(subset=subset)
    proxy.body(chat())
    assert immediate(proxy)[0] == 503
    other = Proxy(Bench())
    other.head(b"/v1/models", method=b"GET", ends=True, subset=subset)
    assert immediate(other)[0] == 503


def test_a_subset_is_ignored_if_the_settings_say_so() -> None:
    proxy = Proxy(Bench(), heeds_subsets=False)
    proxy.head(subset=["w9:80"])
    (choice, *_) = proxy.body(chat())
    assert destination_of(choice)


def test_prefill_and_decode_workers_are_refused_with_the_reason() -> None:
    proxy = Proxy(PairBench(prefill=1, decode=1))
    proxy.head()
    proxy.body(chat())
    status, error = immediate(proxy)
    assert status == 503
    assert "picker.decode_sidecars" in error["message"]
    assert "cacheway serve" in error["message"]
    assert proxy.stream.outbox.ended


# The answer.


def test_an_answer_is_counted_learned_from_and_passed_on_unchanged() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head(CHAT, (b"x-request-id", b"theirs"))
    proxy.body(chat(stream=True))
    (head,) = proxy.answer_head(200, EVENTS)
    changes = set_headers(head.response_headers.response.header_mutation)
    assert changes[b"x-request-id"] == b"theirs"
    assert changes[b"x-cacheway-worker"] in (b"w0:80", b"w1:80")
    assert not bench.shared.said(FirstToken)
    first = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    assert joined(proxy.answer(first), "response_body") == (first, False)
    assert len(bench.shared.said(FirstToken)) == 1
    assert joined(proxy.answer(USAGE + b"data: [DONE]\n\n"), "response_body")[0].startswith(USAGE)
    assert joined(proxy.answer(b"", ends=True), "response_body") == (b"", True)
    assert outcome(bench) == "completed"
    (decision,) = bench.gateway.reports.decisions.since(0)[0]
    assert decision.usage is not None
    assert (decision.usage.prompt_tokens, decision.usage.cached_tokens) == (1250, 64)
    proxy.check()


def test_a_large_piece_of_an_answer_is_cut() -> None:
    proxy = Proxy(Bench())
    proxy.head()
    proxy.body(chat())
    proxy.answer_head()
    data = b"x" * 130_000
    pieces = proxy.answer(data, ends=True)
    assert len(pieces) == 3
    assert joined(pieces, "response_body") == (data, True)


@pytest.mark.parametrize("mode", [pb.STREAMED, pb.BUFFERED])
def test_a_proxy_that_waits_for_each_piece_gets_one_answer_to_each(mode: pb.BodyMode) -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head(modes=(pb.BUFFERED, mode))
    proxy.body(chat())
    assert len(proxy.answer_head(200, EVENTS)) == 1
    for data, ends in ((b"data: {}\n\nda", False), (b"ta: [DONE]\n\n", False), (b"", True)):
        assert proxy.answer(data, ends=ends) == [pb.ProcessingResponse(response_body=pb.BodyResponse())]
    assert outcome(bench) == "completed"
    proxy.check()


def test_without_bodies_of_answers_the_head_is_the_first_token_and_the_end_completes_it() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head(modes=(pb.FULL_DUPLEX_STREAMED, pb.NONE))
    proxy.body(chat(stream=True))
    proxy.answer_head(200, EVENTS)
    assert len(bench.shared.said(FirstToken)) == 1
    proxy.stream.gone()
    assert outcome(bench) == "completed"
    proxy.check()


def test_trailers_end_an_answer() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.answer_head()
    assert joined(proxy.answer(b"{}"), "response_body") == (b"{}", False)
    got = proxy.say(response_trailers=pb.HttpTrailers())
    assert got[-1].HasField("response_trailers")
    assert not any(each.response_body.response.body_mutation.streamed_response.end_of_stream for each in got)
    assert outcome(bench) == "completed"
    proxy.check()


def test_a_head_alone_is_an_answer() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.answer_head(204, ends=True)
    assert outcome(bench) == "completed"
    proxy.check()


def test_a_workers_error_counts_against_it_and_is_tried_once() -> None:
    bench = Bench()
    for _ in range(5):
        proxy = Proxy(bench)
        proxy.head(subset=["w0:80"])
        proxy.body(chat())
        proxy.answer_head(503)
        proxy.answer(b'{"error":{}}', ends=True)
        assert outcome(bench) == "worker_error"
        proxy.check()
    proxy = Proxy(bench)
    proxy.head(subset=["w0:80"])
    proxy.body(chat())
    assert immediate(proxy)[0] == 503  # its circuit is open
    assert bench.log[0]["attempts"] == 1


def test_the_status_of_a_strange_head_is_502() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.say(response_headers=pb.HttpHeaders())
    proxy.answer(b"", ends=True)
    assert bench.log[-1]["status"] == 502


# Fallbacks.


def test_a_choice_names_as_many_further_endpoints_as_the_settings_say() -> None:
    for count in (0, 1, 2, 9):
        proxy = Proxy(Bench(workers=4), reach=Reach(fallbacks=count))
        proxy.head()
        choice, *_ = proxy.body(chat())
        named = destination_of(choice).split(",")
        assert len(set(named)) == len(named) == min(1 + count, 4)
        passing = Proxy(Bench(workers=4), reach=Reach(fallbacks=count))
        (choice,) = passing.head(b"/v1/models", method=b"GET", ends=True)
        assert len(set(destination_of(choice).split(","))) == min(1 + count, 4)


def test_the_chosen_endpoint_that_served_is_none_other() -> None:
    bench = Bench()
    proxy = Proxy(bench, reach=Reach(fallbacks=1))
    proxy.head()
    choice, *_ = proxy.body(chat())
    proxy.answer_head(served=destination_of(choice).split(",")[0])
    proxy.answer(b"{}", ends=True)
    assert proxy.elsewhere == 0
    assert bench.log[-1]["attempts"] == 1
    proxy.check()


def test_the_reservation_moves_to_the_endpoint_that_served() -> None:
    """The first one is released and has failed; cache and counts are learned of the second."""
    bench = Bench()
    proxy = Proxy(bench, reach=Reach(fallbacks=1))
    proxy.head()
    choice, *_ = proxy.body(chat(stream=True))
    first, second = destination_of(choice).split(",")
    (head,) = proxy.answer_head(200, EVENTS, served=second)
    assert (
        set_headers(head.response_headers.response.header_mutation)[b"x-cacheway-worker"] == second.encode()
    )
    by_worker = {op.worker: op.request_id for op in bench.shared.said(Placed)}
    assert list(by_worker) == [first, second]
    assert [op.request_id for op in bench.shared.said(Finished)] == [by_worker[first]]
    proxy.answer(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + USAGE)
    proxy.answer(b"data: [DONE]\n\n", ends=True)
    assert proxy.elsewhere == 1
    (decision,) = bench.gateway.reports.decisions.since(0)[0]
    assert decision.attempt is not None
    assert (decision.attempt.worker_id, decision.attempts, decision.outcome) == (second, 2, "completed")
    assert bench.local(first).breaker is not None
    proxy.check()
    following = Proxy(bench)
    following.head()
    choice, *_ = following.body(chat("word " * 1000 + "and more"))
    assert destination_of(choice) == second


def test_a_worker_that_is_not_shown_the_key_is_no_fallback_of_one_that_is() -> None:
    """The proxy sends one request to any of them, with the key of the first."""
    bench = Bench(workers=3)
    for worker_id in ("w0:80", "w1:80"):
        bench.local(worker_id).pool.authorization = b"authorization: Bearer fleet\r\n"
    for ends, path, method in ((False, CHAT, b"POST"), (True, b"/v1/models", b"GET")):
        for number in range(8):
            proxy = Proxy(bench, reach=Reach(fallbacks=2))
            choice, *_ = proxy.head(path, method=method, ends=ends) or proxy.body(chat(f"{number} " * 3000))
            named = destination_of(choice).split(",")
            key = set_headers(choice.request_headers.response.header_mutation).get(b"authorization")
            assert sorted(named) == (["w2:80"] if key is None else ["w0:80", "w1:80"])


def test_the_session_follows_its_request_to_the_endpoint_that_served() -> None:
    bench = Bench()
    proxy = Proxy(bench, reach=Reach(fallbacks=1))
    proxy.head(CHAT, (b"x-session-id", b"s"))
    choice, *_ = proxy.body(chat())
    first, second = destination_of(choice).split(",")
    assert list(bench.told.values()) == [first]
    proxy.answer_head(served=second)
    proxy.answer(b"{}", ends=True)
    assert list(bench.told.values()) == [second]
    proxy.check()


def test_workers_that_are_passed_over_again_and_again_are_ejected() -> None:
    bench = Bench()
    for _ in range(5):
        proxy = Proxy(bench, reach=Reach(fallbacks=1))
        proxy.head(subset=["w0:80"])
        proxy.body(chat())
        proxy.answer_head(served="w1:80")
        proxy.answer(b"{}", ends=True)
        proxy.check()
    proxy = Proxy(bench)
    proxy.head(subset=["w0:80"])
    proxy.body(chat())
    assert immediate(proxy)[0] == 503


def test_how_long_a_worker_took_is_not_learned_if_nothing_says_when_it_was_asked() -> None:
    bench = Bench()
    proxy = Proxy(bench, reach=Reach(fallbacks=1))
    proxy.head()
    choice, *_ = proxy.body(chat(stream=True))
    second = destination_of(choice).split(",")[1]
    bench.time.advance(5.0)
    proxy.answer_head(200, EVENTS, served=second)
    proxy.answer(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + USAGE)
    proxy.answer(b"data: [DONE]\n\n", ends=True)
    assert not bench.shared.said(Fitted)
    (decision,) = bench.gateway.reports.decisions.since(0)[0]
    assert described(decision)["ttft_s"] is None
    assert described(decision)["ttft_since_arrival_s"] == 5.0
    assert bench.gateway.reports.decisions.stay_s({second}) is None
    assert bench.metrics.exposition()[0].count(b"cacheway_ttft_error_seconds_count 0.0") == 1
    proxy.check()


class SeenSpans:
    """Notes when each decision began, by its span."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []

    def begin(self, *_: object) -> "SeenSpans":
        return self

    def sent(self, attempt: Attempt, _workers: object, _now_s: float) -> bytes:
        self.begun_s.append(attempt.started_s)
        return b""

    def left(self, _code: str, _now_s: float) -> None:
        pass

    def ended(self, *_: object, **_more: object) -> None:
        pass


def test_the_span_of_a_moved_decision_begins_when_it_moved() -> None:
    spans = SeenSpans()
    bench = Bench(spans=cast(Any, spans))
    proxy = Proxy(bench, reach=Reach(fallbacks=1))
    proxy.head()
    choice, *_ = proxy.body(chat())
    asked_s = bench.time.time()
    bench.time.advance(5.0)
    proxy.answer_head(served=destination_of(choice).split(",")[1])
    proxy.answer(b"{}", ends=True)
    assert spans.begun_s == [asked_s, asked_s + 5.0]
    proxy.check()


@pytest.mark.parametrize("mode", [pb.FULL_DUPLEX_STREAMED, pb.STREAMED, pb.NONE])
def test_an_answer_of_an_endpoint_that_is_no_worker_passes_and_teaches_nothing(mode: pb.BodyMode) -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head(modes=(pb.FULL_DUPLEX_STREAMED, mode))
    proxy.body(chat(stream=True))
    proxy.answer_head(200, EVENTS, served="10.0.0.9:8000")
    assert outcome(bench) == "served_elsewhere"
    assert proxy.elsewhere == 1
    if mode != pb.NONE:
        passed = proxy.answer(USAGE)
        assert len(passed) == 1
        proxy.answer(b"", ends=True)
    proxy.stream.gone()
    assert not bench.shared.said(FirstToken)
    proxy.check()


def test_an_endpoint_that_served_a_request_which_is_not_placed_means_nothing() -> None:
    proxy = Proxy(Bench())
    proxy.head(b"/v1/models", method=b"GET", ends=True)
    proxy.answer_head(served="10.0.0.9:8000", ends=True)
    assert proxy.elsewhere == 0
    proxy.check()


# Prefill and decode workers.


def pair_proxy(bench: PairBench) -> Proxy:
    return Proxy(bench, reach=Reach(share=bench.pairs.share))


def test_a_sidecar_is_told_the_prefill_worker_and_the_proxy_the_decode_worker() -> None:
    bench = PairBench(prefill=2, decode=2, protocol="nixl")
    proxy = pair_proxy(bench)
    proxy.head(CHAT, (b"x-prefiller-host-port", b"10.6.6.6:80"), (b"x-encoder-hosts-ports", b"10.6.6.6:81"))
    choice, *pieces = proxy.body(chat(stream=True))
    mutation = choice.request_headers.response.header_mutation
    prefill = set_headers(mutation)[b"x-prefiller-host-port"].decode()
    assert prefill in ("p0:80", "p1:80")
    assert destination_of(choice) in ("d0:80", "d1:80")
    assert list(mutation.remove_headers) == ["x-encoder-hosts-ports"]
    assert joined(pieces, "request_body")[1]
    assert sorted(bench.own) == sorted([prefill, destination_of(choice)])
    proxy.answer_head(200, EVENTS)
    proxy.answer(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert bench.own == [destination_of(choice)]
    proxy.answer(USAGE + b"data: [DONE]\n\n", ends=True)
    (decision,) = bench.gateway.reports.decisions.since(0)[0]
    assert decision.usage is not None
    assert decision.usage.cached_tokens == 64
    assert bench.own == []
    assert len(bench.pairs.stall_detector) == 0


def test_the_prefill_of_an_answer_that_comes_whole_ends_when_predicted() -> None:
    bench = PairBench(prefill=1, decode=1, protocol="nixl")
    proxy = pair_proxy(bench)
    proxy.head()
    proxy.body(chat())
    assert sorted(bench.own) == ["d0:80", "p0:80"]
    bench.time.advance(60.0)
    assert bench.own == ["d0:80"]
    proxy.answer_head()
    proxy.answer(b"{}", ends=True)
    assert outcome(bench) == "completed"
    assert bench.own == []


@pytest.mark.parametrize("how", ["leaves", "fails", "ends", "late"])
def test_both_workers_are_released_however_a_shared_request_ends(how: str) -> None:
    bench = PairBench(prefill=1, decode=1, protocol="nixl", server={"request_timeout_s": 20.0})
    proxy = pair_proxy(bench)
    proxy.head()
    proxy.body(chat(stream=how != "late"))
    if how == "leaves":
        proxy.stream.gone()
    elif how == "fails":
        proxy.answer_head(502)
        proxy.answer(b"bad", ends=True)
    elif how == "ends":
        proxy.stream.gone(ending=True)
    else:
        bench.time.advance(30.0)
        proxy.hear()
        assert immediate(proxy)[0] == 504
    assert bench.own == []
    assert bench.gateway.sending.inflight == 0


def test_a_leg_that_is_failed_from_here_answers_the_client() -> None:
    bench = PairBench(prefill=1, decode=1, protocol="nixl")
    proxy = pair_proxy(bench)
    proxy.head()
    proxy.body(chat(stream=True))
    (exchange,) = bench.gateway.sending.exchanges
    assert isinstance(exchange, PickedExchange)
    assert exchange._attempt is not None
    request = exchange._attempt.upstream
    assert isinstance(request, SidecarRequest)
    request.pause()
    request.resume()
    request.fail_leg(Leg.PREFILL, WorkerSilent("stalled", code="prefill_stalled"))
    proxy.hear()
    assert immediate(proxy)[0] == 504
    assert bench.own == []


def test_a_decode_worker_does_all_of_what_is_not_split() -> None:
    bench = PairBench(prefill=1, decode=1, protocol="nixl")
    proxy = pair_proxy(bench)
    proxy.head(b"/v1/responses")
    choice, *_ = proxy.body({"model": "m", "input": "word " * 1000})
    assert destination_of(choice) == "d0:80"
    assert b"x-prefiller-host-port" not in set_headers(choice.request_headers.response.header_mutation)
    assert bench.own == ["d0:80"]
    proxy.stream.gone()
    assert bench.own == []


def test_headers_that_direct_a_sidecar_are_never_a_clients() -> None:
    proxy = Proxy(Bench())
    proxy.head(
        CHAT, (b"x-prefiller-host-port", b"10.6.6.6:80"), (b"x-data-parallel-host-port", b"10.6.6.6:80")
    )
    choice, *_ = proxy.body(chat())
    removed = choice.request_headers.response.header_mutation.remove_headers
    assert list(removed) == ["x-data-parallel-host-port", "x-prefiller-host-port"]
    passing = Proxy(Bench())
    (choice,) = passing.head(b"/v1/other", (b"x-encoder-hosts-ports", b"10.6.6.6:80"))
    assert list(choice.request_headers.response.header_mutation.remove_headers) == ["x-encoder-hosts-ports"]


# Leaving.


@pytest.mark.parametrize("when", ["head", "body", "placed", "answering"])
def test_a_proxy_that_leaves_frees_everything(when: str) -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    if when != "head":
        proxy.body(chat(stream=True), ends=when != "body")
    if when == "answering":
        proxy.answer_head(200, EVENTS)
        proxy.answer(b"data: {}\n\n")
    proxy.stream.gone()
    proxy.stream.gone()
    proxy.check()
    if when in ("placed", "answering"):
        assert outcome(bench) == "client_left"


def test_a_proxy_that_leaves_after_the_last_event_has_the_whole_answer() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat(stream=True))
    proxy.answer_head(200, EVENTS)
    proxy.answer(b"data: {}\n\ndata: [DONE]\n\n")
    proxy.stream.gone()
    assert outcome(bench) == "completed"
    proxy.check()


def test_a_request_in_the_queue_that_leaves_is_no_longer_there() -> None:
    bench = Bench(workers=1, admission={"worker_running_max": 1})
    first, second = Proxy(bench), Proxy(bench)
    first.head()
    first.body(chat())
    second.head()
    assert second.body(chat()) == []
    assert len(list(bench.gateway.placing.room.tickets())) == 1
    second.stream.gone()
    assert not list(bench.gateway.placing.room.tickets())
    first.stream.gone()
    second.check()


def test_a_request_in_the_queue_is_sent_when_the_worker_has_room() -> None:
    bench = Bench(workers=1, admission={"worker_running_max": 1})
    first, second = Proxy(bench), Proxy(bench)
    first.head()
    first.body(chat())
    second.head()
    assert second.body(chat()) == []
    first.answer_head()
    first.answer(b"{}", ends=True)
    bench.time.advance(0.1)
    choice, *_ = second.hear()
    assert destination_of(choice) == "w0:80"


def test_a_proxy_that_answers_by_itself_while_a_request_waits_ends_its_wait() -> None:
    """A route's timeout: the proxy's own 504 passes through the filter."""
    bench = Bench(workers=1, admission={"worker_running_max": 1})
    first, second = Proxy(bench), Proxy(bench)
    first.head()
    first.body(chat())
    second.head()
    second.body(chat())
    assert len(second.answer_head(504)) == 1
    assert joined(second.answer(b"late", ends=True), "response_body") == (b"late", True)
    assert outcome(bench) == "client_left"
    first.stream.gone()
    second.check()


def test_the_end_of_the_process_is_no_fault_of_the_client() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.stream.gone(ending=True)
    assert outcome(bench) == "shutting_down"
    proxy.check()


# Bounds.


def test_a_body_that_does_not_end_is_408() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(b"{", ends=False)
    bench.time.advance(bench.settings.server.read_timeout_s)
    proxy.hear()
    assert immediate(proxy)[0] == 408
    assert proxy.body(b"more") == []  # it was on its way
    proxy.check()


def test_a_stream_without_a_word_ends_in_time() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    bench.time.advance(bench.settings.server.read_timeout_s)
    proxy.hear()
    assert immediate(proxy)[0] == 408
    proxy.check()


def test_an_answer_that_does_not_end_is_broken_off() -> None:
    bench = Bench(server={"request_timeout_s": 20.0})
    silent, begun = Proxy(bench), Proxy(bench)
    for proxy in (silent, begun):
        proxy.head()
        proxy.body(chat(stream=True))
    begun.answer_head(200, EVENTS)
    begun.answer(b"data: {}\n\n")
    bench.time.advance(30.0)
    silent.hear()
    assert immediate(silent)[0] == 504
    last, ends = joined(begun.hear(), "response_body")
    assert ends
    assert b'"code":"request_timeout"' in last
    silent.check()
    begun.check()


def test_an_answer_whose_head_has_gone_is_ended_without_another_one() -> None:
    bench = Bench(server={"request_timeout_s": 20.0})
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.answer_head(200)
    bench.time.advance(30.0)
    assert proxy.hear() == []
    assert proxy.stream.outbox.failed
    proxy.check()


def test_a_body_beyond_the_bound_is_413_before_it_ends() -> None:
    proxy = Proxy(Bench(server={"body_bytes_max": 1024, "held_bytes_max": 0}))
    proxy.head()
    proxy.body(b"x" * 1000, ends=False)
    proxy.body(b"x" * 100, ends=False)
    assert immediate(proxy)[0] == 413
    proxy.check()


def test_bodies_count_as_held_until_their_answer_begins() -> None:
    bench = Bench()
    held = HeldBytes(10_000)
    first = Proxy(bench, held=held)
    first.head()
    first.body(chat("x" * 8000))
    assert held.count > 8000
    second = Proxy(bench, held=held)
    second.head()
    second.body(chat("x" * 8000))
    assert immediate(second)[0] == 429
    first.answer_head()
    first.answer(b"{", ends=False)
    assert held.count == 0
    first.answer(b"}", ends=True)
    second.check()


def test_a_head_beyond_the_bounds_is_431() -> None:
    bench = Bench(server={"header_count_max": 8, "header_bytes_max": 1024})
    for headers in ([(b"a%d" % n, b"") for n in range(8)], [(b"a", b"x" * 1024)]):
        proxy = Proxy(bench)
        proxy.head(CHAT, *headers)
        assert immediate(proxy)[0] == 431
        proxy.check()


@pytest.mark.parametrize("value", [b"a\r\nx-prefiller-host-port: 10.6.6.6", b"a\0", b"\n"])
def test_a_header_that_would_be_two_is_400(value: bytes) -> None:
    for header in ((b"x-request-id", value), (value, b"a")):
        proxy = Proxy(Bench())
        proxy.head(CHAT, header)
        status, error = immediate(proxy)
        assert (status, error["code"]) == (400, "invalid_header")
        proxy.check()


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"request_body": pb.HttpBody(body=b"x")},
        {"request_trailers": pb.HttpTrailers()},
        {"response_body": pb.HttpBody(body=b"x")},
        {"response_headers": pb.HttpHeaders()},
    ],
)
def test_a_message_out_of_order_ends_the_stream(message: dict[str, Any]) -> None:
    proxy = Proxy(Bench())
    with pytest.raises(OutOfOrder):
        proxy.say(**message)
    proxy.stream.gone()
    proxy.check()


def test_two_heads_and_two_bodies_are_out_of_order() -> None:
    proxy = Proxy(Bench())
    proxy.head()
    with pytest.raises(OutOfOrder):
        proxy.head()
    proxy.body(chat())
    with pytest.raises(OutOfOrder):
        proxy.body(chat())
    proxy.stream.gone()
    proxy.check()


# Requests that are not placed.


@pytest.mark.parametrize(
    ("method", "path"),
    [(b"GET", b"/v1/models"), (b"POST", b"/v1/none"), (b"GET", CHAT), (b"POST", b"/encode")],
)
def test_other_requests_go_to_any_worker_and_pass_as_they_are(method: bytes, path: bytes) -> None:
    bench = Bench()
    proxy = Proxy(bench)
    (choice,) = proxy.head(path, method=method)
    assert destination_of(choice) in ("w0:80", "w1:80")
    assert joined(proxy.body(b"one", ends=False), "request_body") == (b"one", False)
    assert joined(proxy.body(b"two"), "request_body") == (b"two", True)
    assert len(proxy.answer_head()) == 1
    assert joined(proxy.answer(b"x" * 70_000, ends=True), "response_body") == (b"x" * 70_000, True)
    assert proxy.passed == 1
    assert bench.log == []
    proxy.check()


def test_a_path_that_no_list_names_never_reaches_a_worker() -> None:
    for method, path, ends in ((b"POST", b"/flush_cache", False), (b"GET", b"/metrics", True)):
        proxy = Proxy(Bench(), serves=lambda _method, path: path == b"/v1/models")
        proxy.head(path, method=method, ends=ends)
        status, error = immediate(proxy)
        assert (status, error["code"]) == (404, "not_found")
        assert proxy.passed == 0
        proxy.body(b"x")
        proxy.bench.time.advance(100.0)
        assert proxy.bench.log == [], "it is answered, and is not late"
        proxy.check()
    proxy = Proxy(Bench(), serves=lambda _method, path: path == b"/v1/models")
    (choice,) = proxy.head(b"/v1/models", method=b"GET", ends=True)
    assert destination_of(choice)
    proxy.stream.gone()
    proxy = Proxy(Bench(), serves=lambda _method, _path: False)
    proxy.head()
    assert destination_of(proxy.body(chat())[0])  # it is placed
    proxy.stream.gone()


@pytest.mark.parametrize(("status", "probed"), [(200, False), (400, False), (500, False), (503, True)])
def test_a_worker_that_the_proxy_may_not_have_reached_is_probed(status: int, probed: bool) -> None:
    bench = Bench(workers=1)
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.answer_head(status)
    assert (bench.local("w0:80").suspected_us > 0) is probed
    proxy.answer(b"{}", ends=True)
    proxy.check()


def test_a_request_that_is_not_placed_ends_in_time() -> None:
    bench = Bench(server={"request_timeout_s": 20.0})
    proxy = Proxy(bench)
    proxy.head(b"/v1/models", method=b"GET", ends=True)
    bench.time.advance(20.0)
    assert proxy.stream.outbox.failed
    proxy.stream.gone()
    proxy.check()


# Keys, intents, and models.


def test_keys_of_the_gateway_stay_here_and_the_workers_key_is_shown() -> None:
    bench = Bench(workers=1, server={"api_key": "ours"})
    proxy = Proxy(bench)
    proxy.head(CHAT, (b"authorization", b"Bearer ours"), (b"x-api-key", b"other"))
    choice, *_ = proxy.body(chat())
    assert list(choice.request_headers.response.header_mutation.remove_headers) == [
        "authorization",
        "x-api-key",
    ]
    proxy.stream.gone()

    local = bench.local("w0:80")
    local.pool.authorization = b"authorization: Bearer theirs\r\n"
    proxy = Proxy(bench)
    proxy.head(CHAT, (b"authorization", b"Bearer ours"))
    choice, *_ = proxy.body(chat())
    mutation = choice.request_headers.response.header_mutation
    assert set_headers(mutation)[b"authorization"] == b"Bearer theirs"
    assert list(mutation.remove_headers) == []
    proxy.stream.gone()

    stranger = Proxy(bench)
    stranger.head()
    stranger.body(chat())
    assert immediate(stranger)[0] == 401
    passing = Proxy(bench)
    passing.head(b"/v1/models", method=b"GET", ends=True)
    assert immediate(passing)[0] == 401


def test_an_objective_is_a_class_and_the_fairness_id_a_tenant() -> None:
    bench = Bench(workers=1, admission={"worker_running_max": 1})
    first, second = Proxy(bench), Proxy(bench)
    first.head()
    first.body(chat())
    second.intents.objectives = {"batch": -5}
    names = (b"x-gateway-inference-objective", b"batch"), (b"x-gateway-inference-fairness-id", b"team")
    second.head(CHAT, *names)
    second.body(chat())
    (ticket,) = bench.gateway.placing.room.tickets()
    assert ticket.flow == f"{list(bench.settings.queue.classes)[-1]}/team"
    for proxy in (first, second):
        proxy.stream.gone()
    second.check()


def test_a_rewritten_model_is_served_and_answered_under_the_clients_name() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.intents.rewrites = {"m": targets_of([("served", 1)])}
    proxy.head()
    _, *pieces = proxy.body(chat(stream=True))
    body, _ = joined(pieces, "request_body")
    assert json.loads(body) == chat(stream=True, model="served")
    proxy.answer_head(200, EVENTS)
    given = b'data: {"model":"served","x":"served"}\n\ndata: {"model": "served"}\n\n'
    got, _ = joined(proxy.answer(given), "response_body")
    assert got == b'data: {"model":"m","x":"served"}\n\ndata: {"model": "m"}\n\n'
    assert bench.gateway.reports.decisions.since(0)[0] == []
    proxy.answer(b"", ends=True)
    assert bench.gateway.reports.decisions.since(0)[0][0].model == "served"
    proxy.check()


def test_errors_of_requests_are_the_gateways() -> None:
    bench = Bench()
    for body, status in ((b"{broken", 400), (b'{"model":5,"messages":[]}', 400)):
        proxy = Proxy(bench)
        proxy.head()
        proxy.body(body)
        assert immediate(proxy)[0] == status
        proxy.check()
    packed = Proxy(bench)
    packed.head(CHAT, (b"content-encoding", b"gzip"))
    assert immediate(packed)[0] == 415


def test_a_released_worker_is_said_so_once() -> None:
    bench = Bench()
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    proxy.answer_head()
    proxy.answer(b"{}", ends=True)
    proxy.stream.gone()
    assert len(bench.shared.said(Finished)) == 1
