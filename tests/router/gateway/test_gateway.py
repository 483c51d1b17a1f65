"""The door: who is let in, under which id, and with which view of the prompt."""

from typing import Any

import pytest
from fakes.gateway import Bench

from policies import Finished, FirstToken, Left, Placed
from router.errors import WorkerSilent
from router.gateway import Gateway
from router.gateway.endpoints import Endpoint
from router.proxy import Header

TEXT = "word " * 1000


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_endpoint_is_proxied_by_post_only(endpoint: Endpoint) -> None:
    path = endpoint.value.encode()
    assert Gateway.proxies(b"POST", path)
    assert not Gateway.proxies(b"GET", path)
    assert not Gateway.proxies(b"POST", path + b"/")
    assert Bench().gateway.endpoint_of(path) is endpoint


# The key.


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        ([], False),
        ([(b"authorization", b"Bearer ours")], True),
        ([(b"authorization", b"bearer  ours ")], True),
        ([(b"authorization", b"Bearer other")], False),
        ([(b"authorization", b"Bearer ")], False),
        ([(b"authorization", b"ours")], False),
        ([(b"x-api-key", b"ours")], True),
        ([(b"x-api-key", b"other")], False),
        ([(b"authorization", b"Basic eA=="), (b"x-api-key", b"ours")], True),
        ([(b"x-api-key", "öurs".encode())], False),
    ],
)
def test_a_key_is_asked_for_if_there_is_one(headers: list[Header], admitted: bool) -> None:
    bench = Bench(server={"api_key": "ours"})
    _, client = bench.start(chat(), headers=headers)
    if admitted:
        bench.upstream.answer()
        assert client.status == 200
    else:
        assert (client.status, client.error["code"]) == (401, "invalid_api_key")
    assert Bench().gateway.door.is_admin(headers)
    bench.check()


# The limit.


def rejected_until_others_end(bench: Bench) -> None:
    for _ in range(2):
        bench.start(chat())
    _, third = bench.start(chat())
    assert (third.status, third.error["code"]) == (429, "too_many_requests")
    assert third.headers[b"retry-after"] == b"1"
    bench.upstreams[0].answer()
    _, fourth = bench.start(chat())
    assert fourth.status is None
    for upstream in bench.upstreams[1:]:
        upstream.answer()
    bench.check()


def test_requests_for_which_there_are_no_files_are_rejected_until_others_end() -> None:
    rejected_until_others_end(Bench(requests_max=2))


def test_requests_beyond_the_limit_are_rejected_if_none_may_wait() -> None:
    rejected_until_others_end(Bench(server={"max_concurrent_requests": 2}, queue={"disable_queue": True}))


def test_requests_beyond_the_limit_wait_whoever_has_room() -> None:
    """Each ends before the next one goes; workers have room all the time."""
    bench = Bench(workers=3, server={"max_concurrent_requests": 1})
    for _ in range(3):
        bench.start(chat())
    for number in range(3):
        assert len(bench.upstreams) == number + 1
        assert bench.shared.fleet.tickets.count == 2 - number
        bench.upstreams[number].answer()
        bench.time.advance(0.1)
    assert [client.status for client in bench.clients] == [200] * 3
    bench.check()


# Ids.


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ([(b"x-request-id", b"mine")], b"mine"),
        ([(b"x-correlation-id", b"b"), (b"x-request-id", b"a")], b"a"),
        ([(b"x-trace-id", b"c")], b"c"),
        ([(b"x-request-id", b"m" * 256)], b"m" * 256),
    ],
)
def test_the_clients_request_id_is_kept(headers: list[Header], request_id: bytes) -> None:
    assert Bench().gateway.request_id_of(headers) == request_id


@pytest.mark.parametrize("value", [b"", b"m" * 257, "ümläut".encode()])
def test_an_id_that_does_not_fit_into_every_log_line_is_replaced(value: bytes) -> None:
    gateway = Bench().gateway
    first, second = (gateway.request_id_of([(b"x-request-id", value)]) for _ in range(2))
    assert first.startswith(b"req-")
    assert first != second


def test_attempts_have_ids_of_their_own_also_between_replicas() -> None:
    one, other = Bench().gateway, Bench().gateway
    ids = {gateway.next_attempt_id() for gateway in (one, other) for _ in range(100)}
    assert len(ids) == 200
    assert max(map(len, ids)) <= 16


# The prompt.


def placed(bench: Bench, body: dict[str, Any], *headers: Header) -> Placed:
    bench.start(body, headers=headers)
    bench.upstream.answer()
    bench.check()
    last = bench.shared.said(Placed)[-1]
    assert isinstance(last, Placed)
    return last


def test_a_prompt_is_cut_into_blocks_of_the_configured_size() -> None:
    """5,000 bytes of text: four bytes for each token of a block."""
    assert len(placed(Bench(), chat()).paths[0]) == 8 * 4
    small = placed(Bench(placement={"block_tokens": 16}), chat())
    assert len(small.paths[0]) == 8 * (5000 // 64)
    assert small.paths[0] != placed(Bench(placement={"block_tokens": 16}), chat("x" + TEXT)).paths[0]


def test_tenants_share_nothing() -> None:
    bench = Bench()
    nobody = placed(bench, chat())
    one = placed(bench, chat(), (b"x-tenant-id", b"one"))
    other = placed(bench, chat(), (b"x-tenant-id", b"other"))
    assert placed(bench, chat(), (b"x-tenant-id", b"one")).paths == one.paths
    assert len({nobody.paths, one.paths, other.paths}) == 3


def test_what_is_reserved_is_the_prompt_and_the_expected_output() -> None:
    """1,250 tokens and the frame of a message; the client's own limit bounds the output of each answer."""
    expected = Bench().gateway.expected_output_tokens
    prompt_tokens = placed(Bench(), chat()).uncached_tokens
    assert 1250 <= prompt_tokens <= 1260
    assert placed(Bench(), chat()).context_tokens == prompt_tokens + expected
    assert placed(Bench(), chat(max_tokens=8)).context_tokens == prompt_tokens + 8
    assert placed(Bench(), chat(max_tokens=8, n=3)).context_tokens == prompt_tokens + 24
    assert placed(Bench(), chat(max_tokens=10**9)).context_tokens == prompt_tokens + expected


def test_models_have_attention_profiles_of_their_own() -> None:
    bench = Bench(placement={"models": {"swa": {"attention": "sliding_window", "window_tokens": 128}}})
    assert bench.gateway.profile_of("swa").kind == "sliding_window"
    assert bench.gateway.profile_of("m").kind == bench.gateway.profile_of(None).kind == "full"
    every = Bench(placement={"models": {"*": {"attention": "linear"}}})
    assert every.gateway.profile_of("m").kind == "linear"


def test_the_log_line_of_a_request_can_be_turned_off() -> None:
    bench = Bench(observability={"request_logs": False})
    bench.start(chat())
    bench.upstream.answer()
    assert bench.log == []
    assert bench.gateway.inflight == 0


# Given up while alive.


def test_a_gateway_that_was_given_up_reserves_again_what_it_has_in_flight() -> None:
    """One in its prefill, one past it; what is placed later or has ended stands as it is."""
    bench = Bench()
    for number in range(3):
        bench.start(chat(f"{number} {TEXT}", stream=True))
    bench.upstreams[0].answer()
    bench.upstreams[2].head()
    bench.upstreams[2].data(b"data: 1\n\n")
    left = Left("r1", bench.time.clock.now_us())
    bench.start(chat(stream=True))
    loads, fleet = bench.shared.fleet.loads, bench.shared.fleet
    before = {name: getattr(loads, name).tolist() for name in ("prefill_us", "inflight_tokens")}
    said = len(bench.shared.ops)
    fleet.apply(left)
    assert len(loads.requests) == 1
    bench.gateway.given_up(left.at_us)
    renewed = bench.shared.ops[said:]
    assert sorted(type(op).__name__ for op in renewed) == ["FirstToken", "Placed", "Placed"]
    assert all(op.paths == () and op.at_us > left.at_us for op in renewed if isinstance(op, Placed))
    assert {name: getattr(loads, name).tolist() for name in before} == before
    said = len(bench.shared.ops)
    bench.gateway.given_up(left.at_us)
    assert len(bench.shared.ops) == said
    for upstream in bench.upstreams[1:]:
        upstream.end() if upstream.headed else upstream.answer()
    assert (loads.requests, bench.gateway.inflight) == ({}, 0)
    assert len({op.request_id for op in bench.shared.said(Finished)}) == 4
    assert len(bench.shared.said(FirstToken)) == 2  # of the one past its prefill
    assert sum(op.prefilled_us > 0 for op in bench.shared.said(Finished)) == 3


def test_a_request_that_waits_for_its_next_attempt_has_nothing_to_renew() -> None:
    bench = Bench(workers=1)
    bench.start(chat())
    bench.upstream.fail(WorkerSilent("silent"))
    said = len(bench.shared.ops)
    bench.gateway.given_up(bench.time.clock.now_us())
    assert len(bench.shared.ops) == said
    bench.time.advance(1)
    bench.upstream.answer()
    bench.check()


def test_many_reservations_are_renewed_in_turns() -> None:
    bench = Bench(queue={"disable_queue": True})
    for number in range(450):
        bench.start(chat(f"{number} {TEXT}"))
    left = Left("r1", bench.time.clock.now_us())
    bench.shared.fleet.apply(left)
    bench.gateway.given_up(left.at_us)
    assert len(bench.shared.fleet.loads.requests) == 200
    bench.time.advance(0.001)
    assert len(bench.shared.fleet.loads.requests) == 450
