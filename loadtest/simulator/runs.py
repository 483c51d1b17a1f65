"""Runs of a report, one per policy with the same requests, and the figures that charts draw.

Bins are of a length that no policy changes: the *ideal* uncached tokens of an infinite cache. Otherwise a
policy with many misses would fill the bins of long requests with short ones and look better there.

    0 ---- arrival ---- dispatched ---- prefill starts ------------------- first token
              gateway          worker's queue        prefill = floor + what is beyond it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest.simulator.records import Floats, Outcome, Records, Result

UNCACHED_BOUNDS_TOKENS = (0, 1_024, 4_096, 16_384, 65_536, 262_144)
"""Lower bounds of the bins of ideal uncached tokens; the last one has no upper bound."""

TIERS = {"device": "GPU memory", "host": "host memory", "pool": "shared pool"}

CAUSES = {
    "placed_elsewhere": "another worker held it",
    "evicted": "evicted",
    "not_window_safe": "not window-safe",
    "in_flight": "still being computed",
}
"""Why tokens were computed that an infinite cache would have held, in the words of the report."""

ENDS = {
    Outcome.COMPLETED: "completed",
    Outcome.REJECTED: "rejected",
    Outcome.FAILED: "failed",
    Outcome.EXPIRED: "expired",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's simulation; ``figures`` is the result's summary."""

    label: str
    result: Result
    figures: dict[str, float | int | str | None]

    @classmethod
    def of(cls, label: str, result: Result) -> "Run":
        """Take the figures of a result once, for all that show them."""
        return cls(label, result, result.summary())

    @property
    def counted(self) -> Records:
        """The requests behind the warm-up, which alone the figures are about."""
        return self.result.records.since(self.result.config.warmup_s)

    def figure(self, name: str) -> float:
        """A figure of the summary; NaN if it was not measured."""
        value = self.figures[name]
        return np.nan if value is None else float(value)

    def ttft_s(self) -> Floats:
        """Time to first token of every request, sorted; infinite where none came."""
        values = self.counted.ttft_s
        return np.sort(np.where(np.isnan(values), np.inf, values))

    def end_shares(self) -> dict[str, float]:
        """Share of the requests by how they ended."""
        outcomes = self.counted.outcome
        return {name: float((outcomes == end).mean()) if len(outcomes) else 0.0 for end, name in ENDS.items()}

    def ttft_parts_s(self) -> dict[str, float]:
        """Parts of the mean time to first token, seconds per request that got one.

        Prefill beyond the floor is recomputation, waiting for host memory and chunks shared with others.
        """
        records = self.counted
        answered = ~np.isnan(records.first_s) & ~np.isnan(records.started_s)
        if not answered.any():
            return dict.fromkeys(("floor", "prefill beyond it", "waiting"), 0.0)
        waiting_s = (records.started_s - records.arrival_s)[answered].mean()
        prefill_s = (records.first_s - records.started_s)[answered].mean()
        floor_s = min(float(records.floor_ttft_s[answered].mean()), float(prefill_s))
        return {
            "floor": floor_s,
            "prefill beyond it": float(prefill_s) - floor_s,
            "waiting": float(waiting_s),
        }

    def lost_s(self) -> dict[str, float]:
        """Seconds of prefill that a request lost on average to caches that are not infinite, by cause."""
        requests = max(self.figure("completed"), 1.0)
        return {cause: self.figure(f"lost_{cause}_s") / requests for cause in CAUSES}

    def ttft_by_length_s(self, share: float) -> tuple[Floats, Floats, list[int]]:
        """TTFT percentile per bin of ideal uncached tokens, that of the floor (NaN if empty), and counts."""
        records = self.counted
        answered = ~np.isnan(records.first_s)
        uncached = (records.prompt_tokens - records.ideal_tokens)[answered]
        bins = np.searchsorted(UNCACHED_BOUNDS_TOKENS, uncached, side="right") - 1
        taken, floors, counts = [], [], []
        for number in range(len(UNCACHED_BOUNDS_TOKENS)):
            rows = bins == number
            counts.append(int(rows.sum()))
            columns = (records.ttft_s[answered][rows], records.floor_ttft_s[answered][rows])
            ttft, floor = (float(np.quantile(column, share)) if len(column) else np.nan for column in columns)
            taken.append(ttft)
            floors.append(floor)
        return np.array(taken), np.array(floors), counts


def best_and_worst(runs: Sequence[Run], name: str) -> tuple[Run, Run]:
    """The runs with the least and the most of a figure; one that was not measured is the worst."""
    ranked = sorted(runs, key=lambda run: np.nan_to_num(run.figure(name), nan=np.inf))
    return ranked[0], ranked[-1]


def bin_names() -> list[str]:
    """Names of the bins of ideal uncached tokens, such as ``4K-16K``."""
    lows = [f"{low // 1024}K" for low in UNCACHED_BOUNDS_TOKENS]
    middle = [f"{low}-{high}" for low, high in pairwise(lows[1:])]
    return [f"< {lows[1]}", *middle, f"> {lows[-1]}"]
