"""``least_load``: the fewest requests in flight.

    cost = requests in flight, of all replicas

The classic least-connections rule, blind to size and cache. Theory E3: a hundred times the mean
TTFT of the informed rules when caches matter.
"""

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView


def least_load(_request: RequestView, candidates: Candidates) -> Floats:
    """Requests in flight."""
    return candidates.inflight_requests
