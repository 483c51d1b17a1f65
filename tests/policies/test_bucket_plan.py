"""Where to cut and whom to move: towards less waiting, and not to and fro."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.bucket_members import BucketMembers
from policies.bucket_plan import (
    BucketDivision,
    BucketMember,
    BucketRules,
    BucketVerdict,
    LengthDemand,
    plan_buckets,
)
from policies.buckets import ANY_BUCKET, LengthBuckets
from policies.costs import PROFILES
from policies.length_histogram import MINUTE_US, LengthHistogram
from policies.ops import BucketPlan

MODEL = PROFILES["default"]
BOUNDS = LengthBuckets()
START_MIN = 1_000_000

SHORT, MIDDLE, LONG = (8_000, 3_000), (120_000, 6_000), (500_000, 20_000)
"""Length, and what of it is not cached."""

Load = dict[tuple[int, int], float]
"""Requests per second of each kind."""

MIXED: Load = {SHORT: 10.0, MIDDLE: 2.0, LONG: 0.3}

STARVED: Load = {SHORT: 0.5, (250_000, 6_000): 6.0, LONG: 0.001}
"""Much for the middle bucket, which no bound an octave away takes from it but to give it to the next."""


def told(histogram: LengthHistogram, minute: int, load: Load) -> None:
    for (tokens, uncached), per_s in load.items():
        service_us = round(MODEL.service_s(uncached, tokens - uncached) * 1e6)
        for _ in range(round(60 * per_s)):
            histogram.add((START_MIN + minute) * MINUTE_US, tokens, service_us)


def demand_of(histogram: LengthHistogram, minute: int) -> LengthDemand:
    return LengthDemand(*histogram.totals((START_MIN + minute) * MINUTE_US), MODEL)


def demand(load: Load, minutes: int = 15) -> LengthDemand:
    histogram = LengthHistogram()
    for minute in range(minutes):
        told(histogram, minute, load)
    return demand_of(histogram, minutes)


def new(count: int) -> list[BucketMember]:
    return [BucketMember(f"w{number}", ANY_BUCKET) for number in range(count)]


def settled(*numbers: int, held: Iterable[float] = (), pinned: int = 0) -> list[BucketMember]:
    tokens = [*held, *[0.0] * len(numbers)]
    return [
        BucketMember(f"w{place}", number, place < pinned, tokens[place])
        for place, number in enumerate(numbers)
    ]


def asked(
    load: LengthDemand,
    members: list[BucketMember],
    *history: BucketPlan,
    now_us: int = 10**15,
    bounds: LengthBuckets = BOUNDS,
    absent: dict[str, int] | None = None,
) -> BucketVerdict:
    return plan_buckets(load, bounds, members, history, replica="r1", now_us=now_us, absent=absent or {})


def past(members: list[BucketMember], at_us: int = 0, bounds: LengthBuckets = BOUNDS) -> BucketPlan:
    return BucketPlan(at_us, "r1", bounds.tokens_max, {one.worker_id: one.bucket for one in members})


def sizes(verdict: BucketVerdict) -> list[int]:
    assert verdict.plan is not None
    counts = Counter(verdict.plan.workers.values())
    return [counts[number] for number in range(len(BOUNDS))]


def test_short_prompts_wait_less_where_no_long_ones_are() -> None:
    load = demand(MIXED)
    divided = load.cost_s(BucketDivision(BOUNDS.tokens_max, (5, 5, 6)))
    together = load.cost_s(BucketDivision((1 << 20,), (16,)))
    assert 0 < divided < together
    assert load.cost_s(BucketDivision(BOUNDS.tokens_max, (16, 0, 0))) == float("inf")


@given(st.integers(1, 30), st.integers(1, 5))
def test_a_worker_more_never_makes_a_bucket_slower(workers: int, more: int) -> None:
    load = demand(MIXED, minutes=1)
    fewer, many = (load.cost_s(BucketDivision((1 << 20,), (count,))) for count in (workers, workers + more))
    assert many <= fewer


def test_nothing_is_divided_on_little_evidence_or_among_too_few() -> None:
    few = asked(demand({SHORT: 0.1}), new(8))
    assert (few.plan, few.reason) == (None, "90 requests in the window are too few to judge by")
    lonely = asked(demand(MIXED), new(2))
    assert (lonely.plan, lonely.reason) == (None, "2 workers cannot be divided into 3 buckets")


def test_the_first_plan_divides_everybody_by_the_work_and_moves_nobody() -> None:
    load = demand(MIXED)
    verdict = asked(load, new(16))
    assert verdict.plan is not None
    assert (sum(sizes(verdict)), min(sizes(verdict)) >= 1, verdict.plan.moved) == (16, True, {})
    assert verdict.best_cost_s <= load.cost_s(BucketDivision(BOUNDS.tokens_max, (6, 5, 5)))
    assert verdict.plan.tokens_max[-1] == BOUNDS.tokens_max[-1]
    mostly_short = sizes(asked(demand({SHORT: 60.0, MIDDLE: 0.5, LONG: 0.02}), new(16)))
    mostly_long = sizes(asked(demand({SHORT: 1.0, MIDDLE: 0.5, LONG: 1.0}), new(16)))
    assert mostly_short[0] > mostly_long[0]
    assert mostly_short[2] < mostly_long[2]


def test_what_is_good_enough_stays() -> None:
    first = asked(demand(MIXED), new(16))
    assert first.plan is not None
    members = [BucketMember(worker, number) for worker, number in first.plan.workers.items()]
    verdict = asked(demand(MIXED), members, past(members), bounds=LengthBuckets(first.plan.tokens_max))
    assert (verdict.plan, verdict.reason) == (None, "no change saves enough")
    assert verdict.gain_ratio < verdict.needed_ratio == 0.1


def test_one_step_at_a_time_is_taken_where_it_saves_most() -> None:
    """The long ones have one worker for the work of several, and the short ones eleven."""
    members = settled(*[0] * 11, 1, 1, 1, 1, 2, held=range(16))
    verdict = asked(demand(MIXED), members, past(members))
    assert verdict.plan is not None
    assert verdict.gain_ratio > 0.1
    changed = verdict.plan.tokens_max != BOUNDS.tokens_max
    assert changed or len(verdict.plan.moved) == 1
    assert sum(sizes(verdict)) == 16


def test_who_holds_least_moves() -> None:
    members = settled(0, 0, 0, 1, 2, held=(500.0, 100.0, 900.0))
    starved = demand(STARVED)
    verdict = asked(starved, members, past(members))
    assert verdict.plan is not None
    assert verdict.plan.moved == {"w1": (0, 1)}
    assert verdict.plan.reason.startswith("1 from 0-64K to 64K-256K: ")


def test_labelled_workers_stay_where_their_label_says() -> None:
    members = settled(0, 0, 0, 1, 2, pinned=5)
    starved = demand(STARVED)
    verdict = asked(starved, members, past(members))
    assert verdict.plan is None or not verdict.plan.moved
    mixed = [*settled(0, 1, pinned=2), *[BucketMember(f"n{number}", ANY_BUCKET) for number in range(6)]]
    first = asked(demand(MIXED), mixed)
    assert first.plan is not None
    assert (first.plan.workers["w0"], first.plan.workers["w1"]) == (0, 1)


def test_nothing_changes_for_a_while_after_a_change() -> None:
    members = settled(*[0] * 11, 1, 1, 1, 1, 2)
    history = past(members, at_us=10**15 - 60_000_000)
    verdict = asked(demand(MIXED), members, history)
    assert (verdict.plan, verdict.wait_s, verdict.reason) == (None, 60.0, "the last change is 60 s old")
    assert verdict.best is not None
    assert asked(demand(MIXED), members, history, now_us=10**15 + 60_000_000).plan is not None


def test_undoing_a_late_change_must_save_twice_as_much() -> None:
    members = settled(0, 0, 0, 1, 2)
    starved = demand(STARVED)
    before = past(members, at_us=10**15 - 10**10)
    came = BucketPlan(10**15 - 10**9, "r1", BOUNDS.tokens_max, before.workers, {"w0": (1, 0)})
    assert asked(starved, members, before, came).needed_ratio == 0.2
    assert asked(starved, members, before, before).needed_ratio == 0.1
    hours_later = asked(starved, members, before, came, now_us=came.at_us + round(3_601e6))
    assert hours_later.needed_ratio == 0.1


def test_new_workers_get_a_bucket_at_once_and_nobody_moves_for_them() -> None:
    members = [*settled(0, 0, 1, 2), BucketMember("new", ANY_BUCKET)]
    verdict = asked(demand(MIXED), members, past(members, at_us=10**15 - 1))
    assert verdict.plan is not None
    assert verdict.plan.reason.startswith("new workers: ")
    assert (verdict.plan.moved, set(verdict.plan.workers)) == ({}, {"w0", "w1", "w2", "w3", "new"})


def test_a_bucket_that_lost_its_last_worker_gets_another_at_once() -> None:
    members = settled(0, 0, 0, 1, held=(3.0, 1.0, 2.0))
    verdict = asked(demand(MIXED), members, past(members, at_us=10**15 - 1), absent={"gone": 2})
    assert verdict.plan is not None
    assert verdict.plan.moved == {"w1": (0, 2)}
    assert verdict.plan.workers["gone"] == 2, "it keeps its bucket for when it returns"


def test_bounds_between_rows_are_moved_to_rows() -> None:
    bounds = LengthBuckets((100_000, 1_048_576))
    members = settled(0, 0, 0, 1)
    verdict = asked(
        demand({SHORT: 1.0, (90_000, 20_000): 2.0}), members, past(members, bounds=bounds), bounds=bounds
    )
    assert verdict.best is not None
    assert verdict.best.tokens_max[-1] == 1_048_576


@pytest.mark.parametrize("period_min", [2, 5, 8])
def test_a_load_that_flaps_does_not_flap_the_plan(period_min: int) -> None:
    """Four hours of all short, all long, all short ...: the window has both, so the division settles."""
    late, moves = _changes_of(
        lambda minute: {SHORT: 24.0} if minute // period_min % 2 else {LONG: 0.8, MIDDLE: 2.0}
    )
    assert late <= 2
    assert moves <= 40


def test_a_load_that_changes_for_good_is_followed_and_then_left_alone() -> None:
    late, moves = _changes_of(
        lambda minute: {SHORT: 24.0, MIDDLE: 0.3} if minute < 60 else {LONG: 0.8, MIDDLE: 2.0}
    )
    assert late == 0
    assert 0 < moves < 40


def _changes_of(load_at) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """Run automatic buckets for four hours: changes in the last of them, and workers moved in all."""
    histogram, known = LengthHistogram(), BucketMembers(BOUNDS, automatic=True)
    names = [f"w{number}" for number in range(16)]
    for slot, name in enumerate(names):
        known.put(slot, name, "")
    plans: list[BucketPlan] = []
    for minute in range(240):
        told(histogram, minute, load_at(minute))
        members = [BucketMember(name, known.of(slot)) for slot, name in enumerate(names)]
        assert known.bounds is not None
        verdict = plan_buckets(
            demand_of(histogram, minute + 1),
            known.bounds,
            members,
            known.plans,
            replica="r1",
            now_us=(START_MIN + minute + 1) * MINUTE_US,
            rules=BucketRules(requests_min=100),
        )
        if verdict.plan is not None:
            assert known.planned(verdict.plan)
            plans.append(verdict.plan)
    late = sum(plan.at_us > (START_MIN + 180) * MINUTE_US for plan in plans)
    return late, sum(len(plan.moved) for plan in plans)
