"""A question becomes a plan by way of policies first and memory afterwards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from fakes.planned import OURS, THEIRS, trial

from loadtest.engine.profiles import PROFILES
from loadtest.plan.candidate import Candidate
from loadtest.plan.division import Division
from loadtest.plan.objective import Prices, Slo
from loadtest.plan.outcome import Outcome
from loadtest.plan.planner import NoPlan, Question, make_plan
from loadtest.plan.search import Probe, Search
from loadtest.plan.steps import Step
from loadtest.plan.trial import Trial
from loadtest.simulator.generated import generate_agentic

WORKLOAD = generate_agentic(users=4, sessions=4).cut(60)

QUESTION = Question(
    engine=PROFILES["dense-70b"],
    slo=Slo(9.0),
    prices=Prices(25.0, 0.01, 0.001),
    contenders=[OURS.contender, THEIRS.contender],
    splits=[False],
    host_gib=[0.0, 500.0],
    pool_gib=[0.0, 4_000.0],
    workers_max=32,
    speed=1.0,
)
"""Host memory of a worker costs a fifth of it, the pool four dollars more."""


class Lab:
    """Simulates by a formula."""

    def __init__(self, needs: Callable[[Candidate], int]) -> None:
        self.needs = needs
        self.asked: list[Candidate] = []

    @property
    def simulations(self) -> int:
        return len(self.asked)

    def run(self, probes: Sequence[Probe]) -> Mapping[Probe, Trial]:
        self.asked += [probe.candidate for probe in probes]
        return {probe: self._trial(probe.candidate) for probe in probes}

    def steps(self, steps: Sequence[Step], search: Search) -> list[tuple[Step, Sequence[Trial]]]:
        return [(step, [self._trial(step.candidate)]) for step in steps]

    def _trial(self, candidate: Candidate) -> Trial:
        return trial(8.9 * self.needs(candidate) / candidate.workers)


def planned(lab: Lab, question: Question = QUESTION) -> Outcome:
    return make_plan(question, [WORKLOAD, WORKLOAD], lab, [])  # type: ignore[arg-type]


def test_memory_is_tried_under_the_best_policy_alone() -> None:
    """8 workers or, with host memory, 6: 6 x 30 dollars are less than 8 x 25."""

    def needs(candidate: Candidate) -> int:
        family = candidate.family
        if family.contender == THEIRS.contender:
            return 12
        return 6 if family.host_gib else 8

    lab = Lab(needs)
    outcome = planned(lab)

    assert outcome.plan == Candidate(replace(OURS, host_gib=500.0), 6)
    roomy = {one.family.contender for one in lab.asked if one.family.pool_gib}
    assert roomy == {OURS.contender}


def test_memory_that_saves_too_little_is_not_bought_but_shown() -> None:
    outcome = planned(Lab(lambda candidate: 7 if candidate.family.host_gib else 8))

    assert outcome.plan == Candidate(OURS, 8)
    assert "500 GiB of host memory each" in [step.name for step, _, _ in outcome.steps]


def test_if_nothing_holds_without_memory_everybody_is_tried_with_it() -> None:
    """Only the other policy, with a pool, holds at all."""

    def needs(candidate: Candidate) -> int:
        family = candidate.family
        return 5 if family.contender == THEIRS.contender and family.pool_gib else 1_000

    outcome = planned(Lab(needs))

    assert outcome.plan == Candidate(replace(THEIRS, host_gib=500.0, pool_gib=4_000.0), 5)


def test_no_pool_is_tried_without_host_memory() -> None:
    lab = Lab(lambda _: 4)
    planned(lab)

    assert all(one.family.host_gib for one in lab.asked if one.family.pool_gib)


def test_no_fleet_is_an_outcome_and_not_an_error() -> None:
    outcome = planned(Lab(lambda _: 1_000))

    assert outcome.plan is None
    assert outcome.steps == []
    assert outcome.tried


def test_the_curve_reaches_beyond_the_plan_and_ends_where_memory_is_worth_nothing() -> None:
    outcome = planned(Lab(lambda _: 8))
    curve = outcome.curve

    assert outcome.plan_tokens == 8 * curve.worker_tokens
    assert curve.sizes_tokens[-1] >= 16 * curve.worker_tokens
    assert curve.hit_ratios[-1] >= 0.999 * curve.infinite_hit_ratio


def test_a_limit_below_the_floor_is_no_question() -> None:
    lab = Lab(lambda _: 1)

    with pytest.raises(NoPlan, match="infinite caches and no queue"):
        planned(lab, replace(QUESTION, slo=Slo(0.001)))
    assert lab.asked == []


TWO = Division((65_536, 1_048_576), (1.0, 1.0), 100.0)
THREE = Division((65_536, 262_144, 1_048_576), (2.0, 1.0, 1.0), 100.0)
IN_BUCKETS = replace(QUESTION, divisions=[THREE, TWO], host_gib=[0.0], pool_gib=[0.0])


def dividing(workers: Mapping[Division | None, int]) -> Callable[[Candidate], int]:
    """Workers that are needed under our policy, by division; the other policy needs too many."""

    def needs(candidate: Candidate) -> int:
        family = candidate.family
        return workers[family.division] if family.contender == OURS.contender else 40

    return needs


def test_buckets_that_save_a_worker_are_kept() -> None:
    outcome = planned(Lab(dividing({None: 8, TWO: 6, THREE: 7})), IN_BUCKETS)

    assert outcome.plan == Candidate(replace(OURS, division=TWO), 6)
    assert outcome.whole == Candidate(OURS, 8)
    assert outcome.whole in outcome.found
    assert "no buckets" in [step.name for step, _, _ in outcome.steps]
    advice, three, two, labels, longest = [
        told.replace("\N{NO-BREAK SPACE}", " ") for told in outcome.buckets()
    ]
    assert advice == (
        "Divide the fleet into 0-64K, 64K-1M: 50.00 per hour less than expected_cost on 8 workers."
    )
    assert two == (
        "0-64K, 64K-1M: kept; without them expected_cost on 8 workers at 200.00 per hour is the cheapest. "
        "TTFT P90 by length on 6 workers, of the worst seed: 0-64K 4.45 s instead of 4.45 s; 256K-1M 26.7 s "
        "instead of 26.7 s."
    )
    assert three.startswith("0-64K, 64K-256K, 256K-1M: not kept; ")
    assert labels == (
        "Set placement.length_buckets to 64K 1M, and the label bucket on the workers that take requests: "
        "0-64K on 3, 64K-1M on 3."
    )
    assert "more than 1,048,576 tokens" in longest


def test_buckets_that_need_as_many_workers_are_not_kept_whatever_they_have_to_spare() -> None:
    """With 8 workers they halve the time; with 7 nothing holds."""

    class Roomy(Lab):
        def _trial(self, candidate: Candidate) -> Trial:
            if candidate.family.division is not None and candidate.workers >= 8:
                return trial(4.0)
            return super()._trial(candidate)

    outcome = planned(Roomy(dividing({None: 8, TWO: 9, THREE: 9})), IN_BUCKETS)

    assert outcome.plan == Candidate(OURS, 8)
    assert outcome.buckets()[0] == (
        "Do not divide the fleet: no division costs less than expected_cost on 8 workers."
    )
    assert outcome.buckets()[2].startswith(
        "0-64K, 64K-1M: not kept; expected_cost on 8 workers (0-64K: 4, 64K-1M: 4) holds it at 200.00 per "
        "hour, not below the plan."
    )


def test_buckets_that_need_more_workers_are_given_up_at_once() -> None:
    lab = Lab(dividing({None: 8, TWO: 30, THREE: 30}))
    outcome = planned(lab, IN_BUCKETS)

    assert outcome.plan == Candidate(OURS, 8)
    divided = [one for one in lab.asked if one.family.division is not None]
    assert {one.workers for one in divided} == {8}
    assert len(divided) == 2
    assert all("does not hold it" in told for told in outcome.buckets()[1:])


def test_only_the_best_fleet_is_divided() -> None:
    lab = Lab(dividing({None: 8, TWO: 9, THREE: 9}))
    planned(lab, IN_BUCKETS)

    assert {one.family.contender for one in lab.asked if one.family.division} == {OURS.contender}


def test_a_fleet_with_fewer_workers_than_buckets_is_not_divided() -> None:
    outcome = planned(Lab(dividing({None: 2, TWO: 3, THREE: 1})), IN_BUCKETS)

    assert outcome.plan == Candidate(OURS, 2)
    assert outcome.buckets()[1] == (
        "0-64K, 64K-256K, 256K-1M: not tried, it takes 3 workers to keep up and expected_cost on 2 workers "
        "has fewer."
    )


def test_buckets_are_told_of_only_where_somebody_asked() -> None:
    assert planned(Lab(lambda _: 4)).buckets() == []
    (one_range,) = planned(Lab(lambda _: 4), replace(IN_BUCKETS, divisions=[])).buckets()
    assert "all requests are in one range of lengths" in one_range
    (nothing,) = planned(Lab(lambda _: 1_000), IN_BUCKETS).buckets()
    assert "there is none" in nothing
