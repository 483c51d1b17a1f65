"""Who belongs where, by labels and by plans that come in any order."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.bucket_members import PLANS_KEPT, BucketMembers
from policies.buckets import ANY_BUCKET, LengthBuckets, beyond
from policies.loads import NEVER_US
from policies.ops import BucketPlan

SLOTS = np.arange(4)


def members(*labels: str, automatic: bool = False) -> BucketMembers:
    known = BucketMembers(LengthBuckets(), automatic=automatic)
    for slot, label in enumerate(labels):
        known.put(slot, f"w{slot}", label)
    return known


def plan(at_us: int, *numbers: int, moved: tuple[int, ...] = (), bound: int = 65_536) -> BucketPlan:
    workers = {f"w{slot}": number for slot, number in enumerate(numbers)}
    ways = {f"w{slot}": (0, numbers[slot]) for slot in moved}
    return BucketPlan(at_us, "r1", (bound, 262_144, 1_048_576), workers, ways)


def tokens(**by_slot: int) -> Callable[[int], int]:
    return lambda slot: by_slot.get(f"w{slot}", 0)


def test_while_nobody_belongs_to_a_bucket_lengths_do_not_matter() -> None:
    known = members("", "unheard of")
    assert (known.lengths, known.of_length(10**9), known.watched) == (None, ANY_BUCKET, False)
    assert known.fitting(SLOTS, ANY_BUCKET, tokens()) is SLOTS
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
    known = BucketMembers(None, automatic=True)
    known.put(0, "w0", "0-64K")
    assert (known.lengths, known.automatic, known.bounds, known.strangers()) == (None, False, None, {})


def test_all_that_can_hold_it_may_take_a_request_at_home_or_visited() -> None:
    """Slot 1 has room for less than the longest of the middle bucket, slot 2 does not say."""
    known = members("64K-256K", "0-64K", "256K-1M", "")
    assert known.fitting(SLOTS, 1, tokens(w1=200_000)).tolist() == [0, 2, 3]
    assert known.fitting(SLOTS, 1, tokens(w1=262_144)).tolist() == [0, 1, 2, 3]
    assert known.fitting(SLOTS[:3], 1, tokens(w0=200_000, w1=200_000)).tolist() == [0, 1, 2]
    assert known.fitting(SLOTS, 3, tokens()).tolist() == [3]


def test_the_longest_that_is_left_takes_what_nobody_at_home_can() -> None:
    known = members("0-64K", "64K-256K")
    assert known.fitting(SLOTS[:2], 2, tokens(w0=100_000, w1=300_000)).tolist() == [1]


def test_nobody_takes_what_is_too_long_for_all() -> None:
    known = members("0-64K", "256K-1M")
    assert known.fitting(SLOTS[:2], known.of_length(1_048_577), tokens()).tolist() == []


def test_what_exceeds_a_limit_is_for_those_that_hold_more_or_do_not_say() -> None:
    known = members("", "")
    holds = tokens(w0=1000, w1=1001, w2=5000)
    assert known.fitting(SLOTS, beyond(1000), holds).tolist() == [1, 2, 3]
    assert known.fitting(SLOTS[:1], beyond(1000), holds).tolist() == []


def test_prefill_and_decode_of_a_request_are_of_one_bucket() -> None:
    """Slot 3 decodes any length; if nobody of the bucket decodes, anybody does."""
    known = members("0", "1", "0", "")
    assert known.together_with(np.array([1, 2, 3]), 0).tolist() == [2, 3]
    assert known.together_with(np.array([1]), 0).tolist() == [1]
    assert known.together_with(np.array([0, 1]), 3).tolist() == [0, 1]


def test_a_plan_moves_bounds_and_members_but_no_label() -> None:
    known = members("0-64K", "", "", automatic=True)
    assert (known.lengths is not None, known.watched) == (True, True)
    assert known.planned(plan(5, 2, 1, 2, bound=32_768))
    assert [known.of(slot) for slot in range(3)] == [0, 1, 2]
    assert known.of_length(40_000) == 1
    known.put(3, "w3", "")
    assert known.of(3) == ANY_BUCKET


@pytest.mark.parametrize(
    "bounds", [(65_536, 1_048_576), (65_536, 262_144, 999), (262_144, 65_536, 1_048_576), ()]
)
def test_a_plan_of_other_settings_is_none(bounds: tuple[int, ...]) -> None:
    known = members("", "", automatic=True)
    assert not known.planned(BucketPlan(5, "r1", bounds, {"w0": 0, "w1": 1}))
    assert (known.lengths, known.plans) == (None, [])


def test_without_automatic_buckets_plans_do_not_count() -> None:
    known = members("", "")
    assert not known.planned(plan(5, 0, 1))
    assert known.lengths is None


def test_a_worker_that_moves_takes_nothing_until_its_old_prefills_are_over() -> None:
    known = members("", "", "", automatic=True)
    known.planned(plan(100, 0, 1, 2, moved=(1, 2)))
    oldest = {0: NEVER_US, 1: 90, 2: NEVER_US}
    slots = np.arange(3)
    assert known.may_take(slots, oldest.__getitem__).tolist() == [0, 2]
    assert known.may_take(slots, oldest.__getitem__) is known.may_take(slots, oldest.__getitem__)
    assert list(known.moving) == [1]
    only = np.array([1])
    assert known.may_take(only, oldest.__getitem__) is only, "nobody else can"
    oldest[1] = 101  # what came later anyway
    assert known.may_take(slots, oldest.__getitem__).tolist() == [0, 1, 2]
    assert not known.moving


PLANS = st.lists(
    st.builds(
        plan,
        st.integers(1, 20),
        *[st.integers(0, 2)] * 3,
        moved=st.sampled_from([(), (0,), (1, 2)]),
        bound=st.sampled_from([32_768, 65_536]),
    ),
    max_size=15,
    unique_by=lambda op: op.at_us,
)


@given(PLANS, st.randoms(use_true_random=False))
def test_plans_may_come_in_any_order_and_again(plans: list[BucketPlan], chance: object) -> None:
    known, other = (members("", "1", "", automatic=True) for _ in range(2))
    for op in plans:
        known.planned(op)
    again = [*plans, *plans]
    chance.shuffle(again)  # type: ignore[attr-defined]
    for op in again:
        other.planned(op)

    assert list(known.dump()) == list(other.dump())
    assert len(known.plans) == min(len(plans), PLANS_KEPT)
    assert known.lengths == other.lengths
    assert known.moving == other.moving
    assert [known.of(slot) for slot in range(3)] == [other.of(slot) for slot in range(3)]
    newest = max(plans, key=lambda op: op.at_us, default=None)
    if newest is not None:
        assert known.of(0) == newest.workers["w0"]
        restored = members("", "1", "", automatic=True)
        for op in known.dump():
            restored.planned(op)
        assert [restored.of(slot) for slot in range(3)] == [known.of(slot) for slot in range(3)]


def test_placements_are_counted_by_where_they_belong_and_where_they_went() -> None:
    known = members("0", "1", "")
    for length, slot in ((100, 0), (100, 1), (100, 2), (100_000, 0), (100_000, 0)):
        known.count(length, slot)
    assert known.placed == {(0, 0): 1, (0, 1): 1, (0, ANY_BUCKET): 1, (1, 0): 2}
