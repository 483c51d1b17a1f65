"""The yardstick: reuse of one infinite cache, counted by hand."""

from loadtest.ideal import IdealCache

A, B, C = (letter * 32 for letter in (b"a", b"b", b"c"))  # one block of 8 tokens each


def cache() -> IdealCache:
    return IdealCache(block_tokens=8)


def test_nothing_is_reused_from_a_cold_cache() -> None:
    assert cache().reuse(A + B) == 0


def test_the_leading_run_of_blocks_seen_before_is_reused() -> None:
    ideal = cache()
    ideal.reuse(A + B)

    assert ideal.reuse(A + B + C) == 16
    assert ideal.reuse(A + C + B) == 8, "B follows another block here: another prefix"
    assert ideal.reuse(B + A) == 0


def test_the_last_token_is_always_computed() -> None:
    ideal = cache()
    ideal.reuse(A + B)

    assert ideal.reuse(A + B) == 15


def test_a_partial_block_is_never_reused() -> None:
    ideal = cache()
    ideal.reuse(A + b"bbbbbbbb")

    assert ideal.reuse(A + b"bbbbbbbb") == 8


def test_an_answer_held_by_an_engine_counts_as_seen_from_then_on() -> None:
    ideal = cache()
    ideal.reuse(A)

    assert ideal.reuse(A + B + C, held_bytes=64) == 16
    assert ideal.reuse(A + B + A) == 16


def test_a_block_held_only_in_part_is_not_reused() -> None:
    assert cache().reuse(A + B, held_bytes=63) == 8
