"""A finished plan: its results, as tables and sentences for the terminal, the page and the document."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.plan.candidate import Candidate
from loadtest.plan.charts import Curve
from loadtest.plan.division import Division
from loadtest.plan.dual_pools import DualPools
from loadtest.plan.objective import Figures, Prices, Slo
from loadtest.plan.steps import Step
from loadtest.plan.tier_value import TierValue
from loadtest.plan.trial import LENGTHS, Trial
from loadtest.simulator.words import percent, seconds
from loadtest.simulator.workload import Workload
from policies import LengthBuckets

PAYS_RATIO = 1.05
"""Slowdown of a range of lengths from which on it is said to pay for the others."""

HEADINGS = ("cost/h", "TTFT P90", "TPOT P90", "margin", "hit rate", "busy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a search.

    Attributes:
        found: Fleets that hold the service level, the cheapest first.
        tried: Every simulation: the fleet, its cost per hour and its result.
        steps: One step from the cheapest each, its cost per hour and its result with each seed.
        workers_min: Fewer were not simulated, because of the least possible work.
        curve: Value of memory.
        tiers: Value of time and of room below the device.
        layers: Savings by the model's layers.
        assumed: Further assumptions.
        divisions: Length buckets to try; None if they were not asked for.
        whole: The cheapest fleet without buckets; None if there is none.
    """

    workload: Workload
    engine: EngineProfile
    slo: Slo
    prices: Prices
    found: Sequence[Candidate]
    tried: Sequence[tuple[Candidate, float, Trial]]
    steps: Sequence[tuple[Step, float, Sequence[Trial]]]
    simulations: int
    workers_min: int
    curve: Curve
    tiers: TierValue
    layers: DualPools
    assumed: Sequence[str]
    divisions: Sequence[Division] | None
    whole: Candidate | None

    @property
    def plan(self) -> Candidate | None:
        """The cheapest fleet; None if no fleet holds the service level."""
        return self.found[0] if self.found else None

    @property
    def plan_tokens(self) -> int | None:
        """Memory of the cheapest fleet's workers that take requests, in all tiers."""
        if self.plan is None:
            return None
        return self.plan.family.memory(self.engine).capacity_tokens(self.engine, self.plan.workers)

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        if self.plan is not None:
            return f"The plan: {self.plan.label}, for {self.slo}, at {self._cost(self.plan):,.2f} per hour"
        closest = max(self.tried, key=lambda one: self.slo.margin(one[2].figures))
        return (
            f"No fleet that was tried holds {self.slo}; the closest is {closest[0].label}, with a TTFT P90 "
            f"of {_seconds(closest[2].figures['ttft_p90_s'])}"
        )

    def trials_of(self, candidate: Candidate) -> list[Trial]:
        """All trials of a fleet."""
        return [trial for one, _, trial in self.tried if one == candidate]

    def fleet_rows(self) -> list[tuple[str, ...]]:
        """One row per fleet that holds the service level: its label and `HEADINGS`, of its worst seed."""
        return [
            (fleet.label, *self._row(self._cost(fleet), self._worst(self.trials_of(fleet))))
            for fleet in self.found
        ]

    def step_rows(self) -> list[tuple[str, ...]]:
        """One row per step around the plan: what changes and `HEADINGS`, of its worst seed."""
        return [(step.name, *self._row(cost, self._worst(trials))) for step, cost, trials in self.steps]

    def certainty(self) -> list[str]:
        """Certainty of the plan, in sentences."""
        requests = self.workload.request_count
        sentences = [f"{self.simulations} simulations of {requests:,} requests each."]
        if self.plan is None:
            return sentences
        trials = self.trials_of(self.plan)
        p90s_s = [float(trial.figures["ttft_p90_s"] or np.nan) for trial in trials]
        sentences.append(
            f"The plan holds with all of {len(trials)} seeds: TTFT P90 from {seconds(min(p90s_s))} to "
            f"{seconds(max(p90s_s))}. The limit is {seconds(self.slo.ttft_p90_s)}."
        )
        low_s, high_s = trials[0].interval_s
        sentences.append(
            f"95 % interval of the P90 of one run: {seconds(low_s)} to {seconds(high_s)}, as if requests "
            "were independent; bursts make it wider."
        )
        if high_s > self.slo.ttft_p90_s:
            sentences.append("The limit is within that interval: one worker more is the safer choice.")
        worst_s = float(np.nanmax([trial.quarters_s for trial in trials]))
        sentences.append(
            f"Worst quarter of the time: TTFT P90 {seconds(worst_s)}"
            + (
                ", within the limit."
                if worst_s <= self.slo.ttft_p90_s
                else ": above the limit, which holds over the whole time only."
            )
        )
        return sentences

    def buckets(self) -> list[str]:
        """Advice on length buckets, in sentences; none if it was not asked for.

        It says if they pay, the result of each division and its slower requests, and how to set the best.
        """
        if self.divisions is None:
            return []
        if self.plan is None or self.whole is None:
            return ["Not tried: buckets divide the best fleet without them, and there is none."]
        if not self.divisions:
            return ["Not tried: all requests are in one range of lengths."]
        came_of = [
            f"{division.label}: {self._came_of(division, self.plan, self.whole)}."
            f"{self._by_length(division, self.plan, self.whole)}"
            for division in self.divisions
        ]
        kept = self.plan.family.division
        if kept is None:
            return [f"Do not divide the fleet: no division costs less than {self.whole.label}.", *came_of]
        saved = self._cost(self.whole) - self._cost(self.plan)
        names, ends = kept.label, [name.partition("-")[2] for name in LengthBuckets(kept.tokens_max).names]
        return [
            f"Divide the fleet into {names}: {saved:,.2f} per hour less than {self.whole.label}.",
            *came_of,
            (
                f"Set placement.length_buckets to {' '.join(ends)}, and the label bucket on the workers that "
                f"take requests: {_labels(self.plan)}."
            ),
            (
                f"The plan rejects requests of more than {kept.tokens_max[-1]:,} tokens of prompt plus "
                "expected output."
            ),
        ]

    def _by_length(self, division: Division, plan: Candidate, whole: Candidate) -> str:
        """Gains and losses of lengths in a division, which a percentile over all hides."""
        tried = [one for one, _, _ in self.tried if one.family.division == division]
        if not tried:
            return ""
        fleet = plan if plan in tried else max(tried, key=lambda one: len(self.trials_of(one)))
        both = [
            np.fmax.reduce([trial.lengths_s for trial in self.trials_of(one)]).tolist()
            for one in (fleet, whole)
        ]
        ranges = [
            f"{name} {seconds(divided_s)} instead of {seconds(whole_s)}"
            f"{', pays for it' * (divided_s > PAYS_RATIO * whole_s)}"
            for name, divided_s, whole_s in zip(LENGTHS.names, *both, strict=True)
            if np.isfinite(whole_s)
        ]
        return f" TTFT P90 by length on {fleet.workers} workers, of the worst seed: {'; '.join(ranges)}."

    def _came_of(self, division: Division, plan: Candidate, whole: Candidate) -> str:
        if plan.family.division == division:
            return f"kept; without them {whole.label} at {self._cost(whole):,.2f} per hour is the cheapest"
        tried = dict.fromkeys(one for one, _, _ in self.tried if one.family.division == division)
        if not tried:
            return (
                f"not tried, it takes {division.workers_min} workers to keep up and {whole.label} has fewer"
            )
        margins = {one: self.slo.margin(self._worst(self.trials_of(one))) for one in tried}
        seeds = len(self.trials_of(plan))
        held = [one for one in tried if margins[one] >= 0 and len(self.trials_of(one)) == seeds]
        if held:
            best = min(held, key=lambda one: (self._cost(one), -margins[one]))
            return f"not kept; {best.label} holds it at {self._cost(best):,.2f} per hour, not below the plan"
        closest = max(tried, key=margins.__getitem__)
        ttft_s = self._worst(self.trials_of(closest))["ttft_p90_s"]
        reached = f"{closest.label} has a TTFT P90 of {_seconds(ttft_s)}"
        if margins[closest] >= 0:
            return (
                f"not kept; {reached} with one seed, and nothing that holds with all costs less than the plan"
            )
        return f"not kept; {reached} and does not hold it, more workers would cost more than the plan"

    def assumptions(self) -> list[str]:
        """Assumptions of the plan, in sentences."""
        sentences = [
            f"Engine times are modelled after the profile {self.engine.name}, not measured on your machines."
            if self.engine.name in PROFILES
            else f"Engine times follow your profile {self.engine.name}, and are as right as that is.",
            f"Requests come as in {self.workload.name}: {self.workload.notes}.",
            f"Prices: {self.prices}.",
            "No worker fails and none is restarted; add what you need for that.",
            *self.assumed,
        ]
        if self.workers_min > 1:
            sentences.append(
                f"Fewer than {self.workers_min} workers were not simulated: they would have more prefill to "
                "do than time for it, even if all their memory were one cache."
            )
        return sentences

    def _cost(self, candidate: Candidate) -> float:
        return candidate.cost_per_hour(self.prices)

    def _worst(self, trials: Sequence[Trial]) -> Figures:
        return min((trial.figures for trial in trials), key=self.slo.margin)

    def _row(self, cost: float, figures: Figures) -> tuple[str, ...]:
        margin = self.slo.margin(figures)
        return (
            f"{cost:,.2f}",
            _seconds(figures["ttft_p90_s"]),
            _seconds(figures["tpot_p90_s"]),
            f"{100 * margin:+.0f} %" if np.isfinite(margin) else "lost some",
            percent(float(figures["hit_ratio"] or 0.0)),
            percent(float(figures["utilisation_max"] or 0.0)),
        )


def _labels(fleet: Candidate) -> str:
    names = LengthBuckets(tuple(bound for bound, _ in fleet.bucket_workers)).names
    return ", ".join(
        f"{name} on {count}" for name, (_, count) in zip(names, fleet.bucket_workers, strict=True)
    )


def _seconds(value: float | int | str | None) -> str:
    return "-" if value is None else seconds(float(value))
