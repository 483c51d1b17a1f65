"""A plan is a function of its seed, and separates strikes that would hide each other."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.fault_injector import MISCHIEF
from loadtest.chaos.schedule import (
    CALM_S,
    RECOVERY_S,
    FaultKind,
    counted,
    printed,
    schedule,
)

KINDS = [each.kind for each in MISCHIEF]
SECONDS = st.floats(min_value=10, max_value=4000)
SEEDS = st.integers(min_value=0, max_value=1000)


@given(SECONDS, SEEDS)
def test_the_same_seed_plans_the_same_and_fits_into_the_time(seconds: float, seed: int) -> None:
    acts = schedule(KINDS, seconds, seed)
    assert acts == schedule(KINDS, seconds, seed)
    assert acts[0].strikes[0].at_s == CALM_S
    assert len(acts) == 1 or acts[-1].ends_s + RECOVERY_S <= seconds


@given(SEEDS)
def test_acts_follow_each_other_with_time_to_recover(seed: int) -> None:
    acts = schedule(KINDS, 1800, seed)
    for before, after in itertools.pairwise(acts):
        assert after.strikes[0].at_s >= before.ends_s + RECOVERY_S + CALM_S
        assert after.number == before.number + 1


@given(SEEDS)
def test_strikes_of_one_act_share_neither_a_group_nor_a_target_and_overlap(seed: int) -> None:
    groups = {kind.name: kind.group for kind in KINDS}
    for act in schedule(KINDS, 1800, seed):
        assert len({groups[strike.kind] for strike in act.strikes}) == len(act.strikes)
        assert len({strike.target for strike in act.strikes}) == len(act.strikes)
        assert list(act.strikes) == sorted(act.strikes, key=lambda strike: strike.at_s)


@pytest.mark.parametrize("seed", [1, 7])
def test_in_half_an_hour_every_kind_strikes_and_some_overlap(seed: int) -> None:
    acts = schedule(KINDS, 1800, seed)
    assert min(counted(acts, KINDS).values()) >= 1
    assert Counter(len(act.strikes) for act in acts).keys() >= {1, 2}


def test_another_seed_plans_something_else() -> None:
    assert schedule(KINDS, 300, 1) != schedule(KINDS, 300, 2)


def test_a_plan_is_printed_with_moment_kind_target_and_length() -> None:
    (line,) = printed(schedule([FaultKind("worker killed", "worker", ("e1",), (4.0, 4.0))], 10, 1))
    assert line.split() == ["act", "1", "3.0", "s", "worker", "killed", "e1", "for", "4.0", "s"]
