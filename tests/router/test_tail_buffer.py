import itertools

from hypothesis import given
from hypothesis import strategies as st

from router.tail_buffer import HEAD_BYTES_MAX, TailBuffer


@given(
    chunks=st.lists(st.binary(max_size=300), max_size=30),
    limit=st.integers(1, 400),
)
def test_a_tail_buffer_keeps_the_head_and_at_least_the_last_bytes(chunks: list[bytes], limit: int) -> None:
    buffer = TailBuffer(limit)
    for chunk in chunks:
        buffer.append(chunk)
        assert sum(map(len, buffer._old + buffer._new)) <= 3 * limit
    whole, kept = b"".join(chunks), buffer.bytes()

    assert kept.endswith(whole[-limit:])
    if len(whole) <= HEAD_BYTES_MAX + limit:
        assert kept == whole
    else:
        assert kept.startswith(whole[:HEAD_BYTES_MAX])
    assert len(kept) <= HEAD_BYTES_MAX + 1 + 3 * limit


def test_a_chunk_larger_than_the_buffer_is_not_kept_whole() -> None:
    buffer = TailBuffer(100)
    buffer.append(b"first")
    buffer.append(b"a" * 1_000_000 + b"end")

    kept = buffer.bytes()

    assert kept.startswith(b"firsta")
    assert kept.endswith(b"end")
    assert len(kept) <= HEAD_BYTES_MAX + 1 + 100


@given(groups=st.lists(st.lists(st.binary(max_size=90), max_size=10), max_size=10))
def test_groups_of_chunks_are_kept_like_single_ones(groups: list[list[bytes]]) -> None:
    buffer = TailBuffer(100)
    for group in groups:
        buffer.extend(group, sum(map(len, group)))
    whole, kept = b"".join(itertools.chain.from_iterable(groups)), buffer.bytes()
    assert kept.endswith(whole[-100:])
    assert kept.startswith(whole[:HEAD_BYTES_MAX]) or kept == whole
    assert len(kept) <= HEAD_BYTES_MAX + 1 + 300
