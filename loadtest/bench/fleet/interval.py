"""Mean of repeated measurements with an interval that holds the true mean 19 times in 20."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from loadtest.student import mean_95


class Answer(StrEnum):
    """True if an aim was reached."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval; infinite for a single measurement."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise at least one measurement."""
        return cls(*mean_95(values), len(values))

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
