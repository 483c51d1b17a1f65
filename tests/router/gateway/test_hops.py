"""How many gateways a request may have passed."""

import pytest
from fakes.gateway import Bench, chat

from policies import Placed
from router.errors import ClientError
from router.gateway.hops import HOPS_HEADER, HOPS_MAX, hops_of


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
