"""From a question to a plan: order and end of the simulations.

    bounds ──> every policy and split with the least memory ──> more memory under the best ──> its neighbours
           ──> the best divided into length buckets, if that is wanted ──> the neighbours of what is best then

Neighbours are one step away (`loadtest.plan.steps`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.engine.profiles import EngineProfile
from loadtest.plan.candidate import Candidate, Family
from loadtest.plan.charts import Curve
from loadtest.plan.division import Division
from loadtest.plan.dual_pools import DualPools, layers_of
from loadtest.plan.floor import decode_workers_guess, prefill_workers_min, ttft_p90_min_s
from loadtest.plan.laboratory import Laboratory
from loadtest.plan.objective import Prices, Slo
from loadtest.plan.outcome import Outcome
from loadtest.plan.search import Range, Search
from loadtest.plan.steps import Step, steps_around
from loadtest.plan.tier_value import tier_value
from loadtest.plan.trial import Trial
from loadtest.simulator.bounds import hit_curve, hit_ratio, infinite_hit_tokens
from loadtest.simulator.contenders import Contender
from loadtest.simulator.memory import Memory, device_tokens
from loadtest.simulator.tier_rules import PLAIN, TierRules
from loadtest.simulator.words import seconds
from loadtest.simulator.workload import Workload

CURVE_DOUBLINGS = (-3, 12)
"""Sizes of the curve: an eighth of a worker's device to at most 2,048 of them."""

CURVE_ENOUGH = 0.999
"""Share of the infinite cache's reuse at which a curve ends."""


class NoPlan(Exception):
    """It is clear before any simulation that no fleet will do; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Choices to consider.

    Attributes:
        contenders: Policies, at least one.
        splits: With and without workers of their own for decode.
        host_gib: Sizes of host memory, ascending, GiB per worker.
        pool_gib: Sizes of shared pools, ascending, GiB.
        speed: Divides the workload's starts and delays.
        divisions: Length buckets for the best fleet without any; None: not asked for.
        tier_rules: Rules of host memory and pools.
        layers: The model whose savings to tell; None: the engine's.
    """

    engine: EngineProfile
    slo: Slo
    prices: Prices
    contenders: Sequence[Contender]
    splits: Sequence[bool]
    host_gib: Sequence[float]
    pool_gib: Sequence[float]
    workers_max: int
    speed: float
    divisions: Sequence[Division] | None = None
    tier_rules: TierRules = PLAIN
    layers: DualPools | None = None

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Host memory and pools that go together: a pool is read into host memory, so it needs some."""
        return [(host, pool) for host in self.host_gib for pool in self.pool_gib if host or not pool]

    def families(self, sizes: tuple[float, float]) -> list[Family]:
        """All policies and splits with these sizes of memory."""
        return [
            Family(policy, split, *sizes, tier_rules=self.tier_rules)
            for split in self.splits
            for policy in self.contenders
        ]

    def steps_around(self, plan: Candidate) -> list[Step]:
        """Everything one step from a plan."""
        return steps_around(plan, self.contenders, self.host_gib, self.pool_gib)

    def neighbours(self, plan: Candidate) -> list[Candidate]:
        """Fleets that are one step from a plan, at the same load."""
        return [step.candidate for step in self.steps_around(plan) if step.load == 1.0]


def make_plan(
    question: Question, workloads: Sequence[Workload], lab: Laboratory, assumed: Sequence[str]
) -> Outcome:
    """Answer a question for workloads, one per seed, that must agree; ``assumed`` was assumed in making them.

    Raises:
        NoPlan: No fleet will do, which is clear at once.
        SimulationFailed: See `simulate_all`.
    """
    engine = question.engine
    floor = _Floor(workloads[0], question)
    search = Search(question.slo, question.prices, len(workloads), lab.run)
    found = _found(search, floor, question)
    steps: list[tuple[Step, Sequence[Trial]]] = []
    whole: Candidate | None = None
    capacity_tokens = 0
    if found:
        whole = search.settle(found[0], question.neighbours)
        divided = search.search(floor.ranges_divided(whole, question.divisions or ()))
        plan = whole
        if divided and search.is_leaner(divided[0], whole):
            plan = search.settle(divided[0], question.neighbours)
        around = question.steps_around(plan)
        steps = lab.steps(around, search)
        tried = {plan, *(step.candidate for step in around)}
        others = search.ranked(dict.fromkeys([whole, *divided, *found]))
        found = [plan, *(fleet for fleet in others if fleet not in tried)]
        capacity_tokens = plan.family.memory(engine).capacity_tokens(engine, plan.workers)
    return Outcome(
        workload=workloads[0],
        engine=engine,
        slo=question.slo,
        prices=question.prices,
        found=found,
        tried=[
            (probe.candidate, search.cost(probe.candidate), trial) for probe, trial in search.trials.items()
        ],
        steps=[(step, search.cost(step.candidate), trials) for step, trials in steps],
        simulations=lab.simulations,
        workers_min=floor.workers_min,
        divisions=question.divisions,
        whole=whole,
        curve=(curve := _curve(workloads[0], engine, capacity_tokens)),
        tiers=tier_value(
            workloads[0], engine, found[0].workers if found else floor.workers_min, curve.infinite_hit_ratio
        ),
        layers=question.layers or layers_of(engine),
        assumed=assumed,
    )


def _found(search: Search, floor: "_Floor", question: Question) -> list[Candidate]:
    """Policies and splits with the least memory first, then more memory under the best of them.

    If no fleet holds with the least memory, all of them are tried with more.
    """
    least, *more = question.sizes
    bare = question.families(least)
    found = search.search(floor.ranges(bare))
    best = [found[0].family] if found else bare
    roomy = [replace(one, host_gib=host, pool_gib=pool) for host, pool in more for one in best]
    return search.ranked([*found, *search.search(floor.ranges(roomy))])


class _Floor:
    """Start of each family's search; raises `NoPlan` if there is none."""

    def __init__(self, workload: Workload, question: Question) -> None:
        engine, slo = question.engine, question.slo
        floor_s = ttft_p90_min_s(workload, engine)
        if floor_s > slo.ttft_p90_s:
            raise NoPlan(
                f"with infinite caches and no queue the TTFT P90 on {engine.name} is {seconds(floor_s)}, "
                f"above the limit of {seconds(slo.ttft_p90_s)}; take a faster engine or a limit above it"
            )
        self._known: dict[Memory, int | None] = {}
        self._workload = workload
        self._engine = engine
        self._most = question.workers_max
        self._speed = question.speed
        self._decode = min(decode_workers_guess(workload, engine, slo, speed=self._speed), self._most)
        least = self._workers_min(question.families(question.sizes[-1])[0])
        if least is None:
            raise NoPlan(
                f"{self._most} workers could not even do the least possible prefill work; raise --workers-max"
            )
        self.workers_min = least

    def ranges(self, families: Sequence[Family]) -> dict[Family, tuple[Range, Range]]:
        """Numbers of workers, and of decode workers, of those families that have any."""
        ranges = {}
        for family in families:
            low = self._workers_min(family)
            if low is not None:
                first = low if family.split else max(low, self._decode)
                ranges[family] = Range(low, first, self._most), Range(1, self._decode, self._most)
        return ranges

    def ranges_divided(
        self, whole: Candidate, divisions: Sequence[Division]
    ) -> dict[Family, tuple[Range, Range]]:
        low = min(self._workers_min(whole.family) or whole.workers, whole.workers)
        decode = Range(1, max(whole.decode_workers, 1), self._most)
        families = [replace(whole.family, division=division) for division in divisions]
        return {
            family: (Range(max(low, family.workers_min), whole.workers, self._most), decode)
            for family in families
        }

    def _workers_min(self, family: Family) -> int | None:
        memory = family.memory(self._engine)
        if memory not in self._known:
            self._known[memory] = prefill_workers_min(
                self._workload, self._engine, self._most, memory=memory, speed=self._speed
            )
        return self._known[memory]


def _curve(workload: Workload, engine: EngineProfile, plan_tokens: int) -> Curve:
    requests = workload.in_order()
    worker_tokens = device_tokens(engine)
    block_tokens = workload.block_tokens
    infinite = hit_ratio(requests, infinite_hit_tokens(requests, block_tokens=block_tokens))
    sizes: list[int] = []
    ratios: list[float] = []
    for doubling in range(*CURVE_DOUBLINGS):
        sizes.append(int(worker_tokens * 2.0**doubling))
        ratios += hit_curve(requests, sizes[-1:], block_tokens=block_tokens)
        if ratios[-1] >= CURVE_ENOUGH * infinite and sizes[-1] >= 2 * plan_tokens:
            break
    return Curve(worker_tokens, sizes, ratios, infinite)
