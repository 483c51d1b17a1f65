from hypothesis import given
from hypothesis import strategies as st

from router.tail_buffer import HEAD_BYTES_MAX, LOOKED_EVERY, TailBuffer


@given(
    chunks=st.lists(st.binary(max_size=300), max_size=30),
    limit=st.integers(1, 400),
)
def test_a_tail_buffer_keeps_the_head_and_at_least_the_last_bytes(chunks: list[bytes], limit: int) -> None:
    buffer = TailBuffer(limit)
    for chunk in chunks:
        buffer.append(chunk)
        assert sum(map(len, buffer._old + buffer.new)) <= 3 * limit
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


@given(sizes=st.lists(st.integers(2, 300), max_size=200), limit=st.integers(1, 4_000))
def test_small_chunks_that_a_caller_adds_itself_are_bounded_as_well(sizes: list[int], limit: int) -> None:
    buffer = TailBuffer(limit)
    whole = b""
    for number, size in enumerate(sizes):
        chunk = bytes([number % 256]) * size
        whole += chunk
        buffer.new.append(chunk)
        if not len(buffer.new) % LOOKED_EVERY:
            buffer.look()
        assert sum(map(len, buffer._old + buffer.new)) <= 3 * limit + LOOKED_EVERY * 300
    kept = buffer.bytes()
    assert kept.endswith(whole[-limit:])
    assert kept.startswith(whole[:HEAD_BYTES_MAX]) or kept == whole
