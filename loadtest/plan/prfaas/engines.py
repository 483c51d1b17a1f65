"""The engines of PrfaaS's case study to simulate: a 1T hybrid model (KDA to MLA 3:1) on 8 H200 or 8 H20.

    T(u, c) = T(u) + b/c0 · u · c         u uncached tokens behind c cached ones

T(u), KV and batch are those of `loadtest.plan.prfaas.curves`. The paper prices uncached tokens alone; the
second term has b/c0 from a fit of `policies.ServiceModel` to the same points. The operator would give the
gateway that fit, which is up to 16 % off the curve; the gateway learns. Memory is not published and does not
bind there: room for several times the batch at the longest prompts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.shape import ModelShape
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming
from loadtest.plan.prfaas.curves import BATCH_MAX, H20_POINTS, H200_POINTS, STATE_MIB, TOKENS_MIB, between
from loadtest.plan.prfaas.paper import KI, MIB, TOKENS_PER_S
from policies import PROFILES as SERVICE_PROFILES
from policies import ServiceModel

H200_CLASS, H20_CLASS = "8xh200-1t-hybrid", "8xh20-1t-hybrid"

H20_MODEL = ServiceModel(a_s=0.566, b_s=1.277e-4, c0_tokens=306_000.0)
"""Least squares of the relative error at the four points of the curve and at 128K of its extension."""


@dataclass(frozen=True, slots=True)
class MeasuredPrefill(PrefillTiming):
    """Prefill times on a curve through (tokens, seconds) without cache.

    Prices are the fit's, steps whole prompts.
    """

    points: tuple[tuple[float, float], ...] = ()
    speed: float = 1.0

    def prompt_s(self, uncached_tokens: int, cached_tokens: int) -> float:
        """See `PrefillTiming`."""
        alone_s = float(_curve(self.points)(np.array([float(max(uncached_tokens, 1))]))[0]) / self.speed
        return alone_s + self.b_s * uncached_tokens * cached_tokens / self.c0_tokens

    def step_of(self, new_prompts: int, ranks: Sequence[Iterable[tuple[int, int]]]) -> float:
        """See `PrefillTiming`."""
        return sum(self.prompt_s(tokens, context) for chunks in ranks for tokens, context in chunks)

    def faster(self, speed: float) -> "MeasuredPrefill":
        """See `PrefillTiming`."""
        return replace(self, a_s=self.a_s / speed, b_s=self.b_s / speed, speed=self.speed * speed)


_curve = cache(between)


def _engine(name: str, points: tuple[tuple[float, float], ...], model: ServiceModel) -> EngineProfile:
    shape = ModelShape(  # 57 layers, 15 of them full, as in `loadtest.engine.profiles`
        full_layers=15,
        full_layer_bytes=round(TOKENS_MIB * MIB / KI / 15),
        state_layers=42,
        state_layer_bytes=round(STATE_MIB * MIB / 42),
    )
    return EngineProfile(
        name=name,
        shape=shape,
        prefill=MeasuredPrefill(model.a_s, model.b_s, model.c0_tokens, points=points),
        decode=DecodeTiming(base_s=1.0 / TOKENS_PER_S),
        rules=CacheRules(full_tokens=8_000_000, attention="linear", state_slots=2_000),
        chunk_tokens=0,
        max_running=BATCH_MAX,
        preallocated=2 * BATCH_MAX,
        host=LinkTiming(400e9),
        handover=LinkTiming(100e9, 0.0003),
    )


H200 = _engine(H200_CLASS, H200_POINTS, SERVICE_PROFILES[H200_CLASS])
H20 = _engine(H20_CLASS, H20_POINTS, H20_MODEL)
