"""Members of buckets, by labels."""

from collections.abc import Callable

import numpy as np

from policies.state.bucket_members import BucketMembers
from policies.state.buckets import ANY_BUCKET, ANY_LENGTH, LengthBuckets, LengthClass

SLOTS = np.arange(4)


def members(*labels: str) -> BucketMembers:
    known = BucketMembers(LengthBuckets())
    for slot, label in enumerate(labels):
        known.put(slot, f"w{slot}", label)
    return known


def tokens(**by_slot: int) -> Callable[[int], int]:
    return lambda slot: by_slot.get(f"w{slot}", 0)


def test_while_nobody_belongs_to_a_bucket_lengths_do_not_matter() -> None:
    known = members("", "unheard of")
    assert (known.lengths, known.of_length(10**9)) == (None, ANY_BUCKET)
    assert known.fitting(SLOTS, ANY_LENGTH, tokens()) is SLOTS
    assert known.strangers() == {"w1": "unheard of"}


def test_one_label_is_enough_and_takes_effect_until_it_is_gone() -> None:
    known = members("0-64K", "")
    assert [known.of_length(n) for n in (65_536, 65_537, 1_048_577)] == [0, 1, 3]
    assert [known.of(slot) for slot in (0, 1)] == [0, ANY_BUCKET]
    known.put(0, "w0", "")
    assert known.lengths is None
    known.put(0, "w0", "2")
    known.gone(0)
    assert (known.lengths, known.of(0)) == (None, ANY_BUCKET)


def test_without_buckets_labels_mean_nothing() -> None:
    known = BucketMembers(None)
    known.put(0, "w0", "0-64K")
    assert (known.lengths, known.bounds, known.strangers()) == (None, None, {})


def test_all_that_can_hold_it_may_take_a_request_at_home_or_visited() -> None:
    """Slot 1 has room for less than the longest of the middle bucket, slot 2 does not say."""
    known = members("64K-256K", "0-64K", "256K-1M", "")
    assert known.fitting(SLOTS, LengthClass(1), tokens(w1=200_000)).tolist() == [0, 2, 3]
    assert known.fitting(SLOTS, LengthClass(1), tokens(w1=262_144)).tolist() == [0, 1, 2, 3]
    assert known.fitting(SLOTS[:3], LengthClass(1), tokens(w0=200_000, w1=200_000)).tolist() == [0, 1, 2]
    assert known.fitting(SLOTS, LengthClass(3), tokens()).tolist() == [3]


def test_the_longest_that_is_left_takes_what_nobody_at_home_can() -> None:
    known = members("0-64K", "64K-256K")
    assert known.fitting(SLOTS[:2], LengthClass(2), tokens(w0=100_000, w1=300_000)).tolist() == [1]


def test_nobody_takes_what_is_too_long_for_all() -> None:
    known = members("0-64K", "256K-1M")
    assert known.fitting(SLOTS[:2], LengthClass(known.of_length(1_048_577)), tokens()).tolist() == []


def test_what_exceeds_a_limit_is_for_those_that_hold_more_or_do_not_say() -> None:
    known = members("", "")
    holds = tokens(w0=1000, w1=1001, w2=5000)
    assert known.fitting(SLOTS, LengthClass(exceeds_tokens=1000), holds).tolist() == [1, 2, 3]
    assert known.fitting(SLOTS[:1], LengthClass(exceeds_tokens=1000), holds).tolist() == []


def test_prefill_and_decode_of_a_request_are_of_one_bucket() -> None:
    """Slot 3 decodes any length; if no worker of the bucket decodes, any worker does."""
    known = members("0", "1", "0", "")
    assert known.together_with(np.array([1, 2, 3]), 0).tolist() == [2, 3]
    assert known.together_with(np.array([1]), 0).tolist() == [1]
    assert known.together_with(np.array([0, 1]), 3).tolist() == [0, 1]


def test_placements_are_counted_by_where_they_belong_and_where_they_went() -> None:
    known = members("0", "1", "")
    for length, slot in ((100, 0), (100, 1), (100, 2), (100_000, 0), (100_000, 0)):
        known.count(length, slot)
    assert known.placed == {(0, 0): 1, (0, 1): 1, (0, ANY_BUCKET): 1, (1, 0): 2}
