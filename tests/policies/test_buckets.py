import pytest

from policies.buckets import LengthBuckets


@pytest.mark.parametrize(
    ("tokens", "index"),
    [(1, 0), (65_536, 0), (65_536.5, 1), (262_144, 1), (262_145, 2), (1_048_576, 2), (1_048_577, None)],
)
def test_a_length_belongs_to_the_first_bucket_that_is_long_enough(tokens: float, index: int | None) -> None:
    assert LengthBuckets().index(tokens) == index


def test_buckets_are_named_by_their_range() -> None:
    assert LengthBuckets().names == ("0-64K", "64K-256K", "256K-1M")
    assert LengthBuckets((1000, 2048)).names == ("0-1000", "1000-2K")


@pytest.mark.parametrize("bounds", [(), (0,), (5, 5), (9, 3)])
def test_bounds_that_do_not_ascend_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        LengthBuckets(bounds)
