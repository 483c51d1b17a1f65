"""What a request that may have to wait could look forward to.

Questions of one look at the candidates, with ``V'`` when each could begin and ``x`` how long it would
work (`policies.views.Candidates.times`):

* How little work is it? ``s = min x``. That orders the queue (`policies.waiting`).
* Is it *affine*: would it rather wait for its worker, with all that is before it there, than go to
  any other that stood idle? ``V'_w + x_w < min x of the others``. Then it waits for that worker, and a room
  elsewhere is nothing to it. Where there are no others, nothing is said of those that may yet come.
* How much more work is it on a worker that has room for it?
"""

from math import inf

import msgspec

from policies.views import Candidates


class Prospect(msgspec.Struct, frozen=True, gc=False):
    """What was found; work is prefill and exposed transfer, seconds, >= 0.

    Attributes:
        least_s: s: work on the cheapest candidate.
        chosen_s: On the chosen one.
        offered_s: On the one that has room; +inf if there is none.
        affine: Whether the chosen worker, busy, is better than any other, idle.
    """

    least_s: float
    chosen_s: float
    offered_s: float
    affine: bool


def prospect(candidates: Candidates, prompt_tokens: float, slot: int, offered: int) -> Prospect:
    """Look at the candidates for a request that may have to wait.

    Args:
        candidates: Who may take it.
        prompt_tokens: Its length.
        slot: Of the candidate that the policy chose.
        offered: Slot of the worker whose room it is offered; -1 if none.
    """
    chosen_s = ttft_s = others_s = offered_s = inf
    if candidates.few:
        for timing in candidates.timings(prompt_tokens, candidates.few):
            if timing.slot == slot:
                chosen_s, ttft_s = timing.work_s, timing.ready_s + timing.work_s
            elif timing.work_s < others_s:
                others_s = timing.work_s
            if timing.slot == offered:
                offered_s = timing.work_s
    else:
        ready_s, work_s = candidates.times(prompt_tokens)
        chosen = candidates.slots == slot
        chosen_s = work_s[chosen].item()
        ttft_s = ready_s[chosen].item() + chosen_s
        others_s = work_s[~chosen].min().item()
        if offered >= 0:
            offered_s = work_s[candidates.slots == offered].min(initial=inf).item()
    return Prospect(min(chosen_s, others_s), chosen_s, offered_s, ttft_s < others_s < inf)
