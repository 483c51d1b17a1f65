"""Facts that requests carry: their tenant, their id, and the view of the prompt."""

import itertools
import re
from typing import Any

import pytest
from fakes.gateway import Bench

from policies import Placed
from router.errors import ClientError
from router.gateway.reader import DRAWN_AT_ONCE, request_ids, timeout_s_of
from router.proxy import Header

TEXT = "word " * 1000


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


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
    assert Bench().door.is_admin(headers)
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
    assert Bench().gateway.reader.request_id_of(headers) == request_id


@pytest.mark.parametrize("value", [b"", b"m" * 257, "ümläut".encode()])
def test_an_id_that_does_not_fit_into_every_log_line_is_replaced(value: bytes) -> None:
    gateway = Bench().gateway
    first, second = (gateway.reader.request_id_of([(b"x-request-id", value)]) for _ in range(2))
    assert first.startswith(b"req-")
    assert first != second


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


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"30", 30.0),
        (b"2.5", 2.5),
        (b" 30s ", 30.0),
        (b"500ms", 0.5),
        (b"1.5 s", 1.5),
        (b"0.001", 0.001),
        (b"999999999", 999_999_999.0),
    ],
)
def test_a_timeout_is_seconds_with_or_without_a_unit(value: bytes, seconds: float) -> None:
    assert timeout_s_of(value) == seconds


@pytest.mark.parametrize(
    "value",
    [b"", b"0", b"0ms", b"-1", b"soon", b"1m", b"1e3", b"inf", b"nan", b".", b"1,5", b"9" * 400, b"1\xb2"],
)
def test_what_is_no_time_above_0_is_the_clients_mistake(value: bytes) -> None:
    with pytest.raises(ClientError, match="x-request-timeout") as raised:
        timeout_s_of(value)
    assert raised.value.status == 400
    assert raised.value.param == "x-request-timeout"
    assert len(raised.value.message) < 300


def test_no_id_comes_twice_nor_tells_the_next_one() -> None:
    """Two processes, and more ids than one draw has: neighbours share only as much as chance allows."""
    one, other = (list(itertools.islice(request_ids(), 3 * DRAWN_AT_ONCE)) for _ in range(2))
    assert len({*one, *other}) == len(one) + len(other)
    assert all(re.fullmatch(rb"req-[0-9a-f]{32}", name) for name in one)
    digits = [name[4:] for name in one]
    alike = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(digits)]
    assert max(alike) < 20  # of 32; two digits are equal with a probability of 1 in 16
    assert all(len({name[place] for name in digits}) == 16 for place in range(32))
