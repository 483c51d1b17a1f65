"""Heads that mean two things or nothing, and many requests in one write."""

from random import Random

from loadtest.fuzz.heads import heads


def test_the_same_random_numbers_make_the_same_bytes() -> None:
    assert all(heads(Random(seed)) == heads(Random(seed)) for seed in range(100))


def test_what_smuggling_is_made_of_is_drawn() -> None:
    drawn = [b"".join(heads(Random(seed)).pieces) for seed in range(1_500)]
    for part in (
        *(b"transfer-encoding: x, chunked", b"content-length: 5, 5", b"expect: 100-continue", b"\r\n folded"),
        *(b"HTTP/2.0", b"TRACE ", b"x: a\x00b", b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: upgrade"),
    ):
        assert any(part in data for data in drawn), part


def test_thousands_of_requests_come_in_one_write() -> None:
    drawn = [heads(Random(seed)) for seed in range(500)]
    whole = [wire for wire in drawn if len(wire.pieces) == 1]
    assert max(wire.pieces[0].count(b"upgrade: a\r\n") for wire in whole) == 5_000
    assert all(b"" not in wire.pieces for wire in drawn)
