"""What a prefill costs: the service-time model, its defaults and its online fit.

    s(u, c) = a + b·u·(1 + (c + u/2)/c0)

u uncached tokens are prefilled behind c cached ones. ``a`` is what every prefill pays, ``b`` a
token's price at an empty context, and a token at position p costs 1 + p/c0 times as much, since
it attends to everything before it: the u tokens sit at c + u/2 on average (theory B1, E1).

Prices are seconds and belong to a *worker class* (same hardware, same model). They start from
a profile and are learned from observed prefills (`ServiceFit`). kappa, the price of making
others wait, is measured too (`congestion_per_s`, theory E2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from policies.views import Floats

Number = TypeVar("Number", float, Floats)

UTILISATION_MAX = 0.95
"""Utilisation is clipped here: 1/(1 - rho) beyond 20 is noise of the measurement."""

CONGESTION_START_PER_S = 1.0
"""kappa of a worker nobody has measured yet (theory E4, item 1)."""

CONGESTION_MAX_PER_S = 64.0
"""Default kappa_max: 0.8 of the capacity in requests of 60 ms, 0.8/0.06/(1 - 0.8) = 67 per second.

Longer requests come more rarely and stay far below. A bound and not a tuning knob: above it
the expected cost is the plain product of size and backlog already (theory E2)."""


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Prices of one worker class.

    Attributes:
        a_s: Fixed seconds per prefill, >= 0.
        b_s: Seconds per uncached token at an empty context, > 0.
        c0_tokens: Context that doubles the price of a token, > 0.
    """

    a_s: float
    b_s: float
    c0_tokens: float

    def service_s(self, uncached_tokens: float, cached_tokens: float) -> float:
        """Seconds to prefill ``uncached_tokens`` behind ``cached_tokens``."""
        return service_s(self.a_s, self.b_s, self.c0_tokens, uncached_tokens, cached_tokens)


PROFILES: Mapping[str, ServiceModel] = MappingProxyType(
    {
        "default": ServiceModel(a_s=0.020, b_s=1 / 15_000, c0_tokens=140_000.0),
        "8xh200-1t-hybrid": ServiceModel(a_s=0.396, b_s=4.01e-5, c0_tokens=195_000.0),
    }
)
"""Where a class starts before anything was observed; unknown classes start from ``default``.

* ``default``: a chunk's launch, tokenising and scheduling, 20 ms; 15,000 tokens/s, the middle of
  10,000 to 20,000 for an 8-GPU engine; c0 = 140K from the fall of MiMo-V2.5's throughput to 0.12 at
  a prefix of 1M (theory B1). A guess that the fit replaces within a few dozen requests.
* ``8xh200-1t-hybrid``: a 1T model (KDA:MLA 3:1) on 8 H200, least squares of the relative error on the
  four points of PrfaaS's Table 5 (0.44 s at 1K, 0.72 s at 8K, 1.84 s at 32K, 7.40 s at 128K tokens;
  theory A5), each met within 2 %.
"""


def service_s(
    a_s: Number, b_s: Number, c0_tokens: Number, uncached_tokens: Number, cached_tokens: Number
) -> Number:
    """Seconds to prefill ``uncached_tokens`` behind ``cached_tokens``: ``a + b·u·(1 + (c + u/2)/c0)``.

    All arguments are numbers, or all are columns of the same length.
    """
    middle = cached_tokens + uncached_tokens * 0.5
    return a_s + b_s * uncached_tokens * (1.0 + middle / c0_tokens)


def congestion_per_s(arrivals_per_s: Number, utilisation: Number, kappa_max: float) -> Number:
    """Price of work for those who come later: ``kappa = min(kappa_max, lambda / (1 - rho))``.

    A prefill of x seconds behind V seconds of backlog delays later arrivals by
    ``kappa·x·(V + x/2)`` seconds in all (M/G/1 first come first served, theory E2).

    Args:
        arrivals_per_s: lambda of each worker, >= 0.
        utilisation: rho, its busy fraction, 0 to 1; clipped to `UTILISATION_MAX`.
        kappa_max: Upper bound, per second.
    """
    free = 1.0 - np.clip(utilisation, 0.0, UTILISATION_MAX)
    kappa: Number = np.minimum(kappa_max, arrivals_per_s / free)
    return kappa
