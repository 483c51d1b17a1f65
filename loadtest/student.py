"""Student's t: the intervals of means of few measurements."""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev

T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306),
    *(2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120),
)
"""Quantiles for 1 to 16 degrees of freedom: 95 %, both sides."""


def t_95(measurements: int) -> float:
    """Return the factor of the standard error in a 95 % interval of 2 or more measurements.

    More than 17 count as 17.
    """
    return T_95[min(measurements - 1, len(T_95)) - 1]


def mean_95(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of at least one measurement, and the ends of its 95 % interval; endless for one."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, -inf, inf
    half = t_95(len(values)) * stdev(values) / sqrt(len(values))
    return mean, mean - half, mean + half
