"""The engines of PrfaaS's case study: a 1T hybrid model (KDA to MLA 3:1) on eight H200 or eight H20.

Prefill times are interpolated between measured lengths, straight in the logarithms of both: so 4/T(27.5K) is
2.448 requests/s for four H200 (paper: 2.45), and T at the 90th percentile of its lengths 3.514 s (3.51).

    T(u, c) = T(u) + b/c0 · u · c         u uncached tokens behind c cached ones

The paper prices uncached tokens alone; what they attend to in the cache is the second term, with b/c0 from a
fit of `policies.ServiceModel` to the same points. The fit is also what an operator would tell the gateway
of the class; it is up to 7 % off the curve, and the gateway learns from what it sees.

* **H200**: PrfaaS (arXiv:2604.15039) table 5.
* **H20**: not published. Times at three lengths are solved back from table 6 (its throughputs and times to
  first token are pure prefill); the time at 1K is a guess, 1.6 times the H200's.
* **KV**: 172 MiB + 16.74 MiB per 1,024 tokens, the line through table 5.
* **Decode**: 20 requests at a time of 25 ms per token: all three throughputs of table 6 give that.
* **Memory** is not published and does not bind there: room for twice the batch at the longest prompts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.shape import ModelShape
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming
from loadtest.simulator.records import Floats
from policies import PROFILES as SERVICE_PROFILES
from policies import ServiceModel

Tokens = NDArray[np.int64]

MIB = 1 << 20

BATCH = 20
STEP_S = 0.025
OUTPUT_TOKENS = 1024

H200_POINTS = ((1_024, 0.44), (8_192, 0.72), (32_768, 1.84), (131_072, 7.40))
H20_POINTS = ((1_024, 0.704), (10_230, 1.829), (27_498, 4.265), (62_430, 9.73))


@dataclass(frozen=True, slots=True)
class MeasuredPrefill(PrefillTiming):
    """Prefill times between measured points; the prices are those of the fit.

    Attributes:
        points: Uncached tokens and seconds, ascending, at least two; beyond them the slope goes on.
    """

    points: tuple[tuple[int, float], ...] = ()

    def prompt_s(self, uncached_tokens: int, cached_tokens: int) -> float:
        """See `PrefillTiming`."""
        alone_s = float(self.alone_s(np.array([max(uncached_tokens, 1)]))[0])
        return self.step_s + alone_s + self.b_s * uncached_tokens * cached_tokens / self.c0_tokens

    def alone_s(self, tokens: Tokens) -> Floats:
        """Seconds of prompts of which nothing is cached."""
        lengths, seconds = np.log(np.array(self.points)).T
        place = np.clip(np.searchsorted(lengths, np.log(tokens)) - 1, 0, len(lengths) - 2)
        slopes = np.diff(seconds) / np.diff(lengths)
        times: Floats = np.exp(seconds[place] + slopes[place] * (np.log(tokens) - lengths[place]))
        return times

    def step_of(self, new_prompts: int, ranks: Sequence[Iterable[tuple[int, int]]]) -> float:
        """See `PrefillTiming`; all chunks are whole prompts."""
        return sum(self.prompt_s(tokens, context) for chunks in ranks for tokens, context in chunks)

    def faster(self, speed: float) -> "MeasuredPrefill":
        """See `PrefillTiming`."""
        points = tuple((tokens, seconds / speed) for tokens, seconds in self.points)
        return replace(self, a_s=self.a_s / speed, b_s=self.b_s / speed, points=points)


SHAPE = ModelShape(
    full_layers=15,
    full_layer_bytes=round(16.74 * MIB / 1024 / 15),
    state_layers=42,
    state_layer_bytes=round(172 * MIB / 42),
)
"""57 layers as in `loadtest.engine.profiles`; what they keep is the line through table 5."""

H20_MODEL = ServiceModel(a_s=0.566, b_s=1.277e-4, c0_tokens=306_000.0)
"""Least squares of the relative error at the four points and at 128K of their extension."""


def _engine(name: str, points: tuple[tuple[int, float], ...], model: ServiceModel) -> EngineProfile:
    return EngineProfile(
        name=name,
        shape=SHAPE,
        prefill=MeasuredPrefill(model.a_s, model.b_s, model.c0_tokens, points=points),
        decode=DecodeTiming(base_s=STEP_S),
        rules=CacheRules(full_tokens=8_000_000, attention="linear", state_slots=2_000),
        chunk_tokens=0,
        max_running=BATCH,
        preallocated=2 * BATCH,
        host=LinkTiming(400e9),
        handover=LinkTiming(100e9, 0.0003),
    )


H200 = _engine("8xh200-1t-hybrid", H200_POINTS, SERVICE_PROFILES["8xh200-1t-hybrid"])
H20 = _engine("8xh20-1t-hybrid", H20_POINTS, H20_MODEL)
