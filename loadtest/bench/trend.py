"""Change of a sampled quantity: its slope, a verdict, and a plot of one line."""

import statistics
from dataclasses import dataclass

FLAT_PERCENT_PER_MIN = 1.0
FEW = 100
BARS = " ▁▂▃▄▅▆▇█"
PLOT_COLUMNS = 30

Series = list[tuple[float, float]]
"""Seconds and a value, in order of time."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Straight line through a series: its mean, and its change per minute (least squares)."""

    mean: float
    per_min: float

    @classmethod
    def of(cls, points: Series) -> "Trend":
        """Fit; needs two points at different times."""
        times, values = zip(*points, strict=True)
        slope, _ = statistics.linear_regression(times, values)
        return cls(statistics.mean(values), 60 * slope)

    @property
    def percent_per_min(self) -> float:
        """Change per minute in percent of the mean."""
        return 100 * self.per_min / self.mean if self.mean else 0.0

    @property
    def verdict(self) -> str:
        """``flat``, ``GROWS`` or ``falls``; flat is within 1 % a minute, or one a minute if there are few."""
        few = self.mean < FEW and abs(self.per_min) <= 1
        if few or abs(self.percent_per_min) <= FLAT_PERCENT_PER_MIN:
            return "flat"
        return "GROWS" if self.per_min > 0 else "falls"


def plot(points: Series) -> str:
    """Draw a series as a line of bars, from zero to the highest value."""
    values = [value for _, value in points]
    highest = max(values) or 1.0
    columns = min(PLOT_COLUMNS, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)]
    means = [statistics.mean(values[edges[i] : edges[i + 1]]) for i in range(columns)]
    return "".join(BARS[round(mean / highest * (len(BARS) - 1))] for mean in means)
