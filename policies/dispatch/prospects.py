"""Outlook of a request that may have to wait: its work x on the chosen worker, and whether it is *affine*.

The work orders the queue (`policies.state.waiting`). A request is affine if waiting for its worker is
predicted cheaper, by the price that chose it, than starting on any other that stood idle: room elsewhere does
not help it. A policy without seconds is taken to compare times to first token. Without other workers a
request is not affine, since some may yet come.
"""

from math import inf

import msgspec
import numpy as np

from policies.estimates.costs import Number
from policies.pricing.timing import Timing
from policies.pricing.views import Candidates
from policies.scoring import Price
from policies.scoring.min_ttft import min_ttft


class Prospect(msgspec.Struct, frozen=True, gc=False):
    """Prefill and exposed transfer on the chosen worker, in seconds >= 0, and affinity to it."""

    chosen_s: float
    affine: bool


def prospect(candidates: Candidates, prompt_tokens: float, slot: int, price: Price | None) -> Prospect:
    """Judge the candidates for a request; ``price`` is None if the policy counts no seconds."""
    price = price or min_ttft
    chosen_s = chosen_cost = others_cost = inf
    if candidates.few:
        for timing in candidates.timings(prompt_tokens, candidates.few):
            if timing.slot == slot:
                chosen_s, chosen_cost = timing.work_s, price(timing)
            else:
                others_cost = min(others_cost, price(_idle(timing, 0.0)))
    else:
        times = candidates.times(prompt_tokens)
        chosen = candidates.slots == slot
        chosen_s, chosen_cost = times.work_s[chosen].item(), price(times)[chosen].item()
        others_cost = price(_idle(times, np.zeros(len(chosen))))[~chosen].min(initial=inf).item()
    return Prospect(chosen_s, chosen_cost < others_cost < inf)


def _idle(timing: Timing[Number], nothing: Number) -> Timing[Number]:
    """The same on workers without any work."""
    return msgspec.structs.replace(timing, ready_s=nothing, settled_s=nothing, behind=nothing)
