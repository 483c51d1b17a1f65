"""The search for the cheapest fleet: few simulations, each of a fleet that could still be it.

Each family (policy, split) looks for its fewest workers, an ordered row: from a first guess in growing steps
until the answer changes, then by halves; growing that changes nothing ends it. The result is simulated with
the other seeds, too, and takes one worker more until all agree. In the end a neighbour of the cheapest fleet
that costs no more and holds better takes its place.

    family A  ──asks──┐                     ┌── what it asked
    family B  ──asks──┼──> one batch of ────┼── what it asked      a family ends when it has found its
    family C  ──asks──┘    simulations      └── what it asked      fleet, or costs more than one found

A family is a generator that asks for simulations. Families move in step, so that the outcome does not depend
on which process is faster.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from loadtest.plan.candidate import Candidate, Family
from loadtest.plan.objective import Figures, Prices, Slo
from loadtest.plan.trial import Trial

FUTILE, GAIN = 4, 0.01
"""FUTILE times the workers for less than GAIN of the limit: more workers are no remedy."""

GROWTH = 1.5
"""A step of a search: to that many times the number, and at least to the next."""


AMPLE = 8
"""Factor on the decode workers of the arithmetic with which no prefill waits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A simulation to run: a fleet, and the number of the seed."""

    candidate: Candidate
    seed_number: int


Asking = Generator[Sequence[Probe], None, Candidate | None]
"""Asks for probes, and returns the fleet it ends at; None if there is none worth it."""

Run = Callable[[Sequence[Probe]], Mapping[Probe, Trial]]
"""Runs simulations."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers of workers to consider, and the first one to try."""

    low: int
    first: int
    high: int


class Search:
    """Search for the cheapest fleet that holds a service level; ``trials`` has all simulations so far."""

    def __init__(self, slo: Slo, prices: Prices, seeds: int, run: Run) -> None:
        """Prepare a search in which ``seeds`` must agree; ``run`` runs simulations."""
        self.trials: dict[Probe, Trial] = {}
        self._slo = slo
        self._prices = prices
        self._seeds = seeds
        self._run = run
        self._cost_max = inf

    def search(self, families: Mapping[Family, tuple[Range, Range]]) -> list[Candidate]:
        """Find the fewest workers of each family that may be the cheapest.

        ``families`` have numbers of workers that take requests and, if split, of those that only decode.
        Return fleets that hold the service level with all seeds, ranked.
        """
        found: list[Candidate] = []
        asking = [self._family(family, *ranges) for family, ranges in families.items()]
        while asking:
            asked: dict[Asking, Sequence[Probe]] = {}
            for family in asking:
                try:
                    asked[family] = next(family)
                except StopIteration as end:
                    if end.value is not None:
                        found.append(end.value)
                        self._cost_max = min(self._cost_max, self.cost(end.value))
            asking = list(asked)
            self.try_out(probe for probes in asked.values() for probe in probes)
        return self.ranked(found)

    def ranked(self, fleets: Iterable[Candidate]) -> list[Candidate]:
        """Fleets, the cheapest first; of equal cost the one with the greater margin first."""
        return sorted(fleets, key=self._rank)

    def try_out(self, probes: Iterable[Probe]) -> None:
        """Run those simulations that were not run before."""
        missing = dict.fromkeys(probe for probe in probes if probe not in self.trials)
        if missing:
            self.trials.update(self._run(list(missing)))

    def settle(self, plan: Candidate, neighbours: Callable[[Candidate], Sequence[Candidate]]) -> Candidate:
        """Move from a fleet that holds the service level to the best of its neighbours until none is better.

        The result costs no more and holds with all seeds; all its neighbours have been tried with all seeds.
        Later searches give up what costs more.
        """
        while True:
            around = neighbours(plan)
            self.try_out(Probe(one, 0) for one in around)
            # One seed is enough to see which fleet is no better.
            rivals = [one for one in around if self._holds(one) and self._rank(one) < self._rank(plan)]
            self.try_out(Probe(one, number) for one in rivals for number in range(self._seeds))
            best = min((plan, *filter(self._holds, rivals)), key=self._rank)
            if best == plan:
                self.try_out(Probe(one, number) for one in around for number in range(self._seeds))
                self._cost_max = min(self._cost_max, self.cost(plan))
                return plan
            plan = best

    def _holds(self, candidate: Candidate) -> bool:
        return self.margin(candidate) >= 0

    def _rank(self, candidate: Candidate) -> tuple[float, float]:
        """The cheaper the better; of equal cost the one with the greater margin."""
        return self.cost(candidate), -self.margin(candidate)

    def is_leaner(self, candidate: Candidate, other: Candidate) -> bool:
        """True if a fleet is cheaper than another one, or costs as much with fewer workers."""
        one, two = ((self.cost(fleet), fleet.workers + fleet.decode_workers) for fleet in (candidate, other))
        return one < two

    def cost(self, candidate: Candidate) -> float:
        """Cost of a fleet per hour."""
        return candidate.cost_per_hour(self._prices)

    def margin(self, candidate: Candidate) -> float:
        """The least margin over the seeds that were tried."""
        return min(self._slo.margin(trial.figures) for trial in self.trials_of(candidate))

    def trials_of(self, candidate: Candidate) -> list[Trial]:
        """Its trials, one per seed that was tried."""
        return [trial for probe, trial in self.trials.items() if probe.candidate == candidate]

    def _family(self, family: Family, workers: Range, decode: Range) -> Asking:
        if not family.split:
            least = yield from self._least(lambda count: Candidate(family, count), workers, self._slo.margin)
        else:
            # The two hardly touch: first the prefill workers behind ample decode, then the decode workers.
            ample = min(AMPLE * decode.first, decode.high)
            least = yield from self._least(
                lambda count: Candidate(family, count, ample),
                workers,
                self._slo.ttft_margin,
                lambda count: self.cost(Candidate(family, count, decode.low)),
            )
            if least is not None:
                prefill = least.workers
                least = yield from self._least(
                    lambda count: Candidate(family, prefill, count), decode, self._slo.tpot_margin
                )
        return None if least is None else (yield from self._agreed(least, workers, decode))

    def _least(
        self,
        make: Callable[[int], Candidate],
        among: Range,
        margin: Callable[[Figures], float],
        cost: Callable[[int], float] | None = None,
    ) -> Asking:
        """The least fleet of a row whose ``margin`` is not negative.

        ``make`` gives a fleet for one of the numbers ``among``; ``cost`` is the least that the outcome costs,
        by default the fleet's.
        """
        cost = cost or (lambda count: self.cost(make(count)))
        bad, good, count = among.low - 1, among.high + 1, among.first
        best, best_count = -inf, among.first
        while True:
            top = good
            while top > bad + 1 and cost(top - 1) > self._cost_max:
                top -= 1
            if top - bad <= 1:
                return make(good) if top == good <= among.high else None
            count = min(max(count, bad + 1), top - 1)
            probe = Probe(make(count), 0)
            yield [probe]
            reached = margin(self.trials[probe].figures)
            if reached >= 0:
                good = count
            else:
                bad = count
                if reached > best + GAIN:
                    best, best_count = reached, count
                elif good > among.high and count >= FUTILE * best_count:
                    return None
            if good > among.high:
                count = max(bad + 1, ceil(bad * GROWTH))
            elif bad < among.low:
                count = int(good / GROWTH)
            else:
                count = (bad + good) // 2

    def _agreed(self, candidate: Candidate, workers: Range, decode: Range) -> Asking:
        while candidate.workers <= workers.high and candidate.decode_workers <= decode.high:
            if self.cost(candidate) > self._cost_max:
                return None
            probes = [Probe(candidate, number) for number in range(self._seeds)]
            yield probes
            figures = [self.trials[probe].figures for probe in probes]
            if min(map(self._slo.margin, figures)) >= 0:
                return candidate
            late = not candidate.family.split or min(map(self._slo.ttft_margin, figures)) < 0
            candidate = Candidate(
                candidate.family, candidate.workers + late, candidate.decode_workers + (not late)
            )
        return None
