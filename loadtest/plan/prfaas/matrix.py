"""Search for cases in which ours is worse than one simple rule: kinds of traffic x fleets x seeds.

    cost of a trial     mean time to first token; who got no answer counts as the longest wait
    verdict             of the differences of cost on the same requests, one a seed: ours less the other's

Student's t at 95 % tells a difference from chance. Trials of seconds to a minute are written down as they
end, so an interrupted run resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec

from loadtest.lines import whole_lines
from loadtest.plan.prfaas.fleets import CONTENDERS, EVERYTHING, LOCAL
from loadtest.plan.prfaas.study import STORM
from loadtest.plan.prfaas.tables import Table
from loadtest.plan.prfaas.traffic import agents_workload, lognormal_workload
from loadtest.plan.prfaas.trials import LINK_BYTES_PER_S, QUEUE_TIMEOUT_S, Figures, config_of
from loadtest.simulator.parallel import Cell, Told, simulate_all
from loadtest.simulator.site_links import Weather
from loadtest.simulator.workload import Workload
from loadtest.student import mean_95

OURS = "ours"

NAIVE = "naive"

ALIKE = (LOCAL, EVERYTHING, CONTENDERS["static"], CONTENDERS[OURS])
"""The same workers in the same roles."""

FLEETS = (*ALIKE, CONTENDERS[NAIVE])
"""The last has eight workers that decode in place of five, and none that prefill locally."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of traffic by seed, on a share of the paper's link, with changes of its weather."""

    name: str
    workload: Callable[[int], Workload]
    link_ratio: float = 1.0
    weather: tuple[Weather, ...] = ()


def cases(requests: int, users: int) -> tuple[Case, ...]:
    """Cases to compare: ``requests`` of independent prompts, and ``users`` agents."""

    def prompts(rate_per_s: float, *, bursts: bool = False) -> Callable[[int], Workload]:
        return lambda seed: lognormal_workload(requests, rate_per_s, seed=seed, bursts=bursts)

    def agents(seed: int) -> Workload:
        return agents_workload(users, users + users // 4, seed=seed)

    return (
        Case("Poisson, 1.2/s", prompts(1.2)),
        Case("Poisson, 1.8/s", prompts(1.8)),
        Case("Poisson, 2.4/s", prompts(2.4)),
        Case("bursts, 1.8/s", prompts(1.8, bursts=True)),
        Case("link drops, 1.6/s", prompts(1.6), weather=STORM),
        Case("scarce link, 1.8/s", prompts(1.8), link_ratio=0.06),
        Case(f"{users} agents", agents),
        Case(f"{users} agents, scarce link", agents, link_ratio=0.06),
    )


class Trial(msgspec.Struct, frozen=True):
    """Result of one case, fleet and seed; ``cost_s`` is the mean time to first token of all requests."""

    case: str
    fleet: str
    seed: int
    cost_s: float
    figures: Figures


def run_matrix(
    asked: Sequence[Case], seeds: Sequence[int], warmup_s: float, jobs: int, kept: Path | None, told: Told
) -> list[Trial]:
    """Simulate missing trials of some cases and seeds, and add them to the file ``kept``, one a line.

    The first ``warmup_s`` are in no figure; ``told`` hears of the progress.
    """
    lines = [] if kept is None else whole_lines(kept)
    trials = [msgspec.json.decode(line, type=Trial) for line in lines]
    have = {(trial.case, trial.fleet, trial.seed) for trial in trials}
    missing = [
        (case, fleet, seed)
        for case in asked
        for seed in seeds
        for fleet in FLEETS
        if (case.name, fleet.name, seed) not in have
    ]
    cells = [
        Cell(
            case.workload(seed),
            config_of(
                fleet,
                seed=seed,
                warmup_s=warmup_s,
                weather=case.weather,
                link_bytes_per_s=case.link_ratio * LINK_BYTES_PER_S,
            ),
        )
        for case, fleet, seed in missing
    ]
    for number, result in simulate_all(cells, jobs, told):
        case, fleet, seed = missing[number]
        figures = Figures.of(result)
        done = figures.completed_share
        cost_s = (done * figures.ttft_mean_s if done else 0.0) + (1.0 - done) * QUEUE_TIMEOUT_S
        trials.append(Trial(case.name, fleet.name, seed, cost_s, figures))
        if kept is not None:
            with kept.open("ab") as file:
                file.write(msgspec.json.encode(trials[-1]) + b"\n")
    return trials


def matrix_table(trials: Sequence[Trial]) -> Table:
    """Costs of all fleets; ours relative to the best comparable fleet and to the naive one."""
    others = [fleet.name for fleet in ALIKE if fleet.name != OURS]
    rows = []
    for case in dict.fromkeys(trial.case for trial in trials):
        costs = _by_fleet(trials, case)
        best = min(others, key=lambda name: mean(costs[name].values()))
        row = [case, *(_seconds(costs[name]) for name in others), _seconds(costs[OURS])]
        for beside in (best, NAIVE):
            low_s, high_s = difference_s(costs[OURS], costs[beside])
            row += [f"{low_s:+.2f} to {high_s:+.2f}", verdict(low_s, high_s)]
        row.insert(-2, _seconds(costs[NAIVE]))
        rows.append(row)
    header = ("traffic", *others, OURS, "less the best", "verdict", NAIVE, "less naive", "verdict")
    return Table("Mean time to first token, s", header, rows)


def _seconds(costs: Mapping[int, float]) -> str:
    return f"{mean(costs.values()):.2f}"


def difference_s(ours: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float]:
    """The 95 % interval of the mean difference of two fleets' costs, by seed."""
    _, low_s, high_s = mean_95([ours[seed] - other[seed] for seed in ours])
    return low_s, high_s


def verdict(low_s: float, high_s: float) -> str:
    """Verdict on an interval of ours less the other's."""
    return "worse" if low_s > 0.0 else "better" if high_s < 0.0 else "as good"


def _by_fleet(trials: Sequence[Trial], case: str) -> dict[str, dict[int, float]]:
    """Costs of a case by fleet and seed, of seeds that all fleets have."""
    costs: dict[str, dict[int, float]] = {fleet.name: {} for fleet in FLEETS}
    for trial in trials:
        if trial.case == case:
            costs[trial.fleet][trial.seed] = trial.cost_s
    common = set.intersection(*map(set, costs.values()))
    return {name: {seed: of[seed] for seed in sorted(common)} for name, of in costs.items()}
