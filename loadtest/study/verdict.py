"""The default policy against its rivals, scenario by scenario, with intervals.

All rules get the same traffic at the same load by seed, so the ratio of ours to a rival's figure is taken
seed by seed; below 1 the default is faster. Its interval is Student's at 95 %, of the logarithms of the
ratios:

    mean ± t(n-1) · standard deviation / sqrt(n)        t(2) = 4.30 for three seeds

A rule is *faster* only where the whole interval lies on one side of 1, else *not told apart*. Requests that
expire have no time to first token, so a scenario in which the default answers less than `ANSWERED_SHARE_MIN`
is *not compared*. The best rival is chosen for each scenario and figure by its mean, so it is no single rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from statistics import mean

from loadtest.student import mean_95
from loadtest.study.design import OURS, RIVALS, Cell
from loadtest.study.results import Row, Seeds, by_scenario

MEAN, P90 = "ttft_mean_s", "ttft_p90_s"

ANSWERED_SHARE_MIN = 0.999


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean with its 95 % interval; without bounds where there is one seed only."""

    middle: float
    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval:
    """Interval of positive values, one for each seed (formula above)."""
    middle, low, high = mean_95([log(value) for value in values])
    return Interval(exp(middle), exp(low), exp(high))


class Told(StrEnum):
    """Verdict of three seeds on the default and the rivals."""

    FASTER = "faster than all"
    SLOWER = "slower"
    OPEN = "not told apart"
    UNCOMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The default against the rivals on one figure, mean of the seeds; less is better.

    Attributes:
        ratio: Ours over the best rival's.
        faster: Labels of rivals that are faster than the default, told apart.
        told: The verdict.
    """

    ours_s: float
    rival: str
    rival_s: float
    ratio: Interval
    faster: tuple[str, ...]
    told: Told


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scenario, which is a cell without a rule.

    Attributes:
        answered_share: Share of the default's requests, 0 to 1; the others expired in its queue.
        share_of_pooled: The default's reuse over that of one LRU cache as large as all; NaN if that is 0.
        floor_s: Mean time to first token with infinite caches and no queue.
    """

    scenario: Cell
    mean: Comparison
    p90: Comparison
    answered_share: float
    share_of_pooled: float
    floor_s: float


def average(rows: Seeds, figure: str) -> float:
    """Mean of a figure over seeds; NaN if one seed lacks it."""
    return mean(row.number(figure) for row in rows)


def ratio_of(ours: Seeds, others: Seeds, figure: str) -> Interval:
    """Ours over the others', by the seeds that both have."""
    theirs = {row.cell.seed: row.number(figure) for row in others}
    return interval_of(
        [row.number(figure) / theirs[row.cell.seed] for row in ours if row.cell.seed in theirs]
    )


def verdicts(rows: Iterable[Row], label: str = OURS) -> list[Verdict]:
    """Verdicts on the rule ``label`` against `loadtest.study.design.RIVALS`, one per compared scenario."""
    found = []
    for scenario, by_label in by_scenario(rows).items():
        rivals = {rival: by_label[rival] for rival in RIVALS if rival in by_label}
        ours = by_label.get(label)
        if ours is None or not rivals:
            continue
        found.append(
            Verdict(
                scenario=scenario,
                mean=_compare(ours, rivals, MEAN),
                p90=_compare(ours, rivals, P90),
                answered_share=average(ours, "completed_share"),
                share_of_pooled=average(ours, "share_of_pooled"),
                floor_s=average(ours, "floor_ttft_mean_s"),
            )
        )
    return found


def _compare(ours: Seeds, rivals: dict[str, Seeds], figure: str) -> Comparison:
    ratios = {rival: ratio_of(ours, rows, figure) for rival, rows in rivals.items()}
    best = min(rivals, key=lambda rival: average(rivals[rival], figure))
    faster = tuple(rival for rival, ratio in ratios.items() if ratio.low > 1.0)
    if average(ours, "completed_share") < ANSWERED_SHARE_MIN:
        outcome = Told.UNCOMPARED
    elif faster:
        outcome = Told.SLOWER
    elif all(ratio.high < 1.0 for ratio in ratios.values()):
        outcome = Told.FASTER
    else:
        outcome = Told.OPEN
    return Comparison(
        average(ours, figure), best, average(rivals[best], figure), ratios[best], faster, outcome
    )
