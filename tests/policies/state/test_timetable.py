"""Planned rates beside a list of them, asked moment by moment."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.state.timetable import Timetable

Plan = tuple[int, int, int]
SOON = 40

plans = st.lists(
    st.tuples(st.integers(0, SOON), st.integers(1, 15), st.integers(0, 5)).map(
        lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
    ),
    max_size=25,
)


def planned(drawn: list[Plan]) -> Timetable:
    timetable = Timetable()
    for start_us, end_us, rate in drawn:
        timetable.add(start_us, end_us, rate)
    return timetable


def rate_at(drawn: list[Plan], now_us: int) -> int:
    """The definition."""
    return sum(rate for start_us, end_us, rate in drawn if start_us <= now_us < end_us)


def assert_agrees(timetable: Timetable, drawn: list[Plan], from_us: int = 0) -> None:
    for now_us in range(from_us, 2 * SOON):
        assert timetable.at(now_us) == rate_at(drawn, now_us)


@given(plans)
def test_the_rate_of_every_moment_is_the_sum_of_what_is_planned_then(drawn: list[Plan]) -> None:
    timetable = planned(drawn)
    assert_agrees(timetable, drawn)
    assert timetable.at(-1) == 0


@given(plans, st.randoms(use_true_random=False), st.integers(0, 25))
def test_what_is_taken_away_leaves_no_trace(drawn: list[Plan], random: Random, kept: int) -> None:
    timetable = planned(drawn)
    removed = drawn[kept:]
    random.shuffle(removed)
    for start_us, end_us, rate in removed:
        timetable.add(start_us, end_us, -rate)
    assert_agrees(timetable, drawn[:kept])
    assert len(timetable) == len(planned(drawn[:kept]))
    if not kept:
        assert len(timetable) == 0


@given(plans, st.integers(0, SOON), st.integers(1, 30))
def test_the_peak_is_the_highest_rate_of_its_time(drawn: list[Plan], start_us: int, duration_us: int) -> None:
    rates = [rate_at(drawn, now_us) for now_us in range(start_us, start_us + duration_us)]
    assert planned(drawn).peak(start_us, start_us + duration_us) == max(rates)


@given(plans, plans.filter(bool), st.integers(1, 20))
def test_the_fullest_stretch_is_found_wherever_it_begins(
    drawn: list[Plan], added: list[Plan], width_us: int
) -> None:
    """Among those that see some of the added plans; steps are at whole times, so it begins at one."""
    begin = min(start_us for start_us, _, _ in added) - width_us
    end = max(end_us for _, end_us, _ in added)
    seen = [
        sum(rate_at(drawn + added, now_us) for now_us in range(from_us, from_us + width_us))
        for from_us in range(begin, end + 1)
    ]
    assert planned(drawn).most_within(width_us, added) * 1e6 == pytest.approx(max(seen))


@given(plans, st.integers(-1, SOON))
def test_changes_are_when_the_rate_is_not_what_it_was(drawn: list[Plan], from_us: int) -> None:
    changes = [
        now_us for now_us in range(from_us + 1, 80) if rate_at(drawn, now_us) != rate_at(drawn, now_us - 1)
    ]
    assert planned(drawn).changes(from_us).tolist() == changes


@given(plans, plans, st.integers(0, SOON), st.integers(0, 25))
def test_the_past_is_forgotten_and_does_not_come_back(
    before: list[Plan], after: list[Plan], floor_us: int, kept: int
) -> None:
    timetable = planned(before)
    timetable.forget(floor_us)
    timetable.forget(floor_us - 5)
    for start_us, end_us, rate in after:
        timetable.add(start_us, end_us, rate)
    for start_us, end_us, rate in before[kept:]:
        timetable.add(start_us, end_us, -rate)
    assert_agrees(timetable, before[:kept] + after, floor_us)
    assert timetable.at(floor_us - 1) == 0


def test_a_thousand_plans_that_overlap_make_two_thousand_steps_and_none_when_they_are_gone() -> None:
    drawn = [(number, 5_000 + 2 * number, 1 + number % 3) for number in range(1_000)]
    timetable = planned(drawn)
    assert len(timetable) == 2_000
    assert timetable.peak(0, 10_000) == sum(rate for _, _, rate in drawn)
    for start_us, end_us, rate in drawn:
        timetable.add(start_us, end_us, -rate)
    assert len(timetable) == 0
