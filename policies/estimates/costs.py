"""Cost of a prefill: the service-time model, its defaults and its online fit.

    s(u, c) = a + b·u·(1 + (c + u/2)/c0)

u uncached tokens are prefilled behind c cached ones. ``a`` is the fixed part, ``b`` a token's price at an
empty context, and a token at position p costs 1 + p/c0 times as much, since it attends to everything before
it: the u tokens sit at c + u/2 on average (theory B1, E1).

Prices are seconds and belong to a *worker class* (same hardware, same model). They start from a profile and
are learned from observed prefills (`ServiceFit`). kappa, the price of making others wait, is measured too
(`congestion_per_s`, theory E2).
"""

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Number = TypeVar("Number", float, Floats)

UTILISATION_MAX = 0.8
"""Utilisation is clipped here: of a measurement over 16 s, 1/(1 - rho) beyond 5 is noise."""

FIT_MEMORY = 500
"""Observations that a fit remembers: each one weighs 1/500 less than the next. A guess between following a
change of load within minutes and averaging over many lengths of prompt."""

FIT_RANGE = 256.0
"""Greatest factor between a learned parameter and its profile. Published engines differ from ``default`` by
up to 22 (the fixed seconds of a prefill), and hardware by as much again."""

FIT_SURPRISE = 4.0
"""An observation further than this factor from the prediction counts as just this far."""

PRIOR_SCALE, PRIOR_SHAPE = 0.02, 0.08
"""Lasting weight of the profile, in observations: less where all parameters move together (another machine is
faster or slower at everything), more where one moves alone."""

PRIOR_START = 50.0
"""Factor of the profile's weight at first, so that one observation cannot overturn it."""

REBASE_FACTOR, REBASE_AFTER = 2.0, 16
"""A fit starts again from its present parameters when one has moved by this factor, after at least so many
observations. The weight of a profile is in units of itself, so one that is far off would never be left: a
machine with 270 times the profile's fixed seconds was still priced at a fifth of its time after 2,000
prefills."""


class ServiceModel(msgspec.Struct, frozen=True, gc=False):
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
"""Start of a class before anything was observed; unknown classes start from ``default``.

* ``default``: 20 ms for a chunk's launch, tokenising and scheduling; 15,000 tokens/s, the middle of 10,000 to
  20,000 for an 8-GPU engine; c0 = 140K from the fall of MiMo-V2.5's throughput to 0.12 at a prefix of 1M
  (theory B1). A guess that the fit replaces within a few dozen requests.
* ``8xh200-1t-hybrid``: a 1T model (KDA:MLA 3:1) on 8 H200, least squares of the relative error on the four
  points of PrfaaS's Table 5 (0.44 s at 1K, 0.72 s at 8K, 1.84 s at 32K, 7.40 s at 128K tokens; theory A5),
  each met within 2 %.
"""


def service_s(
    a_s: Number, b_s: Number, c0_tokens: Number, uncached_tokens: Number, cached_tokens: Number
) -> Number:
    """Seconds to prefill uncached tokens behind cached ones, of numbers or of columns of one length."""
    middle = cached_tokens + uncached_tokens * 0.5
    return a_s + b_s * uncached_tokens * (1.0 + middle / c0_tokens)


def congestion_per_s(arrivals_per_s: Number, utilisation: Number, kappa_max: float) -> Number:
    """Price of work for later requests: ``kappa = min(kappa_max, lambda / (1 - rho))``, per second.

    A prefill of x seconds behind V seconds of backlog delays later arrivals by ``kappa·x·(V + x/2)`` seconds
    in all (M/G/1 first come first served, theory E2).

    Decisions compare workers by the mean of their candidates' kappas. With one of its own, a worker that was
    idle lately takes work for nothing: prompts leave the busy workers that hold them, and the work done twice
    makes all busy (decision 0013). Workers of one length bucket share one, since a long prefill delays more
    requests where short ones come.
    """
    free = 1.0 - np.clip(utilisation, 0.0, UTILISATION_MAX)
    kappa: Number = np.minimum(kappa_max, arrivals_per_s / free)
    return kappa


SUMS = 12
"""Numbers that another fit needs to go on from one (`ServiceFit.sums`)."""

_FADE = 1.0 / FIT_MEMORY
_TOGETHER = (PRIOR_SCALE - PRIOR_SHAPE) / 3
_ALONE = PRIOR_SHAPE + _TOGETHER
_PRIOR = (_ALONE, _TOGETHER, _TOGETHER, _ALONE, _TOGETHER, _ALONE)
"""Prior of the normal equations, upper triangle by rows: eigenvalue `PRIOR_SCALE` along (1, 1, 1),
`PRIOR_SHAPE` across it. Times the expected (1, 1, 1) it is `PRIOR_SCALE` in each row."""


class ServiceFit:
    """Learns the service model of one worker class from observed prefills.

    Least squares of the relative error on the features [1, u, u·(c + u/2)], whose coefficients are a, b and
    b/c0, with stabilised forgetting (Kulhavy and Zarrop, Int. J. Control 58, 1993): the *base* replaces what
    is forgotten, first the profile, later the fit itself (`REBASE_FACTOR`). So the normal equations never
    become singular. Space and time are constant: nine sums and a 3x3 system.

    It counts observations, those of them ``clipped`` to `FIT_SURPRISE`, and those ``ignored`` as not positive
    or not finite.
    """

    __slots__ = (
        *("_base", "_model", "_moments", "_products", "_profile", "_since_base"),
        *("_since_told", "_told"),
        *("clipped", "ignored", "longest_tokens", "observations"),
    )

    def __init__(self, profile: ServiceModel) -> None:
        assert profile.a_s > 0
        assert profile.b_s > 0
        assert 0 < profile.c0_tokens < inf
        self._profile = profile
        self._told = self._since_told = 0
        self._products: tuple[float, ...]
        self._moments: tuple[float, ...]
        self._start_from(profile)
        self.observations = self.clipped = self.ignored = 0
        self.longest_tokens = 0.0

    def go_on_from(self, told: ServiceModel, observations: int, sums: tuple[float, ...] = ()) -> None:
        """Go on from the others' model; the observations made here so far are in it, or come again.

        Args:
            told: Their model.
            observations: Number of observations behind it, at least 1.
            sums: Result of `sums` of their fit. Without them, or if they make no sense, as much is known of
                each parameter alone as of all together.
        """
        self._told = min(observations, FIT_MEMORY)
        self._since_told = 0
        if len(sums) == SUMS and self._restored(sums):
            return
        self._start_from(told)
        # An observation weighs 1 along (x1, x2, x3), which add up to 1: about 1/3 in each direction.
        weight = self._told / 3
        self._products = (weight, 0.0, 0.0, weight, 0.0, weight)
        self._moments = (weight, weight, weight)

    def sums(self) -> tuple[float, ...]:
        """State that another fit needs to go on from this one: the base, the products, the moments."""
        base = self._base
        return base.a_s, base.b_s, base.c0_tokens, *self._products, *self._moments

    def _restored(self, sums: tuple[float, ...]) -> bool:
        """Take over the sums of another fit, unless no fit has such ones."""
        a_s, b_s, c0_tokens, p11, p12, p13, p22, p23, p33 = sums[:9]
        profile = self._profile
        sound = all(
            value / FIT_RANGE <= told <= value * FIT_RANGE
            for value, told in zip((profile.a_s, profile.b_s, profile.c0_tokens), sums[:3], strict=True)
        )
        # Positive definite, with a margin for rounding (Sylvester's criterion).
        minor = p11 * p22 - p12 * p12
        whole = p11 * (p22 * p33 - p23 * p23) - p12 * (p12 * p33 - p23 * p13) + p13 * (p12 * p23 - p22 * p13)
        if not (sound and p11 > 0 and minor > 1e-9 * p11 * p22 and whole > 1e-9 * minor * p33):
            return False
        self._start_from(ServiceModel(a_s, b_s, c0_tokens))
        self._products, self._moments = sums[3:9], sums[9:]
        self._since_base = REBASE_AFTER
        self._model = self._solve()
        return True

    @property
    def weight(self) -> int:
        """Observations that the model stands for, of all replicas that learned it; at most `FIT_MEMORY`."""
        return min(self._told + self._since_told, FIT_MEMORY)

    def _start_from(self, base: ServiceModel) -> None:
        self._base = self._model = base
        self._since_base = 0
        # Unknowns are ratios to the base: (a/a0, b/b0, (b/c0)/(b0/c00)), all 1 at first.
        # Weighted sums of x·x' (upper triangle by rows) and of x·y.
        self._products = tuple(PRIOR_START * weight for weight in _PRIOR)
        self._moments = (PRIOR_START * PRIOR_SCALE,) * 3

    def model(self) -> ServiceModel:
        """Model as learned so far; the profile before the first observation."""
        return self._model

    def observe(self, uncached_tokens: float, cached_tokens: float, seconds: float) -> None:
        """Learn from one prefill that waited for nothing."""
        expected_s = self._model.service_s(uncached_tokens, cached_tokens)
        if not (uncached_tokens > 0 and cached_tokens >= 0 and 0 < expected_s < inf and 0 < seconds < inf):
            self.ignored += 1
            return
        self.observations += 1
        self._since_told += 1
        if cached_tokens + uncached_tokens > self.longest_tokens:
            self.longest_tokens = cached_tokens + uncached_tokens
        y = seconds / expected_s
        if not 1 / FIT_SURPRISE <= y <= FIT_SURPRISE:
            self.clipped += 1
            y = min(max(y, 1 / FIT_SURPRISE), FIT_SURPRISE)
        base = self._base
        x1 = base.a_s / expected_s
        x2 = base.b_s * uncached_tokens / expected_s
        x3 = x2 * (cached_tokens + uncached_tokens * 0.5) / base.c0_tokens
        # Written out, since a generator for each would take as long as all the rest.
        p11, p12, p13, p22, p23, p33 = self._products
        self._products = (
            p11 + _FADE * (_ALONE - p11) + x1 * x1,
            p12 + _FADE * (_TOGETHER - p12) + x1 * x2,
            p13 + _FADE * (_TOGETHER - p13) + x1 * x3,
            p22 + _FADE * (_ALONE - p22) + x2 * x2,
            p23 + _FADE * (_TOGETHER - p23) + x2 * x3,
            p33 + _FADE * (_ALONE - p33) + x3 * x3,
        )
        m1, m2, m3 = self._moments
        self._moments = (
            m1 + _FADE * (PRIOR_SCALE - m1) + x1 * y,
            m2 + _FADE * (PRIOR_SCALE - m2) + x2 * y,
            m3 + _FADE * (PRIOR_SCALE - m3) + x3 * y,
        )
        self._model = model = self._solve()
        self._since_base += 1
        if self._since_base >= REBASE_AFTER and (
            _moved(model.a_s, base.a_s)
            or _moved(model.b_s, base.b_s)
            or _moved(model.c0_tokens / model.b_s, base.c0_tokens / base.b_s)
        ):
            self._start_from(model)

    def _solve(self) -> ServiceModel:
        """Solve the normal equations (by L·D·L', stable since they are positive definite) and bound."""
        p11, p12, p13, p22, p23, p33 = self._products
        m1, m2, m3 = self._moments
        l21, l31 = p12 / p11, p13 / p11
        d2 = p22 - l21 * p12
        l32 = (p23 - l31 * p12) / d2
        d3 = p33 - l31 * p13 - l32 * l32 * d2
        z2 = m2 - l21 * m1
        slope = (m3 - l31 * m1 - l32 * z2) / d3
        b = z2 / d2 - l32 * slope
        a = m1 / p11 - l21 * b - l31 * slope
        base, profile = self._base, self._profile
        b_s = _bounded(b * base.b_s, profile.b_s)
        c0_tokens = b_s / base.b_s / slope * base.c0_tokens if slope > 0 else inf
        return ServiceModel(_bounded(a * base.a_s, profile.a_s), b_s, _bounded(c0_tokens, profile.c0_tokens))


def _bounded(value: float, profile: float) -> float:
    return min(max(value, profile / FIT_RANGE), profile * FIT_RANGE)


def _moved(value: float, base: float) -> bool:
    return not base / REBASE_FACTOR < value < base * REBASE_FACTOR
