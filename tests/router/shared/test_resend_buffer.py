"""Operations that Redis acknowledged are kept for a moment, within bounds, and returned in order."""

from router.shared.resend_buffer import KEPT_BYTES_MAX, KEPT_S, ResendBuffer

PLENTY = 1 << 30


def test_the_newest_are_given_back_oldest_first_and_once() -> None:
    kept = ResendBuffer()
    kept.keep([b"a", b"", b"bb"], 0.0)
    kept.keep([b"c"], 1.0)
    assert kept.take(PLENTY, PLENTY) == [b"a", b"", b"bb", b"c"]
    assert kept.take(PLENTY, PLENTY) == []


def test_age_counts_back_from_the_newest() -> None:
    kept = ResendBuffer()
    kept.keep([b"old"], 0.0)
    kept.keep([b"in time"], 1.0)
    kept.keep([b"new"], 1.0 + KEPT_S)
    assert kept.take(PLENTY, PLENTY) == [b"in time", b"new"]


def test_bytes_are_bounded_and_a_batch_beyond_all_bounds_is_not_kept() -> None:
    kept = ResendBuffer()
    half = bytes(KEPT_BYTES_MAX // 2)
    kept.keep([b"first", half], 0.0)
    kept.keep([half], 0.0)
    kept.keep([b"third"], 0.0)
    assert kept.take(PLENTY, PLENTY) == [half, b"third"]
    kept.keep([half, half, b"too much"], 0.0)
    assert kept.take(PLENTY, PLENTY) == []
    kept.keep([b"again"], 0.0)
    assert kept.take(PLENTY, PLENTY) == [b"again"]


def test_of_what_does_not_fit_the_newest_are_given() -> None:
    for bounds in ((2, PLENTY), (PLENTY, 2)):
        kept = ResendBuffer()
        kept.keep([b"a"], 0.0)
        kept.keep([b"b", b"c"], 0.0)
        assert kept.take(*bounds) == [b"b", b"c"]
