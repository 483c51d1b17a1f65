import pytest

from policies.estimates.costs import PROFILES
from policies.state.buckets import ANY_BUCKET, LengthBuckets, spill_s


@pytest.mark.parametrize(
    ("tokens", "index"),
    [(1, 0), (65_536, 0), (65_536.5, 1), (262_144, 1), (262_145, 2), (1_048_576, 2), (1_048_577, None)],
)
def test_a_length_belongs_to_the_first_bucket_that_is_long_enough(tokens: float, index: int | None) -> None:
    assert LengthBuckets().index(tokens) == index


def test_buckets_are_named_by_their_range() -> None:
    assert LengthBuckets().names == ("0-64K", "64K-256K", "256K-1M")
    assert LengthBuckets((1000, 2048)).names == ("0-1000", "1000-2K")
    assert LengthBuckets((1000, 2048)).middle_tokens == (500.0, 1524.0)


@pytest.mark.parametrize(
    ("label", "number"),
    [
        ("0-64K", 0),
        ("256K-1M", 2),
        ("1", 1),
        ("3", ANY_BUCKET),
        ("-1", ANY_BUCKET),
        ("", ANY_BUCKET),
        ("²", ANY_BUCKET),
        ("9" * 5000, ANY_BUCKET),
    ],
)
def test_a_label_is_a_name_or_a_number(label: str, number: int) -> None:
    assert LengthBuckets().labelled(label) == number


@pytest.mark.parametrize("bounds", [(), (0,), (5, 5), (9, 3)])
def test_bounds_that_do_not_ascend_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        LengthBuckets(bounds)


def test_a_visitor_costs_what_its_tokens_and_its_neighbours_pay_for_each_other() -> None:
    """A step of two ranks, 1,000 tokens each: behind 300K and 30K both pay for 300K, alone each its own.

    b·T·max(c)/c0 is the cost of attention in the step. On the worker of short ones the visitor's tokens make
    as many others pay for 270K more; apart, both cost as the formula of a prefill says.
    """
    model = PROFILES["default"]
    together = model.b_s * 2_000 * (300_000 / model.c0_tokens)
    apart = model.b_s * 1_000 * (300_000 / model.c0_tokens) + model.b_s * 1_000 * (30_000 / model.c0_tokens)
    token_s = model.b_s / model.c0_tokens  # another request is always beside it
    long_beside_short = spill_s(token_s, 30_000.0, 1_000.0, 299_500.0)
    short_beside_long = spill_s(token_s, 300_000.0, 1_000.0, 29_500.0)
    assert long_beside_short == pytest.approx(together - apart)
    assert short_beside_long == pytest.approx(together - apart)
