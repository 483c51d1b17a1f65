"""The parts of a stream that are passed on, and their time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.whole_events import BLANK, HELD_BYTES_MAX, WholeEvents

END = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)\Z")


def passed(events: WholeEvents, data: bytes) -> bytes:
    """Pass events as an exchange does: it holds nothing back if all may pass."""
    return data if events.between and data.endswith(BLANK) else events.passed(data)


lines = st.sampled_from([b"data: {}", b"data:", b"event: x", b"id: 7", b": ping", b"data: \xc3\xa9"])
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    events=st.lists(st.tuples(st.lists(lines, min_size=1, max_size=3), ends), max_size=8),
    cuts=st.lists(st.integers(1, 30)),
    torn=st.booleans(),
)
def test_all_passes_in_order_and_stops_between_events_only(
    events: list[tuple[list[bytes], bytes]], cuts: list[int], torn: bool
) -> None:
    """The worker's bytes may come in any pieces, with any of the three line ends."""
    stream = b"".join(b"".join(line + end for line in event) + end for event, end in events)
    stream += b"data: {" if torn else b""
    whole, seen, at = WholeEvents(), b"", 0
    for size in (*cuts, len(stream) + 1):
        seen += passed(whole, stream[at : at + size])
        at = min(at + size, len(stream))
        assert seen + whole.held == stream[:at]
        assert not whole.torn
        assert whole.between == (not whole.held)
        last = re.split(rb"(?<=\n\n)|(?<=\n\r\n)|(?<=\r\r)", seen)[-1]
        assert not last or END.search(b"\n" + last) or last.startswith(b":"), seen
    assert whole.held.endswith(b"data: {") == torn


def test_what_ends_with_an_event_passes_at_once_and_is_not_copied() -> None:
    data = b"data: 1\n\ndata: 2\n\n"
    assert passed(WholeEvents(), data) is data


@pytest.mark.parametrize("comment", [b":\n", b": ping\r\n", b": a\n: b\n"])
def test_a_comment_keeps_the_connection_open_without_a_blank_line(comment: bytes) -> None:
    whole = WholeEvents()
    assert passed(whole, comment) == comment
    assert whole.between
    assert passed(whole, b"data: 1\n\n" + comment + b"da") == b"data: 1\n\n" + comment
    assert whole.held == b"da"


def test_an_event_that_is_too_long_to_be_held_passes_as_it_comes() -> None:
    whole = WholeEvents()
    first = b"data: 1\n\n"
    assert passed(whole, first + b"data: " + b"x" * (HELD_BYTES_MAX - 6)) == first
    assert not whole.torn
    assert len(passed(whole, b"x")) == HELD_BYTES_MAX + 1
    assert (whole.torn, whole.held, whole.between) == (True, b"", False)
    assert passed(whole, b"more") == b"more"
    assert passed(whole, b"end\n\nda") == b"end\n\n"
    assert (whole.torn, whole.held) == (False, b"da")


def test_the_end_of_a_long_event_may_come_in_two_pieces() -> None:
    """It counts with the next event: until then a break cuts the stream off."""
    whole = WholeEvents()
    whole.passed(b"x" * (HELD_BYTES_MAX + 1))
    assert passed(whole, b"\n") + passed(whole, b"\n") == b"\n\n"
    assert whole.torn
    assert passed(whole, b"data: 1\n\n") == b"data: 1\n\n"
    assert whole.between
