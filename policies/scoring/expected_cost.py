"""``expected_cost``: what a placement costs this request and everybody after it, in seconds.

    V' = max(V, F)      backlog, or the fetch of the match that overlaps it
    x  = s(u, c) + X    prefill of the uncached tokens plus exposed transfer
    cost = V' + x + kappa·x·(V' + x/2)

The first two terms are this request's time to first token. The third is what it takes from
later ones: a job of size x that joins a backlog V delays later arrivals by
lambda·(V·x + x²/2)/(1 - rho) in all (M/G/1, theory E2; convexity: Jacobovic and Mandjes,
Stochastic Systems 14(1)). With little load it is `min_ttft`, with much it is the product of
size and backlog that `lmetric` uses: kappa is measured per worker, not tuned. Why it is the
default: the best or near the best at every load tried in theory E3, where selfish
minimisation of TTFT collapses near saturation.
"""

from policies.costs import Number


def expected_cost(ready_s: Number, work_s: Number, congestion_per_s: Number) -> Number:
    """Expected seconds lost by all requests if this one is placed there (formula above), >= 0."""
    ttft_s = ready_s + work_s
    return ttft_s + congestion_per_s * work_s * (ttft_s - work_s * 0.5)
