"""What a request that may have to wait could look forward to.

Two questions of one look at the candidates, with ``V'`` when each could begin and ``x`` how long it would
work (`policies.views.Candidates.times`):

* How little work is it? ``s = min x``. That orders the queue (`policies.waiting`).
* Is it *affine*: would it rather wait for its worker, with all that is before it there, than go to
  any other that stood idle? ``V'_w + x_w < min x of the others``. Then it waits for that worker, and a room
  elsewhere is nothing to it. Where there are no others, nothing is said of those that may yet come.
"""

from math import inf

import msgspec

from policies.views import Candidates


class Prospect(msgspec.Struct, frozen=True, gc=False):
    """What was found.

    Attributes:
        work_s: s: prefill and exposed transfer on the cheapest candidate, seconds, >= 0.
        affine: Whether the chosen worker, busy, is better than any other, idle.
    """

    work_s: float
    affine: bool


def prospect(candidates: Candidates, prompt_tokens: float, slot: int) -> Prospect:
    """Look at the candidates for a request that may have to wait.

    Args:
        candidates: Who may take it.
        prompt_tokens: Its length.
        slot: Of the candidate that the policy chose.
    """
    if candidates.few:
        own_s = ttft_s = others_s = inf
        for timing in candidates.timings(prompt_tokens, candidates.few):
            if timing.slot == slot:
                own_s, ttft_s = timing.work_s, timing.ready_s + timing.work_s
            elif timing.work_s < others_s:
                others_s = timing.work_s
        return Prospect(min(own_s, others_s), ttft_s < others_s < inf)
    ready_s, work_s = candidates.times(prompt_tokens)
    own = candidates.slots == slot
    own_s = work_s[own].item()
    others_s = work_s[~own].min().item()
    return Prospect(min(own_s, others_s), ready_s[own].item() + own_s < others_s)
