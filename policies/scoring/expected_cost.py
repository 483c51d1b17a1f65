"""``expected_cost``: cost of a placement to this request and all that it delays, in seconds.

    V' = max(V + A, F)  V in the engine, A waiting with a lesser key; or the fetch that overlaps them
    x  = s(u, c) + X    prefill of the uncached tokens plus exposed transfer

    cost = V' + x                          this request's time to first token
         + n·x                             the n waiting requests that it overtakes, each delayed by x
         + kappa·x·(L + x/2)               later requests
         + E                               tokens that it pushes out of a full cache
         - R                               seconds that later requests save by a copy of a hot prefix

**Later requests** (theory E2). A job of size x delays an arrival by x if that comes while the job waits and
stays behind it, and by the rest of x if it comes while the job is served: with arrivals at rate lambda,
``lambda·x·(L + x/2)``. Each delay also delays those behind the delayed one: 1/(1 - rho) in all. So ``kappa =
lambda/(1 - rho)``, measured, not tuned (`policies.fleet.columns`).

**L**, the part of the wait in which later arrivals stay behind, depends on the order. Where engines serve in
order of arrival (no queue in the gateway), L = V': M/G/1. In the gateway's queue a later, shorter request
goes first, and n counts the delayed ones (`policies.state.waiting`), so only work in the engine counts: L =
min(V, target backlog). Charging kappa·x·V' there would be a delay that no request suffers, and drives
sessions from the worker that holds them (decision 0048).

**Data-parallel ranks** serve several prompts at a time; V and A are predicted work, and the ratio of real
queueing time to it is learned (`policies.fleet.admission`). **Pairs** add the wait for a decode worker to V',
and the exposed transfer and the delay of requests decoding beside the prefill to x
(`policies.disaggregation.ships`).

With little load it is `min_ttft`; with much it is the product of size and queue that `lmetric` uses.
"""

from policies.estimates.costs import Number
from policies.pricing.timing import Timing


def expected_cost(timing: Timing[Number]) -> Number:
    """Expected seconds lost by all requests if this one is placed there (formula above)."""
    work_s = timing.work_s
    delayed = timing.behind + timing.congestion_per_s * (timing.settled_s + work_s * 0.5)
    return timing.ready_s + work_s + work_s * delayed + timing.evict_s - timing.saved_s
