"""Chunks that passed are counted later, in their order, and none twice."""

from hypothesis import example, given
from hypothesis import strategies as st

from router.chunks import CHUNK_BYTES_MAX, CHUNK_END, EVENT_END, SIZES, PassedChunks

READINGS = {spelling % size: size for size in range(2, CHUNK_BYTES_MAX + 1) for spelling in (b"%x", b"%X")}


@given(line=st.binary(max_size=6) | st.text("0123456789abcdefABCDEF xX_+-;", max_size=6).map(str.encode))
@example(line=b"0x1f")
@example(line=b"0_5")
@example(line=b"1fFf")
def test_the_first_line_of_a_chunk_has_one_reading(line: bytes) -> None:
    """Two spellings of each size are kept, and nothing else."""
    assert SIZES[line] == READINGS.get(line, -1)
    assert SIZES.items() <= READINGS.items()


def test_the_sizes_of_chunks_are_those_that_have_an_events_end() -> None:
    assert (SIZES[b"1"], SIZES[b"2"], SIZES[b"1000"], SIZES[b"1001"]) == (-1, 2, CHUNK_BYTES_MAX, -1)
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
