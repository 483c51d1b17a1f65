"""``power_of_two``: of two workers drawn for this request, the less loaded.

    cost = requests in flight for the two drawn, +inf for the others

Mitzenmacher (2000): close to least load, and robust when loads are old. The draw is the top two
of a rendezvous on (key, sequence), so it is the same at every repetition and needs no
random numbers.
"""

import numpy as np

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.state.rendezvous import turn_key, weights


def power_of_two(request: RequestView, candidates: Candidates) -> Floats:
    """Requests in flight of the two drawn workers; +inf for all others."""
    load = candidates.inflight_requests
    if len(load) <= 2:
        return load
    drawn = np.argpartition(weights(turn_key(request.key, request.sequence), candidates.worker_hash), -2)[-2:]
    costs = np.full(len(load), np.inf)
    costs[drawn] = load[drawn]
    return costs
