"""Registrations are small, kept for a while, and bounded for all of them together."""

import msgspec
import pytest
from fakes.gateway import VirtualTime

from router.encoding.registrations import (
    AGE_S_MAX,
    OVERHEAD_BYTES,
    RANKS_MAX,
    REGISTRATION_BYTES_MAX,
    Registrations,
)
from router.errors import ClientError
from router.proxy import ClientRequest, RequestHead
from router.proxy.ports import Derived


def registration(body: bytes = b"{}") -> ClientRequest:
    return ClientRequest(RequestHead(b"POST", b"/scheduler_receive_url"), body, "c", 0.0)


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


def test_registrations_of_a_part_are_kept_until_it_has_ended(time: VirtualTime) -> None:
    kept = Registrations(time.time)
    kept.add("p", registration(b"1"))
    kept.add("p", registration(b"2"))
    kept.add("q", registration(b"3"))
    assert [each.body for each in kept.of("p")] == [b"1", b"2"]
    kept.discard("p")
    kept.discard("p")
    assert (kept.of("p"), len(kept), kept.size_bytes) == ([], 1, OVERHEAD_BYTES + 1)


def test_of_a_head_of_64_kilobytes_only_what_is_needed_is_kept(time: VirtualTime) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-pad", b"x" * 60_000),
        (b"authorization", b"y" * 9_000),
    ]
    kept = Registrations(time.time)
    hop_names, derived = frozenset((b"w" * 9000,)), Derived(lines=b"d" * 9000)
    head = RequestHead(b"POST", b"/", b"z" * 9000, headers, hop_names, derived=derived)
    kept.add("p", msgspec.structs.replace(registration(), head=head))
    (request,) = kept.of("p")
    assert request.head.headers == [(b"content-type", b"application/json")]
    kept_head = request.head
    assert (kept_head.query, kept_head.hop_names, kept_head.derived) == (b"", frozenset(), None)


def test_of_all_parts_together_the_oldest_go_first(time: VirtualTime) -> None:
    kept = Registrations(time.time, bytes_max=10 * (OVERHEAD_BYTES + 100))
    for number in range(1000):
        kept.add(str(number), registration(b"x" * 100))
    assert (len(kept), kept.size_bytes) == (10, 10 * (OVERHEAD_BYTES + 100))
    assert kept.of("989") == []
    assert kept.of("990")


def test_what_is_too_old_is_forgotten(time: VirtualTime) -> None:
    kept = Registrations(time.time)
    kept.add("p", registration())
    time.advance(AGE_S_MAX / 2)
    kept.add("q", registration())
    time.advance(AGE_S_MAX / 2)
    kept.add("r", registration())
    assert [bool(kept.of(part)) for part in "pqr"] == [False, True, True]


def test_a_part_has_no_more_registrations_than_ranks_and_none_is_long(time: VirtualTime) -> None:
    kept = Registrations(time.time)
    for _ in range(RANKS_MAX):
        kept.add("p", registration())
    with pytest.raises(ClientError) as too_many:
        kept.add("p", registration())
    with pytest.raises(ClientError) as too_large:
        kept.add("q", registration(b"x" * (REGISTRATION_BYTES_MAX + 1)))
    assert (too_many.value.code, too_large.value.code) == ("too_many_registrations", "body_too_large")
    assert (len(kept.of("p")), kept.of("q")) == (RANKS_MAX, [])
