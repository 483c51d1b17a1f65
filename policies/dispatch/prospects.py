"""Outlook of a request that may have to wait.

Two questions of one look at the candidates:

* How much work is it on the chosen worker, ``x`` (`policies.pricing.timing`)? That orders the queue
  (`policies.state.waiting`).
* Is it *affine*: is waiting for its worker predicted cheaper, by the price that chose the worker, than
  starting on any other that stood idle? Then it waits for that worker, and a room elsewhere is nothing to it.
  A policy that does not count in seconds is taken to compare times to first token. Where there are no other
  workers, nothing is said of those that may yet come.
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
    """Answers.

    Attributes:
        chosen_s: Prefill and exposed transfer on the chosen worker, seconds, >= 0.
        affine: True if the chosen worker, busy, is better than any other, idle.
    """

    chosen_s: float
    affine: bool


def prospect(candidates: Candidates, prompt_tokens: float, slot: int, price: Price | None) -> Prospect:
    """Look at the candidates for a request that may have to wait.

    Args:
        candidates: Who may take it.
        prompt_tokens: Its length.
        slot: Of the candidate that the policy chose.
        price: Of the policy; None if it does not count in seconds.
    """
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
    """The same of workers that have nothing to do."""
    return msgspec.structs.replace(timing, ready_s=nothing, settled_s=nothing, behind=nothing)
