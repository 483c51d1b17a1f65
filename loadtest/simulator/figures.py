"""The figures of a comparison: what each is called, how it is written, and which of two is better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtest.simulator.runs import CAUSES, TIERS, Run
from loadtest.simulator.words import percent, points, seconds

Better = Literal["least", "most"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table of all figures.

    Attributes:
        key: In `Result.summary`.
        text: Format of a value.
        better: Good values, if one can say so.
    """

    key: str
    name: str
    text: Callable[[float], str]
    better: Better | None = None


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _times(value: float) -> str:
    return f"{value:.2f} ×" if np.isfinite(value) else "-"


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value:,.0f} B"


FIGURES = (
    Figure("requests", "Requests", _count),
    Figure("completed_share", "Completed", percent, "most"),
    Figure("rejected", "Rejected", _count, "least"),
    Figure("failed", "Failed", _count, "least"),
    Figure("expired", "Expired", _count, "least"),
    Figure("ttft_mean_s", "TTFT, mean", seconds, "least"),
    Figure("ttft_p50_s", "TTFT, P50", seconds, "least"),
    Figure("ttft_p90_s", "TTFT, P90", seconds, "least"),
    Figure("ttft_p99_s", "TTFT, P99", seconds, "least"),
    Figure("floor_ttft_mean_s", "TTFT, mean of the floor", seconds),
    Figure("ttft_long_p90_s", "TTFT P90, more than 16K uncached tokens", seconds, "least"),
    Figure("ttft_short_p90_s", "TTFT P90, the others", seconds, "least"),
    Figure("wait_p50_s", "Wait in the gateway, P50", seconds, "least"),
    Figure("wait_p90_s", "Wait in the gateway, P90", seconds, "least"),
    Figure("wait_max_s", "Wait in the gateway, longest", seconds, "least"),
    Figure("inversions", "Went before a better key", _count, "least"),
    Figure("tpot_mean_s", "TPOT, mean", seconds, "least"),
    Figure("tpot_p90_s", "TPOT, P90", seconds, "least"),
    Figure("hit_ratio", "Hit rate, in tokens", percent, "most"),
    *(Figure(f"hit_{tier}_ratio", f"… from {name}", percent) for tier, name in TIERS.items()),
    Figure("share_of_pooled", "… of one LRU cache of all workers' size", percent, "most"),
    Figure("ideal_hit_ratio", "Hit rate of an infinite cache", percent),
    *(
        Figure(f"lost_{cause}_ratio", f"Lost points: {name}", points, "least")
        for cause, name in CAUSES.items()
    ),
    *(Figure(f"lost_{cause}_s", f"Lost prefill: {name}", seconds, "least") for cause, name in CAUSES.items()),
    Figure("time_scale", "Prefill times over the profile's", _times),
    Figure("utilisation_mean", "Prefill busy, mean of the workers", percent),
    Figure("utilisation_max", "Prefill busy, the busiest", percent),
    Figure("imbalance", "Busiest worker over the mean", _times, "least"),
    Figure("cpu_s", "Processor time of the simulation", seconds),
)


POOL_FIGURES = (
    Figure("pool_read_bytes", "Pool: read by workers", _bytes),
    Figure("pool_held_bytes", "Pool: held at the end", _bytes),
    Figure("pool_evicted_bytes", "Pool: evicted or expired", _bytes),
    Figure("pool_moved_bytes", "Pool: moved between nodes", _bytes),
    Figure("pool_imbalance", "Pool: busiest node over the mean", _times, "least"),
    Figure("prefetches", "Prefetches", _count),
    Figure("prefetches_stopped", "… stopped before their end", _count, "least"),
    Figure("prefetch_dropped_tokens", "… fetched in vain, tokens", _count, "least"),
)
"""Rows of a comparison with a shared pool, beside `FIGURES`."""


def figures_of(runs: Sequence[Run]) -> tuple[Figure, ...]:
    """The rows of a comparison."""
    return FIGURES + (POOL_FIGURES if any(run.result.pool for run in runs) else ())


def shown(figure: Figure, run: Run) -> str:
    """A run's figure as text; ``-`` if it was not measured."""
    value = run.figure(figure.key)
    return figure.text(value) if np.isfinite(value) else "-"


def best_of(figure: Figure, runs: Sequence[Run]) -> set[str]:
    """Labels of the runs that read best; none where all read the same or nothing is better."""
    if figure.better is None:
        return set()
    pick = np.nanmin if figure.better == "least" else np.nanmax
    values = np.array([run.figure(figure.key) for run in runs])
    if np.isnan(values).all():
        return set()
    best = figure.text(float(pick(values)))
    texts = [shown(figure, run) for run in runs]
    return (
        set()
        if len(set(texts)) == 1
        else {run.label for run, text in zip(runs, texts, strict=True) if text == best}
    )
