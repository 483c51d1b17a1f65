"""Prefill times and KV sizes of the case study's instances by length, and its lengths (theory A6).

* **8 H200**: table 5, straight between its points in the logarithms of both. That gives 2.448 requests/s for
  four at 27.5K tokens (table 6: 2.45) and 3.514 s at the 90th percentile of its lengths (3.51).
* **8 H20**: not published, but *solved back* from three figures of table 6 that only H20 determine, so
  results show that the model is consistent, not that its times are right. The time at 1K is a guess: 1.6
  times that of the H200.
* **KV**: 172 MiB of states and 16.74 MiB per 1,024 tokens, the line through table 5 (within 1.1 %).
* **Decode**: BS_max = 20 follows from each of the three throughputs of decode in table 6, which are exact.
"""

from collections.abc import Sequence
from math import erf, exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from loadtest.plan.prfaas.paper import (
    KI,
    MIB,
    MU,
    OUTPUT_TOKENS,
    SIGMA,
    TABLE_5,
    TOKENS_MAX,
    TOKENS_MIN,
    TOKENS_PER_S,
)
from policies.disaggregation import Curve, UncachedLengths

Floats = NDArray[np.float64]

BINS = 4000
"""Number of bins of equal width in the logarithm of the length: 1.7 per mille each."""


def between(points: Sequence[tuple[float, float]]) -> Curve:
    """A curve through at least two points > 0 of ascending length, straight in the logarithms of both.

    It is as steep beyond the last as before it.
    """
    lengths, values = np.log(np.array(points)).T
    slopes = np.diff(values) / np.diff(lengths)

    def curve(tokens: Floats) -> Floats:
        logs = np.log(tokens)
        place = np.clip(np.searchsorted(lengths, logs) - 1, 0, len(slopes) - 1)
        found: Floats = np.exp(values[place] + slopes[place] * (logs - lengths[place]))
        return found

    return curve


H200_POINTS = tuple((float(row.tokens), row.prefill_s) for row in TABLE_5)
H20_POINTS = ((1024.0, 1.6 * 0.44), (10_230.0, 1.829), (27_498.0, 4.265), (62_430.0, 9.73))

h200_s = between(H200_POINTS)
h20_s = between(H20_POINTS)

STATE_MIB, TOKENS_MIB = 172.0, 16.74

BATCH_MAX = 20
DECODE_PER_S = BATCH_MAX * TOKENS_PER_S / OUTPUT_TOKENS
"""Requests that one instance decodes in a second, from equation (5)."""


def kv_bytes_per_s(kv_bytes: float, prefill_s: float) -> float:
    """Phi, equation (1): KV bytes that one instance makes in a second."""
    return kv_bytes / prefill_s


def egress_bytes_per_s(instances: int, kv_bytes: float, prefill_s: float) -> float:
    """B_out that a busy site needs, equation (2), from E[S] and E[T]."""
    return instances * kv_bytes_per_s(kv_bytes, prefill_s)


def kv_bytes(tokens: Floats) -> Floats:
    """S: bytes of a prompt's KV."""
    return (STATE_MIB + TOKENS_MIB / KI * tokens) * MIB


def prompt_lengths(bins: int = BINS) -> UncachedLengths:
    """The case study's lengths, integrated over bins: shares and means are exact but for rounding."""
    edges = np.exp(np.linspace(log(TOKENS_MIN), log(TOKENS_MAX), bins + 1))
    shares = np.diff([_normal((log(edge) - MU) / SIGMA) for edge in edges])
    # The mean of a lognormal below x is that of all times the normal distribution, one sigma further left.
    sums = np.diff([_normal((log(edge) - MU) / SIGMA - SIGMA) for edge in edges]) * exp(MU + SIGMA**2 / 2)
    return UncachedLengths(sums / shares, shares / shares.sum(), edges[1:])


def _normal(x: float) -> float:
    return (1.0 + erf(x / sqrt(2.0))) / 2
