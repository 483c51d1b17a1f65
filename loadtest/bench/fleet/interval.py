"""Mean of repeated measurements with an interval that holds the true mean 19 times in 20."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
"""Student's t for 1, 2, ... degrees of freedom, two-sided 95 %. Beyond the table: its last value."""


class Answer(StrEnum):
    """Whether an aim was reached."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval; endless where there is one measurement only.

    Attributes:
        mean: Of the measurements.
        low: Lower end.
        high: Upper end.
        count: How many measurements.
    """

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise at least one measurement."""
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, -math.inf, math.inf, 1)
        t = _T_95[min(len(values) - 1, len(_T_95)) - 1]
        half = t * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values))

    def at_most(self, limit: float) -> Answer:
        """Judge whether the mean is at most a limit; undecided if the interval holds the limit."""
        if self.high <= limit:
            return Answer.YES
        return Answer.NO if self.low > limit else Answer.UNDECIDED

    def at_least(self, limit: float) -> Answer:
        """Judge whether the mean is at least a limit; undecided if the interval holds the limit."""
        if self.low >= limit:
            return Answer.YES
        return Answer.NO if self.high < limit else Answer.UNDECIDED
