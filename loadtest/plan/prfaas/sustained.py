"""The highest rate that a fleet sustains, by bisection of simulations.

A rate is *sustained* if at least 99 % of the requests are answered and nine of ten get their first token
within 15 s. Prefill alone takes H20 up to 20 s, 9.7 s at the 90th percentile, so the homogeneous fleet has 5
s for its queues; rates beyond capacity break that soon, since requests keep coming for half an hour.

All fleets are bisected side by side, with the same requests by seed at every rate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.plan.prfaas.fleets import Contender
from loadtest.plan.prfaas.trials import Figures, config_of
from loadtest.simulator.parallel import Cell, Told, simulate_all
from loadtest.simulator.workload import Workload

COMPLETED_SHARE_MIN = 0.99
TTFT_P90_S_MAX = 15.0

Traffic = Callable[[float, int], Workload]
"""Makes what comes, from a rate (requests/s) and a seed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation of a contender at a rate."""

    contender: str
    rate_per_s: float
    seed: int
    figures: Figures

    @property
    def sustained(self) -> bool:
        """True if the fleet sustains the rate."""
        figures = self.figures
        return figures.completed_share >= COMPLETED_SHARE_MIN and figures.ttft_p90_s <= TTFT_P90_S_MAX


@dataclass(frozen=True, slots=True)
class Laboratory:
    """Place of trials; requests in the first ``warmup_s`` are in no figure."""

    traffic: Traffic
    warmup_s: float
    jobs: int
    told: Told = lambda _number, _done, _total: None

    def trials(self, asked: Sequence[tuple[Contender, float, int]]) -> list[Trial]:
        """Try fleets, each at a rate and with a seed."""
        cells = [
            Cell(self.traffic(rate, seed), config_of(contender, seed=seed, warmup_s=self.warmup_s))
            for contender, rate, seed in asked
        ]
        found: dict[int, Figures] = {}
        for number, result in simulate_all(cells, self.jobs, self.told):
            found[number] = Figures.of(result)
        return [
            Trial(contender.name, rate, seed, found[number])
            for number, (contender, rate, seed) in enumerate(asked)
        ]


def sustained(
    laboratory: Laboratory,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    bounds: Mapping[str, tuple[float, float]],
    rounds: int,
) -> Iterator[list[Trial]]:
    """Bisect for the highest rates, ``rounds`` times, and yield the trials of each round.

    ``bounds`` has for each fleet a rate that it sustains and one that it does not; they are not tried.
    """
    stretches = {(one.name, seed): bounds[one.name] for one in contenders for seed in seeds}
    for _ in range(rounds):
        asked = [(one, sum(stretches[one.name, seed]) / 2, seed) for one in contenders for seed in seeds]
        trials = laboratory.trials(asked)
        for trial in trials:
            low, high = stretches[trial.contender, trial.seed]
            rate = trial.rate_per_s
            stretches[trial.contender, trial.seed] = (rate, high) if trial.sustained else (low, rate)
        yield trials


def best_rates(trials: Sequence[Trial], contender: str) -> list[float]:
    """The highest sustained rate of a fleet for each seed, in the order of the seeds."""
    best: dict[int, float] = {}
    for trial in trials:
        if trial.contender == contender and trial.sustained:
            best[trial.seed] = max(best.get(trial.seed, 0.0), trial.rate_per_s)
    return [best[seed] for seed in sorted(best)]
