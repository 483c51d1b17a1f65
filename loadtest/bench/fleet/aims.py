"""Aims of Cacheway beside other routers, judged cell by cell.

Ratios and differences are taken between two routers in one repetition, then averaged. The best peer of a
figure is the one with the best mean of it in that cell.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.bench.fleet.cells import PEERS, Cell, Part, Router
from loadtest.bench.fleet.interval import Answer, Interval
from loadtest.bench.fleet.results import Outcome

MEAN_MAX = {Part.AGENTS: 0.85, Part.CONVERSATION: 0.70}
P90_MAX = {Part.AGENTS: 0.75, Part.CONVERSATION: 0.70}
REPLICAS_MAX = 0.35
IDEAL_MIN = 0.985
HIT_BEHIND_MAX = 0.005
BEHIND_MAX = 1.02

Figure = Callable[[Outcome], float]


def mean_s(outcome: Outcome) -> float:
    """Mean TTFT."""
    return outcome.ttft_mean_s


def p90_s(outcome: Outcome) -> float:
    """P90 of the TTFT."""
    return outcome.ttft_p90_s


def hit_ratio(outcome: Outcome) -> float:
    """Hit rate."""
    return outcome.hit_ratio


@dataclass(frozen=True, slots=True)
class Verdict:
    """One aim in one cell: the measured figure, its limit, and whether it holds."""

    aim: str
    rival: str
    seen: Interval
    limit: float
    answer: Answer


class CellRuns:
    """Valid runs of one cell; ``outcomes`` may hold those of others."""

    def __init__(self, cell: Cell, outcomes: Iterable[Outcome]) -> None:
        self.cell = cell
        self.all = [outcome for outcome in outcomes if outcome.cell == cell.key]
        self._valid = {(outcome.router, outcome.repetition): outcome for outcome in self.all if outcome.valid}

    def of(self, router: str) -> list[Outcome]:
        """Return a router's runs, by repetition."""
        return [outcome for (key, _), outcome in sorted(self._valid.items()) if key == router]

    def best_peer(self, figure: Figure, *, highest: bool = False) -> Router | None:
        """Return the peer with the lowest (or highest) mean of a figure; None if no peer was measured."""
        means = {peer: statistics.fmean(map(figure, runs)) for peer in PEERS if (runs := self.of(peer))}
        if not means:
            return None
        return (max if highest else min)(means, key=means.__getitem__)

    def ratio(self, figure: Figure, rival: str, ours: str = Router.CACHEWAY) -> Interval | None:
        """Return ours over a rival's; None if they have no repetition in common."""
        pairs = self._pairs(ours, rival)
        return (
            Interval.of([figure(one) / max(1e-9, figure(other)) for one, other in pairs]) if pairs else None
        )

    def difference(self, figure: Figure, rival: str) -> Interval | None:
        """Return ours minus a rival's; None if they have no repetition in common."""
        pairs = self._pairs(Router.CACHEWAY, rival)
        return Interval.of([figure(one) - figure(other) for one, other in pairs]) if pairs else None

    def _pairs(self, one: str, other: str) -> Sequence[tuple[Outcome, Outcome]]:
        return [
            (outcome, self._valid[other, outcome.repetition])
            for outcome in self.of(one)
            if (other, outcome.repetition) in self._valid
        ]


def judge(runs: CellRuns) -> list[Verdict]:
    """Judge all aims that concern a cell and have been measured."""
    cell = runs.cell
    verdicts: list[Verdict] = []

    def at_most(aim: str, rival: str, seen: Interval | None, limit: float) -> None:
        if seen:
            verdicts.append(Verdict(aim, rival, seen, limit, seen.at_most(limit)))

    def at_least(aim: str, rival: str, seen: Interval | None, limit: float) -> None:
        if seen:
            verdicts.append(Verdict(aim, rival, seen, limit, seen.at_least(limit)))

    for name, figure, limits in (("mean TTFT", mean_s, MEAN_MAX), ("P90 TTFT", p90_s, P90_MAX)):
        if peer := runs.best_peer(figure):
            seen = runs.ratio(figure, peer)
            at_most(f"{name}, ratio", peer, seen, REPLICAS_MAX if cell.replicas > 1 else limits[cell.part])
            at_most(f"{name}, not behind", peer, seen, BEHIND_MAX)
        at_most(f"{name}, queue on", Router.NO_QUEUE, runs.ratio(figure, Router.NO_QUEUE), BEHIND_MAX)
    if cell.ample:
        shares = [run.hit_ratio / max(1e-9, run.ideal_hit_ratio) for run in runs.of(Router.CACHEWAY)]
        at_least("hit rate, of ideal", "ideal", Interval.of(shares) if shares else None, IDEAL_MIN)
    elif peer := runs.best_peer(hit_ratio, highest=True):
        at_least("hit rate, difference", peer, runs.difference(hit_ratio, peer), -HIT_BEHIND_MAX)
    return verdicts
