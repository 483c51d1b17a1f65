"""Roles that workers should have, and the time at which a change is worth its cost."""

from dataclasses import replace
from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.disaggregation.optimum import Curve, service_curve
from policies.disaggregation.role_plan import (
    NEVER_TOKENS,
    SWITCHED_OFF,
    TURNING_LABEL,
    RoleDemand,
    RoleMember,
    RoleRules,
    RoleVerdict,
    StageLoad,
    live_lengths,
    plan_roles,
    size_of_step,
)
from policies.estimates.costs import ServiceModel
from policies.estimates.length_histogram import ROW_TOKENS_MAX, LengthHistogram
from policies.fleet.fleet import Worker
from policies.state.ops import OffloadPlan

NOW_US = 10**15
RULES = RoleRules(mode="apply")
BUSY = StageLoad(1.0, 0.0, 1.0)
SLOW, FAST = ServiceModel(0.6, 1e-4, 100_000.0), ServiceModel(0.4, 4e-5, 195_000.0)


def curve(model: ServiceModel) -> Curve:
    return service_curve(model, np.array([1.0]), np.array([0.0]))


def histogram(lengths: dict[int, int], cached_tokens: int = 0) -> LengthHistogram:
    told = LengthHistogram()
    for tokens, requests in lengths.items():
        for _ in range(requests):
            told.add(NOW_US, tokens, cached_tokens)
    return told


def demand(lengths: dict[int, int] | None = None, **more: object) -> RoleDemand:
    """A mean of 26K tokens: 3.5 s on a slow worker and 1.5 s on a fast one."""
    mixed = {2_000: 100, 8_000: 150, 20_000: 150, 60_000: 100, 110_000: 20}
    told, _ = live_lengths(*histogram(mixed if lengths is None else lengths).sums(NOW_US)[:2])
    parts = {
        "prefill_s": {"default": curve(SLOW), "fast": curve(FAST)},
        "decode_per_s": {"default": 0.8, "fast": 0.8},
        "link_bytes_per_s": {"far": 1e10},
        "kv_bytes": lambda tokens: 1e6 + 1_000 * tokens,
        "load": BUSY,
        **more,
    }
    return RoleDemand(told, **parts)  # type: ignore[arg-type]


def member(number: int, role: str, site: str = "", **more: object) -> RoleMember:
    parts = {"convertible": not site, "group": "g", **more}
    labels = {"worker_class": "fast"} if site else {}
    return RoleMember(Worker(f"w{number:03d}", number, "http://w", role, labels=labels), site, **parts)  # type: ignore[arg-type]


def fleet(prefill: int, decode: int, remote: int = 0, **more: object) -> list[RoleMember]:
    roles = ["prefill"] * prefill + ["decode"] * decode
    home = [member(number, role, **more) for number, role in enumerate(roles)]  # type: ignore[arg-type]
    return home + [member(900 + number, "prefill", "far") for number in range(remote)]


def turned(members: list[RoleMember], verdict: RoleVerdict) -> list[RoleMember]:
    return [
        replace(one, worker=replace(one.worker, role=verdict.roles.get(one.worker_id, one.worker.role)))
        for one in members
    ]


def changed(members: list[RoleMember], who: str, **more: object) -> list[RoleMember]:
    return [
        replace(one, worker=replace(one.worker, **more)) if one.worker_id == who else one  # type: ignore[arg-type]
        for one in members
    ]


def roles(members: list[RoleMember]) -> tuple[int, int]:
    home = [one.worker.role for one in members if one.home]
    return home.count("prefill"), home.count("decode")


def test_a_fleet_is_brought_to_the_best_split_one_worker_at_a_time_and_then_left_alone() -> None:
    members = fleet(2, 10)
    for _ in range(20):
        verdict = plan_roles(demand(), members, None, NOW_US, RULES)
        if not verdict.roles:
            break
        assert len(verdict.roles) == 1
        assert set(verdict.roles.values()) == {"prefill"}
        members = turned(members, verdict)
    assert verdict.best is not None
    best = (verdict.best.split.prefill_workers, verdict.best.split.decode_workers)
    assert roles(members) == best == (9, 3)
    assert verdict.reason == "the roles are the best that can be"


def test_remote_workers_leave_more_workers_to_decode() -> None:
    alone = plan_roles(demand(), fleet(9, 3), None, NOW_US, RULES)
    helped = plan_roles(demand(), fleet(9, 3, remote=4), None, NOW_US, RULES)
    assert alone.roles == {}
    assert set(helped.roles.values()) == {"decode"}
    assert helped.now is not None
    assert 0 < helped.now.threshold_tokens < inf
    assert helped.reason.startswith("1 should decode: ")


def test_without_a_link_nothing_is_remote() -> None:
    verdict = plan_roles(demand(link_bytes_per_s={}), fleet(9, 3, remote=4), None, NOW_US, RULES)
    plan = verdict.plan(None, "r1", NOW_US)
    assert plan is not None
    assert (plan.threshold_tokens, plan.remote_ratio) == (NEVER_TOKENS, 0.0)


def test_the_threshold_is_that_of_the_roles_as_they_are() -> None:
    """With little prefill at home more of it is better done elsewhere."""
    few, many = (
        plan_roles(demand(), fleet(prefill, 12 - prefill, remote=4), None, NOW_US, RULES).now
        for prefill in (2, 8)
    )
    assert few is not None
    assert many is not None
    assert few.threshold_tokens < many.threshold_tokens


@pytest.mark.parametrize(
    ("load", "turns"),
    [
        (StageLoad(0.9, 0.0, 0.3), True),
        (StageLoad(0.55, 0.0, 0.6), True),
        (StageLoad(0.55, 0.0, 0.9), False),
        (StageLoad(0.2, 0.0, 0.1), False),
        (StageLoad(0.2, 5.0, 0.4), True),
    ],
)
def test_roles_change_only_if_the_stage_that_is_short_looks_short(load: StageLoad, turns: bool) -> None:
    verdict = plan_roles(demand(load=load), fleet(2, 10), None, NOW_US, RULES)
    assert bool(verdict.roles) == turns
    if not turns:
        assert verdict.reason.startswith("the model asks for more prefill workers, but they are busy for ")


def test_decode_is_busy_with_requests_and_prefill_with_work_or_backlog() -> None:
    load = StageLoad(0.4, 0.7, 0.6)
    assert (load.busy_ratio("prefill"), load.busy_ratio("decode")) == (0.7, 0.6)
    assert StageLoad(0.4, 100.0, 0.0).busy_ratio("prefill") == 1.0


def test_nothing_changes_soon_after_a_change_or_while_one_is_under_way() -> None:
    late = OffloadPlan(NOW_US, "r1", changed_us=NOW_US - 100_000_000, turned={"w002": "prefill"})
    verdict = plan_roles(demand(), fleet(2, 10), late, NOW_US, RULES)
    assert (verdict.roles, verdict.wait_s, verdict.reason) == ({}, 500.0, "the last change is 100 s old")
    assert plan_roles(demand(), fleet(2, 10), late, NOW_US + 500_000_000, RULES).roles
    turning = changed(fleet(2, 10), "w005", draining=True, labels={TURNING_LABEL: "prefill"})
    verdict = plan_roles(demand(), turning, None, NOW_US, RULES)
    assert (verdict.roles, verdict.reason) == ({}, "workers are turning")


def test_a_small_gain_changes_nothing_and_undoing_a_late_change_must_gain_twice_as_much() -> None:
    members = fleet(8, 4)
    found = plan_roles(demand(), members, None, NOW_US, RULES)
    assert 0.05 < found.gain_ratio < 0.13
    assert found.roles
    strict = plan_roles(demand(), members, None, NOW_US, replace(RULES, gain_ratio_min=0.13))
    assert not strict.roles
    assert strict.reason.startswith("no change gains enough: 9 to prefill and 3 to decode would serve ")
    hour_us = 3_600_000_000
    undone = OffloadPlan(1, "r1", changed_us=NOW_US - hour_us // 2, turned={"w008": "decode"})
    same_way = msgspec.structs.replace(undone, turned={"w008": "prefill"})
    rules = replace(RULES, gain_ratio_min=found.gain_ratio * 0.6)
    assert not plan_roles(demand(), members, undone, NOW_US, rules).roles
    assert plan_roles(demand(), members, same_way, NOW_US, rules).roles
    assert plan_roles(demand(), members, undone, NOW_US + hour_us, rules).roles


def test_many_workers_turn_a_twentieth_at_a_time() -> None:
    members = fleet(20, 80)
    verdict = plan_roles(demand(), members, None, NOW_US, RULES)
    assert len(verdict.roles) == size_of_step(members) == 5


def test_who_is_nearly_free_and_holds_little_turns_first() -> None:
    members = fleet(2, 10)
    held = [replace(one, inflight_requests=3, held_tokens=9e5) for one in members]
    held[7] = replace(held[7], inflight_requests=1, held_tokens=5e5)
    held[4] = replace(held[4], inflight_requests=1, held_tokens=1e5)
    assert plan_roles(demand(), held, None, NOW_US, RULES).roles == {"w004": "prefill"}


def test_who_is_not_convertible_or_unwell_or_drained_or_was_stuck_does_not_turn() -> None:
    members = [
        replace(one, convertible=one.worker_id in {"w003", "w004", "w005", "w006"}) for one in fleet(2, 10)
    ]
    members[3] = replace(members[3], well=False)
    members = changed(members, "w004", draining=True)
    stuck = OffloadPlan(1, "r1", stuck_us={"w005": NOW_US})
    assert plan_roles(demand(), members, stuck, NOW_US, RULES).roles == {"w006": "prefill"}
    none = [replace(one, convertible=False) for one in members]
    verdict = plan_roles(demand(), none, None, NOW_US, RULES)
    assert (verdict.roles, verdict.reason) == ({}, "the roles are the best that can be")


def test_the_last_of_a_role_among_those_that_work_together_stays() -> None:
    """Two speak another protocol: neither may take the other's role."""
    others = [member(50, "prefill", group="h"), member(51, "decode", group="h")]
    members = [replace(one, convertible=False) for one in fleet(2, 10)] + others
    assert plan_roles(demand(), members, None, NOW_US, RULES).roles == {}
    members.append(member(52, "decode", group="h"))
    assert plan_roles(demand(), members, None, NOW_US, RULES).roles == {"w051": "prefill"}


def test_with_little_evidence_or_without_workers_nothing_is_said() -> None:
    few = plan_roles(demand({2_000: 150}), fleet(2, 10), None, NOW_US, RULES)
    assert (few.now, few.reason) == (None, "150 requests in the window are too few to judge by")
    assert few.plan(None, "r1", NOW_US) is None
    nobody = plan_roles(demand(), fleet(0, 0, remote=2), None, NOW_US, RULES)
    assert (nobody.now, nobody.reason) == (None, "no worker prefills or decodes here")
    assert plan_roles(demand({}), fleet(1, 1), None, NOW_US, replace(RULES, requests_min=0)).now is None


def test_a_plan_that_can_no_longer_be_judged_is_forgotten_and_what_changed_is_not() -> None:
    known = OffloadPlan(
        NOW_US, "r2", 7_000, 3, 5, {"w1": "decode"}, 0.2, "why", 3.0, 0.5, 1e9, 5, {"w1": "decode"}, {"w2": 4}
    )
    hour_us = 3_600_000_000
    for later_us, forgotten in ((hour_us, False), (hour_us + 1, True)):
        verdict = plan_roles(demand({}), fleet(2, 10), known, NOW_US + later_us, RULES)
        plan = verdict.plan(known, "r1", NOW_US + later_us)
        assert (plan is not None) == forgotten
    assert plan is not None
    assert plan == OffloadPlan(
        NOW_US + hour_us + 1,
        "r1",
        reason="0 requests in the window are too few to judge by",
        changed_us=5,
        turned={"w1": "decode"},
        stuck_us={"w2": 4},
    )
    assert verdict.plan(plan, "r1", NOW_US) is None, "it is said once"
    assert SWITCHED_OFF.plan(None, "r1", NOW_US) is None
    switched_off = SWITCHED_OFF.plan(known, "r1", NOW_US)
    assert switched_off is not None
    assert (switched_off.threshold_tokens, switched_off.reason) == (-1, "roles.mode is off")


def test_without_prices_of_decode_there_is_a_threshold_and_no_split() -> None:
    verdict = plan_roles(demand(decode_per_s={}), fleet(2, 10, remote=4), None, NOW_US, RULES)
    plan = verdict.plan(None, "r1", NOW_US)
    assert plan is not None
    assert 0 < plan.threshold_tokens < NEVER_TOKENS
    assert (plan.prefill, plan.decode, plan.roles) == (0, 0, {})
    assert plan.reason == "nothing is known of decode yet, so only the threshold is worked out"


def test_where_nobody_decodes_somebody_must() -> None:
    verdict = plan_roles(demand(), fleet(4, 0), None, NOW_US, RULES)
    assert set(verdict.roles.values()) == {"decode"}
    assert verdict.gain_ratio == 1000.0


def test_a_plan_keeps_what_the_log_remembers_of_changes() -> None:
    known = OffloadPlan(NOW_US + 5, "r2", 7, changed_us=3, turned={"w1": "decode"}, stuck_us={"w2": 4})
    verdict = plan_roles(demand(), fleet(2, 10), known, NOW_US, RULES)
    plan = verdict.plan(known, "r1", NOW_US)
    assert plan is not None
    assert (plan.at_us, plan.replica) == (NOW_US + 6, "r1")
    assert (plan.changed_us, plan.turned, plan.stuck_us) == (3, {"w1": "decode"}, {"w2": 4})
    assert (plan.prefill, plan.decode) == (9, 3)
    assert verdict.best is not None
    assert plan.requests_per_s * (1 + plan.gain_ratio) == pytest.approx(
        verdict.best.throughput.requests_per_s
    )


@given(st.dictionaries(st.integers(1, 1 << 24), st.integers(1, 9), min_size=1, max_size=8))
def test_bins_keep_what_the_histogram_counted(lengths: dict[int, int]) -> None:
    requests, cached, _ = histogram(lengths, cached_tokens=700).sums(NOW_US)
    told, behind = live_lengths(requests, cached)
    assert told.requests.sum() == pytest.approx(sum(lengths.values()))
    assert (np.diff(told.bounds) > 0).all()
    assert (told.tokens < told.bounds).all()
    assert set(ROW_TOKENS_MAX) <= set(told.bounds.tolist())
    assert set(behind.tolist()) <= {0.0, 700.0}
    assert (told.requests * behind).sum() == pytest.approx(700 * sum(lengths.values()))
