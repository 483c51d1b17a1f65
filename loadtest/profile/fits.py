"""Least squares of prices that cannot be negative, with residuals and a grade.

    seconds ≈ sum of price·feature        relative errors count the same; outliers are left out, and counted

A queue only ever adds time. So observations far above the line are taken for queueing, and those far below
for mistakes; both are left out in a few rounds, up to `LEFT_OUT_MAX` of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Grade = Literal["good", "fair", "poor"]

ROUNDS = 8

LEFT_OUT_MAX = 0.4
"""Most of the observations that may be taken for outliers; with more, the line does not fit."""

SPREADS = 3.0
"""Distance from the line in robust standard deviations beyond which an observation is left out."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fit.

    Attributes:
        prices: One for each feature, 0 or above.
        residual: Root mean square of the relative errors of the observations that were kept.
        used: Number of kept ones.
        left_out: Number of the others.
    """

    prices: tuple[float, ...]
    residual: float
    used: int
    left_out: int

    @property
    def grade(self) -> Grade:
        """Confidence in the prices."""
        features = len(self.prices)
        if self.used > 2 * features and self.residual <= 0.1:
            return "good"
        return "fair" if self.used > features and self.residual <= 0.25 else "poor"

    def __str__(self) -> str:
        left_out = f", {self.left_out} left out as queued or disturbed" if self.left_out else ""
        return (
            f"{self.used} observations{left_out}, relative error {100 * self.residual:.1f} % "
            f"(confidence: {self.grade})"
        )


def fit_prices(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> Fit | None:
    """Fit prices to observations, a row of features each; None with fewer than there are features."""
    rows, times = np.asarray(features, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    kept = (times > 0) & np.isfinite(times) & np.isfinite(rows).all(axis=1) if len(times) else None
    if kept is None or kept.sum() < rows.shape[1]:
        return None
    rows, times = rows[kept], times[kept]
    use = np.ones(len(times), dtype=bool)
    prices = _not_negative(rows, times)
    for _ in range(ROUNDS):
        errors = (times - rows @ prices) / times
        middle = float(np.median(errors[use]))
        spread = 1.4826 * float(np.median(np.abs(errors[use] - middle)))
        near = np.abs(errors - middle) <= max(SPREADS * spread, 0.02)
        if near.sum() < max((1 - LEFT_OUT_MAX) * len(times), rows.shape[1]) or (near == use).all():
            break
        use = near
        prices = _not_negative(rows[use], times[use])
    errors = (times[use] - rows[use] @ prices) / times[use]
    return Fit(tuple(prices.tolist()), float(np.sqrt(np.mean(errors**2))), int(use.sum()), int((~use).sum()))


def _not_negative(rows: Floats, times: Floats) -> Floats:
    """Least squares of the relative errors with all prices >= 0: the best of all subsets of few features."""
    weighted, ones = rows / times[:, None], np.ones(len(times))
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-300)
    count = rows.shape[1]
    best: Floats | None = None
    least = np.inf
    for size in range(count, 0, -1):
        for chosen in map(list, combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(weighted[:, chosen] / scale[chosen], ones, rcond=None)
            if (found < 0).any():
                continue
            loss = float(
                ((weighted[:, chosen] / scale[chosen]) @ found - ones)
                @ ((weighted[:, chosen] / scale[chosen]) @ found - ones)
            )
            if loss < least * (1 - 1e-9):
                least, best = loss, np.zeros(count)
                best[chosen] = found / scale[chosen]
    return np.zeros(count) if best is None else best
