"""Chunks that passed are counted later, in their order, and none twice."""

from hypothesis import given
from hypothesis import strategies as st

from router.chunks import CHUNK_END, EVENT_END, SIZES, PassedChunks


def test_the_first_line_of_a_chunk_has_one_reading() -> None:
    assert all(int(line, 16) == size for line, size in SIZES.items())
    assert min(SIZES.values()) == len(EVENT_END)
    assert CHUNK_END.startswith(EVENT_END)


@given(
    groups=st.lists(st.lists(st.binary(max_size=40), max_size=5), max_size=5),
    upper=st.booleans(),
)
def test_payloads_are_counted_once_in_their_order(groups: list[list[bytes]], upper: bool) -> None:
    counted: list[bytes] = []
    passed = PassedChunks(lambda _: None, counted.extend)
    for group in groups:
        for payload in group:
            size = b"%X" if upper else b"%x"
            passed.waiting.append(size % len(payload) + b"\r\n" + payload + b"\r\n")
        passed.settle()
        passed.settle()
    assert counted == [payload for group in groups for payload in group]
    assert passed.waiting == []


def test_nothing_is_counted_if_nothing_passed() -> None:
    counted: list[list[bytes]] = []
    PassedChunks(lambda _: None, counted.append).settle()
    assert counted == []
