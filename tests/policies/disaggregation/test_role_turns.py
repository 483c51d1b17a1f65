"""Turns of workers while leaders and workers die: the fold, the plan and time, without the shell."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetState, Forget, OffloadPlan, Op, ServiceModel, WorkerPut
from policies.disaggregation.optimum import service_curve
from policies.disaggregation.role_plan import (
    TURNING_LABEL,
    RoleDemand,
    RoleMember,
    RoleRules,
    RoleVerdict,
    StageLoad,
    live_lengths,
    plan_roles,
)
from policies.disaggregation.role_turns import STUCK_S, RoleStep, role_taken, turn_roles
from policies.estimates.length_histogram import LengthHistogram
from policies.fleet.roles import Switched

START_US = 10**15
SECOND = 1_000_000
RULES = RoleRules(mode="apply", dwell_s_min=100.0, drain_s_max=60.0, reversal_s=1000.0)
LOOK_S = 10
ALL = 99

SHORT, LONG = {2_000: 400}, {2_000: 50, 60_000: 300}
"""Decode is the bottleneck of the first, prefill of the second."""


def demand(lengths: Mapping[int, int], load: StageLoad) -> RoleDemand:
    told = LengthHistogram()
    for tokens, requests in lengths.items():
        for _ in range(requests):
            told.add(START_US, tokens, 0)
    bins, _ = live_lengths(*told.sums(START_US)[:2])
    prefill_s = service_curve(ServiceModel(0.2, 1e-4, 1e5), np.array([1.0]), np.array([0.0]))
    return RoleDemand(bins, {"default": prefill_s}, {"default": 0.8}, load=load)


DEMANDS = [demand(lengths, StageLoad(1.0, 0.0, 1.0)) for lengths in (SHORT, LONG)]


class World:
    """Convertible workers behind a log, and their events; a leader looks every ten seconds."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.fleet = FleetState()
        self.now_us = START_US
        self.inflight: Counter[str] = Counter()
        self.ill: set[str] = set()
        self.endless: set[str] = set()
        self.away: set[str] = set()
        self.engines: dict[str, str] = {}
        self.demand = DEMANDS[1]
        self.begun_us: list[int] = []
        self.told: list[tuple[str, str]] = []
        for number in range(prefill + decode):
            worker = f"w{number}:80"
            self.engines[worker] = "prefill" if number < prefill else "decode"
            self.fleet.apply(WorkerPut(worker, 1, "static", f"http://{worker}", self.engines[worker]))

    def members(self) -> list[RoleMember]:
        return [
            RoleMember(
                worker,
                well=worker.worker_id not in self.ill,
                convertible=True,
                inflight_requests=self.inflight[worker.worker_id],
            )
            for worker in self.fleet.workers()
        ]

    def member(self, worker_id: str) -> RoleMember:
        return next(one for one in self.members() if one.worker_id == worker_id)

    def roles(self) -> Counter[str]:
        return Counter(one.worker.role for one in self.members() if one.serves)

    def turning(self) -> list[str]:
        return [one.worker_id for one in self.members() if one.turning]

    def verdict(self, rules: RoleRules = RULES) -> RoleVerdict:
        return plan_roles(self.demand, self.members(), self.fleet.offload_plan, self.now_us, rules)

    def step(self, replica: str = "r1", rules: RoleRules = RULES) -> RoleStep:
        return turn_roles(
            self.verdict(rules), self.members(), self.fleet.offload_plan, replica, self.now_us, rules
        )

    def say(self, ops: tuple[Op, ...], most: int = ALL) -> None:
        """Put the first so many into the log."""
        for op in ops[:most]:
            if isinstance(op, WorkerPut) and op.labels.get(TURNING_LABEL):
                self.begun_us.append(self.now_us)
            self.fleet.apply(op)

    def look(self, replica: str = "r1", most: int = ALL, rules: RoleRules = RULES) -> RoleStep:
        """A leader looks; it may die after so many operations."""
        step = self.step(replica, rules)
        self.say(step.ops, most)
        self.told += step.events
        for worker_id, role in step.free:
            outcome = Switched.LATER if worker_id in self.away else Switched.DONE
            if outcome is Switched.DONE:
                self.engines[worker_id] = role
            if most == ALL:
                self.ended(worker_id, role, outcome, replica)
        return step

    def ended(self, worker_id: str, role: str, outcome: Switched, replica: str = "r1") -> tuple[Op, ...]:
        """Publish the outcome of an engine's switch."""
        member, known = self.member(worker_id), self.fleet.offload_plan
        last = role_taken(member, role, outcome, known, replica, self.now_us)
        self.say(last.ops)
        self.told += last.events
        return last.ops

    def passes(self, seconds: int = LOOK_S) -> None:
        """Let time pass; draining workers become idle, but for those whose answers never end."""
        self.now_us += seconds * SECOND
        for worker in self.fleet.workers():
            if worker.draining and worker.worker_id not in self.endless:
                self.inflight[worker.worker_id] = 0

    def looks(self, count: int) -> None:
        for _ in range(count):
            self.look()
            self.passes()


def put_of(step: RoleStep) -> WorkerPut:
    (put,) = [op for op in step.ops if isinstance(op, WorkerPut)]
    return put


def test_a_worker_drains_turns_when_it_is_free_and_serves_again() -> None:
    world = World(2, 6)
    world.inflight["w2:80"] = 5
    world.inflight.update({f"w{number}:80": 9 for number in range(3, 8)})
    began = put_of(world.look())
    assert (began.worker, began.role, began.draining) == ("w2:80", "decode", True)
    assert began.labels == {TURNING_LABEL: "prefill"}
    assert world.look().free == ()
    assert world.roles() == {"prefill": 2, "decode": 5}
    world.passes()
    assert world.look().free == (("w2:80", "prefill"),)
    worker = world.member("w2:80").worker
    assert (worker.role, worker.draining, worker.labels) == ("prefill", False, {})
    assert world.told == [("w2:80", "drains to prefill"), ("w2:80", "is to prefill now")]
    plan = world.fleet.offload_plan
    assert plan is not None
    assert (plan.turned, plan.changed_us) == ({"w2:80": "prefill"}, world.now_us)


def test_what_its_engine_forgot_is_forgotten_before_it_serves_again() -> None:
    world = World(2, 6)
    world.look()
    (worker_id,) = world.turning()
    kept, emptied = (
        role_taken(world.member(worker_id), "prefill", outcome, None, "r1", world.now_us).ops
        for outcome in (Switched.DONE, Switched.EMPTIED)
    )
    assert [type(op) for op in kept] == [OffloadPlan, WorkerPut]
    assert [type(op) for op in emptied] == [OffloadPlan, Forget, WorkerPut]


def test_the_next_leader_goes_on_where_the_last_one_died() -> None:
    """Once after the plan alone, which begins nothing, and once between the switch and its word."""
    world = World(2, 6)
    world.look("r1", most=1)
    assert not world.turning()
    assert world.fleet.offload_plan is not None
    assert not world.look("r2").free, "it cannot know how far the last one came, and keeps the dwell"
    world.passes(100)
    world.look("r2")
    (worker_id,) = world.turning()
    world.passes()
    free = world.step("r2").free
    world.engines[worker_id] = "prefill"
    assert world.look("r3").free == free == ((worker_id, "prefill"),)
    assert world.member(worker_id).worker.role == world.engines[worker_id] == "prefill"


def test_who_never_gets_free_stays_what_it_was_and_another_turns_later() -> None:
    world = World(2, 6)
    stuck = world.verdict().roles
    (worker_id,) = stuck
    world.inflight[worker_id] = 1
    world.endless.add(worker_id)
    world.inflight.update({f"w{number}:80": 2 for number in range(3, 8)})
    world.looks(8)
    worker = world.member(worker_id).worker
    assert (worker.role, worker.draining, worker.labels) == ("decode", False, {})
    assert world.told[-1] == (worker_id, "does not turn to prefill: it did not get free in 60 s")
    plan = world.fleet.offload_plan
    assert plan is not None
    assert list(plan.stuck_us) == [worker_id]
    world.looks(12)
    assert len(world.begun_us) == 2
    assert world.member(worker_id).worker.role == "decode"
    world.demand = replace(world.demand, load=StageLoad(0.0, 0.0, 0.0))
    world.passes(round(STUCK_S))
    world.look()
    plan = world.fleet.offload_plan
    assert plan is not None
    assert plan.stuck_us == {}


def test_who_falls_ill_while_it_drains_does_not_turn() -> None:
    world = World(2, 6)
    world.inflight.update({f"w{number}:80": 2 for number in range(8)})
    world.look()
    (worker_id,) = world.turning()
    world.ill.add(worker_id)
    world.look()
    assert world.told[-1] == (worker_id, "does not turn to prefill: it is unwell")
    assert not world.member(worker_id).worker.draining


def test_nobody_waits_for_one_that_fell_ill_when_its_engine_may_have_switched() -> None:
    """A leader that died may have switched it, so it serves as neither until its engine answers."""
    world = World(2, 6)
    world.look()
    (worker_id,) = world.turning()
    world.look(most=0)
    world.ill.add(worker_id)
    world.passes(200)
    world.look()
    assert len(world.turning()) == 2, "another one began"
    world.passes()
    world.looks(2)
    assert world.turning() == [worker_id]
    world.ill.clear()
    world.looks(2)
    assert not world.turning()
    assert world.member(worker_id).worker.role == world.engines[worker_id] == "decode"


def test_the_last_of_its_role_goes_back_by_way_of_its_engine() -> None:
    world = World(2, 2)
    world.look()
    (worker_id,) = world.turning()
    world.ill |= {"w2:80", "w3:80"} - {worker_id}
    assert world.look().free == ((worker_id, "decode"),)
    assert world.told[-1] == (worker_id, "is to decode now")
    assert world.roles()["decode"] == 1


def test_an_engine_that_does_not_answer_is_asked_again_until_it_is_late() -> None:
    world = World(2, 6)
    world.look()
    (worker_id,) = world.turning()
    world.away.add(worker_id)
    world.looks(5)
    assert world.turning() == [worker_id]
    world.looks(3)
    assert world.look().free == ((worker_id, "decode"),), "too late: it is asked to stay what it was"
    world.away.clear()
    world.look()
    assert world.member(worker_id).worker.role == world.engines[worker_id] == "decode"
    plan = world.fleet.offload_plan
    assert plan is not None
    assert worker_id in plan.stuck_us


def test_an_engine_that_refuses_serves_on_and_one_that_broke_does_not() -> None:
    for outcome, draining in ((Switched.REFUSED, False), (Switched.BROKEN, True)):
        world = World(2, 6)
        world.look()
        (worker_id,) = world.turning()
        world.ended(worker_id, "prefill", outcome)
        worker = world.member(worker_id).worker
        assert (worker.role, worker.draining, worker.labels) == ("decode", draining, {})
        plan = world.fleet.offload_plan
        assert plan is not None
        assert worker_id in plan.stuck_us
        assert not world.ended(worker_id, "prefill", Switched.LATER)


def test_an_operator_who_takes_a_worker_back_has_the_last_word() -> None:
    world = World(2, 6)
    world.look()
    (worker_id,) = world.turning()
    known = world.member(worker_id).worker
    world.passes()
    world.say((WorkerPut(worker_id, world.now_us, "admin", known.url, known.role, labels=known.labels),))
    step = world.look()
    assert (step.free, step.events) == ((), ((worker_id, "it was taken back"),))
    worker = world.member(worker_id).worker
    assert (worker.role, worker.draining, worker.labels) == ("decode", False, {})
    world.passes(100)
    world.look()
    assert world.turning(), "it may be asked again"


def test_a_role_that_is_none_is_not_taken() -> None:
    world = World(2, 6)
    url = "http://w3:80"
    world.say((WorkerPut("w3:80", world.now_us, "admin", url, "decode", True, labels={TURNING_LABEL: "x"}),))
    world.look()
    assert world.member("w3:80").worker.labels == {}


def test_roles_that_may_no_longer_change_go_back() -> None:
    world = World(2, 6)
    world.look()
    off = replace(RULES, mode="recommend")
    world.look(rules=off)
    assert world.told[-1][1] == "is to decode now"
    assert world.roles() == {"prefill": 2, "decode": 6}
    world.passes(1000)
    step = world.look(rules=off)
    plan = world.fleet.offload_plan
    assert plan is not None
    assert plan.roles, "it is still recommended"
    assert [type(op) for op in step.ops] == [OffloadPlan]


def test_of_two_leaders_at_once_one_step_remains() -> None:
    world = World(2, 6)
    for number in (3, 5):
        url, labels = f"http://w{number}:80", {TURNING_LABEL: "prefill"}
        world.say((WorkerPut(f"w{number}:80", START_US + number, "r", url, "decode", True, labels=labels),))
    world.inflight.update({"w3:80": 1, "w5:80": 1})
    world.look()
    assert world.turning() == ["w3:80"]
    assert world.told == [("w5:80", "does not turn to prefill: too many turn at once")]


def test_what_turns_goes_on_while_too_little_comes_to_judge_by() -> None:
    world = World(2, 6)
    world.look()
    world.demand = demand({2_000: 3}, StageLoad(0.0, 0.0, 0.0))
    world.passes()
    world.look()
    assert not world.turning()
    assert world.roles() == {"prefill": 3, "decode": 5}


@pytest.mark.no_cover
def test_a_load_that_stays_is_settled_once_and_one_that_flaps_is_not_followed() -> None:
    """An hour each; the flapping one is all short and all long in turn, for 50 s each."""
    calm = World(2, 6)
    calm.looks(180)
    settled = calm.roles()
    changes = len(calm.begun_us)
    calm.looks(180)
    assert (calm.roles(), len(calm.begun_us)) == (settled, changes)
    assert 1 <= changes <= 6
    gaps = np.diff(calm.begun_us) / 1e6
    assert (gaps >= RULES.dwell_s_min).all()

    flapping = World(4, 4)
    slow = replace(RULES, dwell_s_min=600.0)
    for number in range(360):
        flapping.demand = DEMANDS[number // 5 % 2]
        flapping.look(rules=slow)
        flapping.passes()
    assert len(flapping.begun_us) <= 6, "a dwell apart at the most"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["look", "die", "ill", "well", "endless", "away", "short", "long", "busy", "wait", "drain"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_whatever_happens_no_stage_is_emptied_changes_keep_their_dwell_and_everything_ends(
    events: list[tuple[str, int]], prefill: int, decode: int, random: Random
) -> None:
    world = World(prefill, decode)
    for kind, number in events:
        worker_id = f"w{number % (prefill + decode)}:80"
        before = world.roles()
        match kind:
            case "look" | "die":
                world.look(f"r{number % 3}", most=number % 3 if kind == "die" else ALL)
                after = world.roles()
                for role in ("prefill", "decode"):
                    assert after[role] or not before[role], "the loop took the last one"
            case "ill":
                world.ill.add(worker_id)
            case "well":
                world.ill.discard(worker_id)
            case "endless":
                world.endless.add(worker_id)
            case "away":
                world.away ^= {worker_id}
            case "short" | "long":
                world.demand = DEMANDS[kind == "long"]
            case "busy":
                world.inflight[worker_id] += 1
            case "drain":
                member = world.member(worker_id)
                put = WorkerPut(
                    worker_id, world.now_us, "admin", "http://x", member.worker.role, number % 2 > 0
                )
                world.say((put,))
        world.passes(random.randint(1, 30))
    gaps = np.diff(sorted(world.begun_us)) / 1e6
    assert (gaps >= RULES.dwell_s_min).all()
    world.ill.clear()
    world.endless.clear()
    world.away.clear()
    for _ in range(60):
        world.look()
        world.passes(50)
    assert not world.turning()
    if not world.fleet.offload_plan or not world.fleet.offload_plan.stuck_us:
        assert not world.verdict().roles, "it has settled"
    for member in world.members():
        if not member.worker.draining:
            assert world.engines[member.worker_id] == member.worker.role
