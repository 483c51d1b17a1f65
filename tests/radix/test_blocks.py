"""Prompt identity: reasons for which two prompts share blocks, or do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from radix import BLOCK_BYTES, BLOCK_TOKENS, BlockChain, chain_bytes, chain_token_ids, root_hash


def test_each_hash_is_seeded_with_the_one_before() -> None:
    """Written out for two blocks of 4 bytes; the ninth byte fills no block."""
    first = xxh3_64_intdigest(b"abcd", 42)
    second = xxh3_64_intdigest(b"efgh", first)

    assert chain_bytes(b"abcdefghi", 42, block_bytes=4) == (
        first.to_bytes(8, "little") + second.to_bytes(8, "little")
    )


def test_only_full_blocks_count() -> None:
    """255 tokens are no block, 512 are two; 1023 bytes are none, 1024 one."""
    assert chain_token_ids(range(BLOCK_TOKENS - 1), 1) == b""
    assert len(chain_token_ids(range(2 * BLOCK_TOKENS), 1)) == 16
    assert chain_bytes(bytes(BLOCK_BYTES - 1), 1) == b""
    assert len(chain_bytes(bytes(BLOCK_BYTES), 1)) == 8
    assert chain_bytes(b"", 1) == b""


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 2**64 - 1), st.integers(1, 9))
def test_prompts_share_exactly_the_blocks_before_they_part(
    one: bytes, other: bytes, root: int, block_bytes: int
) -> None:
    paths = chain_bytes(one, root, block_bytes), chain_bytes(other, root, block_bytes)
    for stop in range(1, min(map(len, paths)) // 8 + 1):
        same_text = one[: stop * block_bytes] == other[: stop * block_bytes]
        assert (paths[0][: stop * 8] == paths[1][: stop * 8]) == same_text
        assert (paths[0][stop * 8 - 8 : stop * 8] == paths[1][stop * 8 - 8 : stop * 8]) == same_text


@given(st.binary(max_size=100), st.integers(0, 2**64 - 1))
def test_any_buffer_with_the_same_bytes_gives_the_same_path(data: bytes, root: int) -> None:
    path = chain_bytes(data, root, 7)

    assert chain_bytes(bytearray(data), root, 7) == path
    assert chain_bytes(memoryview(data), root, 7) == path


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.integers(0, 2**64 - 1))
def test_token_ids_are_hashed_as_32_bit_little_endian_numbers(ids: list[int], root: int) -> None:
    packed = b"".join(token.to_bytes(4, "little") for token in ids)

    assert chain_token_ids(ids, root, block_tokens=3) == chain_bytes(packed, root, block_bytes=12)


def test_token_ids_that_are_none_are_refused() -> None:
    with pytest.raises(OverflowError):
        chain_token_ids([2**32], 1)
    with pytest.raises(OverflowError):
        chain_token_ids([-1], 1)
    with pytest.raises(TypeError):
        chain_token_ids(["a"], 1)  # type: ignore[list-item]


@given(
    st.lists(st.binary(max_size=4), max_size=4),
    st.lists(st.binary(max_size=4), max_size=4),
)
def test_roots_are_equal_only_for_the_same_parts(one: list[bytes], other: list[bytes]) -> None:
    assert (root_hash(7, *one) == root_hash(7, *other)) == (one == other)
    assert root_hash(7, *one) != root_hash(8, *one)


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 20))
def test_a_chain_does_not_depend_on_where_the_prompt_is_cut(pieces: list[bytes], block_bytes: int) -> None:
    chain = BlockChain(7, block_bytes)
    for piece in pieces:
        chain.add(piece)
    whole = b"".join(pieces)
    assert chain.path == chain_bytes(whole, 7, block_bytes)
    assert chain.tail == whole[len(whole) // block_bytes * block_bytes :]
