"""``expected_cost``: what a placement costs this request and everybody it delays, in seconds.

    V' = max(V + A, F)  V in the engine, A waiting with a lesser key; or the fetch that overlaps them
    x  = s(u, c) + X    prefill of the uncached tokens plus exposed transfer

    cost = V' + x                          this request's time to first token
         + n·x                             the n waiting requests that it overtakes, each delayed by x
         + kappa·x·(L + x/2)               those who will come
         + E                               what it pushes out of a full cache

**Those who come later** (theory E2). A job of size x delays an arrival by x if that arrival comes while the
job waits and stays behind it, and by what is left of x if it comes while the job is served. With arrivals at
rate lambda, ``lambda·x·(L + x/2)``: L is the part of the wait in which later arrivals stay behind, and x/2
the mean of what is left of the service. Each delay also delays those behind the delayed one: 1/(1 - rho) in
all. So ``kappa = lambda/(1 - rho)``, measured, not tuned (`policies.fleet.columns`).

**L depends on the order.** Where engines serve what comes first (no queue in the gateway), everybody who
comes later stays behind: L = V', and the term is that of M/G/1. In the gateway's queue a later, shorter
request goes first (`policies.state.waiting`), and whom this one delays among those that wait already is known
and counted, n. Only what is in the engine is served as it came: L = min(V, target backlog). Charging
kappa·x·V' there too would be a delay that nobody suffers, and drives sessions from the worker that holds them
(decision 0048).

**Data-parallel ranks** serve several prompts at a time; V and A are predicted work, and what queues really
take of it is learned (`policies.fleet.admission`). **Pairs** add the wait for room at a decode worker to V'
and the exposed transfer to x; the delay of those that are decoded beside the prefill is part of x
(`policies.pricing.views.Ships`).

**E** is the price of computing again what is pushed out, times the chance that somebody wants it
(`policies.fleet.columns`).

With little load it is `min_ttft`; with much it is the product of size and queue that `lmetric` uses.
"""

from policies.estimates.costs import Number
from policies.pricing.timing import Timing


def expected_cost(timing: Timing[Number]) -> Number:
    """Expected seconds lost by all requests if this one is placed there (formula above), >= 0."""
    work_s = timing.work_s
    delayed = timing.behind + timing.congestion_per_s * (timing.settled_s + work_s * 0.5)
    return timing.ready_s + work_s + work_s * delayed + timing.evict_s
