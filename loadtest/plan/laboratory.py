"""Trials of fleets: one simulation per fleet and seed, several at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from loadtest.plan.candidate import Candidate
from loadtest.plan.objective import Slo
from loadtest.plan.search import Probe, Search
from loadtest.plan.steps import Step
from loadtest.plan.trial import Trial
from loadtest.simulator.bars import Bars
from loadtest.simulator.parallel import Cell, simulate_all
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.words import seconds
from loadtest.simulator.workload import Workload


class Laboratory:
    """Runner of a plan's simulations, with progress; ``simulations`` counts them."""

    def __init__(
        self,
        console: Console,
        workloads: Sequence[Workload],
        base: SimulationConfig,
        slo: Slo,
        jobs: int,
    ) -> None:
        """Prepare simulations of ``base`` on one workload per seed, ``jobs`` at a time."""
        self.simulations = 0
        self._console = console
        self._workloads = workloads
        self._slo = slo
        self._jobs = jobs
        self._base = base

    def run(self, probes: Sequence[Probe]) -> Mapping[Probe, Trial]:
        """Simulate fleets."""
        cells = [self._cell(probe.candidate, probe.seed_number, 1.0) for probe in probes]
        labels = [f"{probe.candidate.label}{self._seed_name(probe.seed_number)}" for probe in probes]
        return dict(zip(probes, self._trials(cells, labels), strict=True))

    def steps(self, steps: Sequence[Step], search: Search) -> list[tuple[Step, Sequence[Trial]]]:
        """Results of all steps around a plan with every seed; simulates those to another load."""
        seeds = range(len(self._workloads))
        loads = [step for step in steps if step.load != 1.0]
        cells = [self._cell(step.candidate, number, step.load) for step in loads for number in seeds]
        labels = [f"{step.name}{self._seed_name(number)}" for step in loads for number in seeds]
        tried = iter(self._trials(cells, labels))
        return [
            (step, search.trials_of(step.candidate) if step.load == 1.0 else [next(tried) for _ in seeds])
            for step in steps
        ]

    def _seed_name(self, number: int) -> str:
        return f", seed {self._base.seed + number}" if number else ""

    def _cell(self, candidate: Candidate, seed_number: int, load: float) -> Cell:
        base = replace(self._base, seed=self._base.seed + seed_number, speed=self._base.speed * load)
        return Cell(self._workloads[seed_number], candidate.config(base))

    def _trials(self, cells: Sequence[Cell], labels: Sequence[str]) -> list[Trial]:
        trials: dict[int, Trial] = {}
        self.simulations += len(cells)
        with Bars(self._console, labels) as bars:
            for number, result in simulate_all(cells, min(self._jobs, len(cells)), bars.told):
                trials[number] = trial = Trial.of(result)
                holds = self._slo.margin(trial.figures) >= 0
                ttft_s = trial.figures["ttft_p90_s"]
                ttft = "-" if ttft_s is None else seconds(float(ttft_s))
                self._console.print(
                    f"{labels[number]}: TTFT P90 {ttft}, {'holds' if holds else 'does not hold'}",
                    markup=False,
                    highlight=False,
                    style="" if holds else "dim",
                )
        return [trials[number] for number in range(len(cells))]
