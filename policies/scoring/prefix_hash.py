"""``prefix_hash``: prompts with the same start go to one worker, unless it is full.

    cost = 1 - weight(prefix_key, worker)/2^64      +inf at or above the bounded load

Affinity without a tree: the first block decides, so all users of one system prompt meet (and
the bound spreads them). Bounded-load hashing as in KubeAI and SMG's ``prefix_hash`` (theory D;
`policies.state.rendezvous`), on a rendezvous in place of a ring.
"""

from dataclasses import dataclass

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.scoring.options import option
from policies.state.rendezvous import bounded_costs


@dataclass(frozen=True, slots=True)
class PrefixHashOptions:
    """Options of ``prefix_hash``.

    Attributes:
        load_factor: Requests in flight a worker may have, over the fleet's mean. 1.25 is the
            peers' default and CacheRoute's epsilon of 0.25.
    """

    load_factor: float = option(1.25, low=1.0)


def prefix_hash(request: RequestView, candidates: Candidates, options: PrefixHashOptions) -> Floats:
    """Rank of the prefix on each worker in [0, 1), no unit; +inf for a full worker."""
    return bounded_costs(
        request.prefix_key, candidates.worker_hash, candidates.inflight_requests, options.load_factor
    )
