"""Operations that Redis acknowledged are kept for a moment, within bounds, and returned in order."""

from router.shared.resend_buffer import KEPT_BYTES_MAX, KEPT_S, ResendBuffer

PLENTY = 1 << 30


def test_the_newest_are_given_back_oldest_first_and_once() -> None:
    kept = ResendBuffer()
    kept.keep([b"a", b"b"], 2, 0.0)
    kept.keep([b"c"], 1, 1.0)
    assert kept.take(PLENTY, PLENTY) == [b"a", b"b", b"c"]
    assert kept.take(PLENTY, PLENTY) == []


def test_age_counts_back_from_the_newest() -> None:
    kept = ResendBuffer()
    kept.keep([b"old"], 3, 0.0)
    kept.keep([b"in time"], 7, 1.0)
    kept.keep([b"new"], 3, 1.0 + KEPT_S)
    assert kept.take(PLENTY, PLENTY) == [b"in time", b"new"]


def test_bytes_are_bounded_and_a_batch_beyond_all_bounds_is_not_kept() -> None:
    kept = ResendBuffer()
    kept.keep([b"first"], KEPT_BYTES_MAX // 2, 0.0)
    kept.keep([b"second"], KEPT_BYTES_MAX // 2, 0.0)
    kept.keep([b"third"], 1, 0.0)
    assert kept.take(PLENTY, PLENTY) == [b"second", b"third"]
    kept.keep([b"too much"], KEPT_BYTES_MAX + 1, 0.0)
    assert kept.take(PLENTY, PLENTY) == []
    kept.keep([b"again"], 5, 0.0)
    assert kept.take(PLENTY, PLENTY) == [b"again"]


def test_of_what_does_not_fit_the_newest_are_given() -> None:
    for bounds in ((2, PLENTY), (PLENTY, 2)):
        kept = ResendBuffer()
        kept.keep([b"a"], 1, 0.0)
        kept.keep([b"b", b"c"], 2, 0.0)
        assert kept.take(*bounds) == [b"b", b"c"]
