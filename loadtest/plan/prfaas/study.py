"""Simulations of PrfaaS's case study: sustained rates, waiting, bad links.

    sustained   each fleet's highest rate, on Poisson arrivals and on bursts      bisection
    curve       time to first token over a range of rates
    storm       85 % of that rate while the link loses its capacity, and comes back
    agents      sessions of coding agents, who reuse what they sent before        closed loop

Rates are requests per second. Seeds draw the same requests for every fleet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import mean

from loadtest.plan.prfaas.fleets import CONTENDERS, Contender
from loadtest.plan.prfaas.sustained import Laboratory, Trial, best_rates, sustained
from loadtest.plan.prfaas.traffic import agents_workload, lognormal_workload
from loadtest.plan.prfaas.trials import config_of
from loadtest.simulator.parallel import Cell, simulate_all
from loadtest.simulator.records import Result
from loadtest.simulator.site_links import Weather
from loadtest.simulator.workload import Workload

BOUNDS: Mapping[str, tuple[float, float]] = {
    "homogeneous": (1.5, 2.1),
    "naive": (1.9, 2.4),
    "static": (2.2, 3.0),
    "ours": (2.5, 3.1),
}
"""Bounds of the search for the highest rates: up to the closed form with mean times."""

BURST_RATIO = 0.7
"""With bursts they are looked for further down."""

ARRIVALS = (("Poisson", False), ("bursts", True))

STORM = (
    Weather(at_s=300.0, capacity_ratio=0.1),
    Weather(at_s=360.0),
    Weather(at_s=600.0, capacity_ratio=0.0),
    Weather(at_s=610.0),
    Weather(at_s=780.0, loss_ratio=0.3),
    Weather(at_s=840.0),
)
"""A tenth of the capacity for a minute, nothing for ten seconds, and a minute in which 30 % are lost."""

STORM_S = 1000.0
STORM_LOAD = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Amount of simulation.

    Attributes:
        requests: Requests of each trial; those of the first ``warmup_s`` are in no figure.
        rounds: Rounds of the bisection.
        users: Agents at work at the same time; each has two sessions on average.
    """

    requests: int
    warmup_s: float
    rounds: int
    curve_rates: tuple[float, ...]
    users: tuple[int, ...]


FULL = Size(
    requests=3_000,
    warmup_s=100.0,
    rounds=4,
    curve_rates=(1.2, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8, 2.9, 3.0),
    users=(100, 200),
)

QUICK = Size(
    requests=600,
    warmup_s=30.0,
    rounds=4,
    curve_rates=(1.2, 1.8, 2.4, 3.0),
    users=(32,),
)


@dataclass(slots=True)
class Study:
    """Results so far.

    Attributes:
        trials: Trials of the bisections, by kind of arrivals.
        curve: Trials at given rates.
        storm: Simulations with a bad link, by fleet.
        agents: Simulations of agents, by fleet and users.
    """

    size: Size
    seeds: Sequence[int]
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    curve: list[Trial] = field(default_factory=list)
    storm: dict[str, Result] = field(default_factory=dict)
    agents: dict[tuple[str, int], Result] = field(default_factory=dict)

    def best(self, arrivals: str, contender: str) -> list[float]:
        """The highest sustained rate of a fleet for each seed."""
        return best_rates(self.trials[arrivals], contender)

    def mean_best(self, arrivals: str, contender: str) -> float:
        """Their mean."""
        return mean(self.best(arrivals, contender) or [nan])


class Progress:
    """Listener to a study's progress; this one prints nothing."""

    def begins(self, what: str, simulations: int) -> None:
        """Announce a number of simulations."""

    def told(self, number: int, done: int, total: int) -> None:
        """A simulation has ``done`` of its requests behind it."""

    def ended(self, what: str) -> None:
        """They are over."""


def lognormal_study(study: Study, jobs: int, progress: Progress) -> None:
    """Simulate everything of the lognormal traffic into ``study``, ``jobs`` at a time."""
    size, seeds = study.size, study.seeds
    fleets = list(CONTENDERS.values())
    for arrivals, bursts in ARRIVALS:
        # Bursts are about an order, not about figures: one seed shows it.
        drawn = seeds[:1] if bursts else seeds
        laboratory = Laboratory(_lognormal(size, bursts=bursts), size.warmup_s, jobs, progress.told)
        found = study.trials[arrivals] = []
        what = f"highest rates, {arrivals}"
        progress.begins(what, size.rounds * len(fleets) * len(drawn))
        bounds = {name: (BURST_RATIO * low if bursts else low, high) for name, (low, high) in BOUNDS.items()}
        for trials in sustained(laboratory, fleets, drawn, bounds, size.rounds):
            found += trials
        progress.ended(what)
    laboratory = Laboratory(_lognormal(size, bursts=False), size.warmup_s, jobs, progress.told)
    asked = [(fleet, rate, seeds[0]) for fleet in fleets for rate in size.curve_rates if _shown(fleet, rate)]
    progress.begins("time to first token", len(asked))
    study.curve = laboratory.trials(asked)
    progress.ended("time to first token")
    study.storm = _storm(study, jobs, progress)


def agents_study(study: Study, jobs: int, progress: Progress) -> None:
    """Simulate agents; the arguments are those of `lognormal_study`."""
    size, seed = study.size, study.seeds[0]
    asked = [(fleet, users) for users in size.users for fleet in CONTENDERS.values()]
    cells = [
        Cell(
            agents_workload(users, 2 * users, seed=seed),
            config_of(fleet, seed=seed, warmup_s=size.warmup_s),
        )
        for fleet, users in asked
    ]
    progress.begins("agents", len(cells))
    found = dict(simulate_all(cells, jobs, progress.told))
    progress.ended("agents")
    study.agents = {(fleet.name, users): found[number] for number, (fleet, users) in enumerate(asked)}


def _lognormal(size: Size, *, bursts: bool) -> Callable[[float, int], Workload]:
    return lambda rate, seed: lognormal_workload(size.requests, rate, seed=seed, bursts=bursts)


def _shown(fleet: Contender, rate: float) -> bool:
    """True if a rate is not far beyond a fleet's, where times only show the length of the run."""
    return rate <= BOUNDS[fleet.name][1]


def _storm(study: Study, jobs: int, progress: Progress) -> dict[str, Result]:
    fleets = [fleet for fleet in CONTENDERS.values() if fleet.remote]
    cells = []
    for fleet in fleets:
        rate = STORM_LOAD * study.mean_best("Poisson", fleet.name)
        workload = lognormal_workload(round(STORM_S * rate), rate, seed=study.seeds[0])
        cells.append(Cell(workload, config_of(fleet, seed=study.seeds[0], warmup_s=0.0, weather=STORM)))
    progress.begins("bad link", len(cells))
    found = dict(simulate_all(cells, jobs, progress.told))
    progress.ended("bad link")
    return {fleet.name: found[number] for number, fleet in enumerate(fleets)}
