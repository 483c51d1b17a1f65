"""``random``: any worker, evenly.

    cost = 1 - weight((key, sequence), worker)/2^64

A hash of the request and its turn stands in for random numbers, so that a decision can be
repeated (`policies.state.rendezvous`).
"""

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.state.rendezvous import rank_costs, turn_key


def uniform(request: RequestView, candidates: Candidates) -> Floats:
    """A number in [0, 1) drawn for each worker and turn."""
    return rank_costs(turn_key(request.key, request.sequence), candidates.worker_hash)
