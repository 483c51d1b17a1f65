"""A worker's view of a client's request."""

from typing import Any

import pytest
from fakes.gateway import Bench, chat

from policies import Placed
from router.errors import ClientError
from router.forwarded_headers import FORWARDED_HEADERS
from router.gateway.endpoints import Endpoint
from router.gateway.forwarding import HOPS_HEADER, HOPS_MAX, Forwarding, hops_of
from router.offsets import edited
from router.proxy import ClientRequest, RequestHead
from router.proxy.ports import DERIVED_MAX, Derived
from router.tenant import Tenant


def test_the_workers_request_is_the_clients_bytes_with_few_headers() -> None:
    bench = Bench()
    body = b'{ "model" : "m", "messages": [ ] , "unknown": 1e0 }'
    sent_headers = [
        (b"cookie", b"secret"),
        (b"authorization", b"Bearer theirs"),
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1"),
        (b"x-request-id", b"mine"),
    ]
    exchange, _ = bench.start(body, headers=sent_headers)
    sent, ours = bench.upstream.sent, exchange._record.worker_request_id
    assert ours != b"mine"
    assert sent["body"] == (body,)
    assert sent["headers"] == [
        (b"authorization", b"Bearer theirs"),
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1"),
        (b"x-request-id", ours),
        (b"x-cacheway-hops", b"1"),
    ]
    assert (sent["method"], sent["path"], sent["patient"]) == (b"POST", b"/v1/chat/completions", True)
    bench.upstream.answer()
    bench.check()


@pytest.mark.parametrize(
    "sections", [{"server": {"api_key": "ours"}}, {"fleet": {"worker_api_key": "theirs"}}]
)
def test_a_key_of_ours_never_reaches_a_worker(sections: dict[str, Any]) -> None:
    """The worker's pool adds the fleet's key."""
    bench = Bench(**sections)
    bench.start(chat(), headers=[(b"authorization", b"Bearer ours")])
    assert [value for name, value in bench.upstream.sent["headers"] if name == b"authorization"] == []
    bench.upstream.answer()
    bench.check()


@pytest.mark.parametrize("passes_keys", [False, True])
def test_a_worker_sees_a_clients_key_only_if_it_is_for_workers(*, passes_keys: bool) -> None:
    headers = [(b"authorization", b"Bearer theirs"), (b"cookie", b"c"), (b"tracestate", b"t")]
    head = RequestHead(b"POST", b"/", headers=headers, hop_names=frozenset((b"tracestate",)))
    request = ClientRequest(head, b"{}", "127.0.0.1", 0.0)
    lines = Forwarding(FORWARDED_HEADERS, passes_keys=passes_keys).lines(request, b"mine").splitlines()
    assert lines == [
        *[b"authorization: Bearer theirs"] * passes_keys,
        b"x-request-id: mine",
        b"x-cacheway-hops: 1",
    ]


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (Endpoint.CHAT, b'"cache_salt":"s"'),
        (Endpoint.GENERATE, b'"extra_key":"s"'),
        (Endpoint.TOKENIZE, None),
    ],
)
def test_a_salt_goes_where_there_is_a_cache(endpoint: Endpoint, field: bytes | None) -> None:
    body = b'{"model": "m", "text": "x", "prompt": "x", "messages": []}'
    gateway = Bench().gateway
    pieces = edited(body, gateway.reader.parse(endpoint, body, Tenant("t", salt="s")).edits)
    text = b"".join(pieces)
    assert text == (body if field is None else body[:-1] + b"," + field + b"}")


def test_without_the_header_it_has_passed_none() -> None:
    assert hops_of([]) == hops_of([(b"x-request-id", b"5")]) == 0


@pytest.mark.parametrize("value", [b"", b"-1", b"x", b"1.0", b" 1", b"0x1", b"1, 1", b"\xb2", b"9" * 400])
def test_what_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        hops_of([(HOPS_HEADER, value)])
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")


@pytest.mark.parametrize("value", [b"3", b"0003", b"4", b"9" * 15])
def test_more_than_two_are_a_loop(value: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        hops_of([(HOPS_HEADER, value)])
    assert (caught.value.status, caught.value.code) == (508, "loop_detected")


def test_of_two_headers_the_greater_one_counts() -> None:
    assert hops_of([(HOPS_HEADER, b"2"), (HOPS_HEADER, b"0")]) == HOPS_MAX
    with pytest.raises(ClientError):
        hops_of([(HOPS_HEADER, b"0"), (HOPS_HEADER, b"3")])


def test_a_worker_hears_of_one_gateway_more(bench: Bench) -> None:
    for said, sent in ((None, b"1"), (b"0", b"1"), (b"2", b"3")):
        bench.start(chat(), headers=[(HOPS_HEADER, said)] if said is not None else [])
        headers = [value for name, value in bench.upstreams[-1].sent["headers"] if name == HOPS_HEADER]
        assert headers == [sent]
        bench.upstreams[-1].answer()
    bench.check()


def test_a_loop_is_not_placed() -> None:
    bench = Bench()
    _, client = bench.start(chat(), headers=[(HOPS_HEADER, b"3")])
    assert (client.status, client.error["code"]) == (508, "loop_detected")
    assert not bench.upstreams
    assert not bench.shared.said(Placed)
    bench.check()


def test_the_lines_of_a_repeated_head_are_written_once_for_each_setting() -> None:
    """Ids, hops and a trace of ours are written each time; new patterns hold at once."""
    forwarding = Forwarding(FORWARDED_HEADERS, passes_keys=False)
    headers = [(b"accept", b"a"), (b"x-own", b"1"), (b"traceparent", b"theirs")]
    known = ClientRequest(RequestHead(headers=headers, derived=Derived()), b"", "c", 0.0)
    plain = ClientRequest(RequestHead(headers=headers), b"", "c", 0.0)
    for request_id in (b"one", b"two"):
        assert forwarding.lines(known, request_id) == forwarding.lines(plain, request_id)
    assert forwarding.lines(known, b"1", b"traceparent: ours\r\n", 3) == forwarding.lines(
        plain, b"1", b"traceparent: ours\r\n", 3
    )
    forwarding.use((*FORWARDED_HEADERS, "x-own"))
    assert b"x-own: 1\r\n" in forwarding.lines(known, b"1")
    assert forwarding.lines(known, b"1") == forwarding.lines(plain, b"1")


def test_a_repeated_head_keeps_results_of_a_few_rules() -> None:
    derived = Derived()
    for rule in range(100):
        derived.put(rule, str(rule))
    assert derived.get(99) == "99"
    assert len(derived) <= DERIVED_MAX
