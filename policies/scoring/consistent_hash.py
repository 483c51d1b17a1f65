"""``consistent_hash``: one key, one worker, unless it is full.

    cost = 1 - weight(key, worker)/2^64      +inf at or above the bounded load

The key is the session where the client names one, else the whole prompt; `prefix_hash` takes
the start of the prompt instead. Bounded load with epsilon = 0.25 (theory D, CacheRoute's
"CHWBL"; `policies.state.rendezvous`), on a rendezvous in place of a ring.
"""

from dataclasses import dataclass

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.scoring.options import option
from policies.state.rendezvous import bounded_costs


@dataclass(frozen=True, slots=True)
class ConsistentHashOptions:
    """Options of ``consistent_hash``.

    Attributes:
        load_factor: Requests in flight a worker may have, over the fleet's mean: 1 + epsilon.
    """

    load_factor: float = option(1.25, low=1.0)


def consistent_hash(request: RequestView, candidates: Candidates, options: ConsistentHashOptions) -> Floats:
    """Rank of the key on each worker in [0, 1), no unit; +inf for a full worker."""
    return bounded_costs(
        request.key, candidates.worker_hash, candidates.inflight_requests, options.load_factor
    )
