"""Verdict of one simulation on a fleet, and its certainty."""

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from loadtest.plan.objective import Figures
from loadtest.simulator.records import Floats, Result
from policies import LengthBuckets

QUARTERS = 4
"""Parts of the time that are looked at one by one."""

LENGTHS = LengthBuckets()
"""Ranges of lengths that are looked at one by one; longer requests count in the last."""

Z_95 = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation.

    Attributes:
        interval_s: 95 % interval of the TTFT's 90th percentile, from the ranks of a binomial distribution for
            independent requests; those of a burst are not, so the truth is wider.
        quarters_s: The same percentile in each quarter of the time in which requests came; NaN if none did.
        lengths_s: The same percentile in each of `LENGTHS`; NaN if it has no request.
    """

    figures: Figures
    interval_s: tuple[float, float]
    quarters_s: tuple[float, ...]
    lengths_s: tuple[float, ...]

    @classmethod
    def of(cls, result: Result) -> "Trial":
        """Keep the figures of a result that a plan needs."""
        records = result.records.since(result.config.warmup_s)
        answered = ~np.isnan(records.first_s)
        ttft_s, arrival_s = records.ttft_s[answered], records.arrival_s[answered]
        tokens = records.prompt_tokens[answered] + result.config.expected_output_tokens
        number = np.minimum(np.searchsorted(LENGTHS.tokens_max, tokens), len(LENGTHS.tokens_max) - 1)
        return cls(
            result.summary(),
            _interval_s(np.sort(ttft_s)),
            _quarters_s(arrival_s, ttft_s),
            _parts_s(ttft_s, number, len(LENGTHS.tokens_max)),
        )


def _interval_s(ordered_s: Floats) -> tuple[float, float]:
    count = len(ordered_s)
    if not count:
        return float("nan"), float("nan")
    middle, spread = 0.9 * count, Z_95 * sqrt(0.9 * 0.1 * count)
    low, high = floor(middle - spread), ceil(middle + spread)
    return float(ordered_s[max(low - 1, 0)]), float(ordered_s[min(high, count) - 1])


def _quarters_s(arrival_s: Floats, ttft_s: Floats) -> tuple[float, ...]:
    if not len(arrival_s):
        return (float("nan"),) * QUARTERS
    edges = np.linspace(arrival_s.min(), arrival_s.max(), QUARTERS + 1)
    quarter = np.clip(np.searchsorted(edges, arrival_s, side="right") - 1, 0, QUARTERS - 1)
    return _parts_s(ttft_s, quarter, QUARTERS)


def _parts_s(ttft_s: Floats, part_of: NDArray[np.intp], count: int) -> tuple[float, ...]:
    parts = [ttft_s[part_of == number] for number in range(count)]
    return tuple(float(np.percentile(part, 90)) if len(part) else float("nan") for part in parts)
