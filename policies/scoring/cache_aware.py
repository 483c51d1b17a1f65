"""``cache_aware``: the threshold rule of SGLang's router.

    load = requests in flight
    max - min > balance_abs_threshold and max > balance_rel_threshold·min   ->  least load
    else longest match / prompt > cache_threshold                           ->  longest match
    else                                                                    ->  smallest tree

SGLang's ``cache_aware.rs`` (theory D); the defaults are its command line's. The smallest tree is
the worker believed to hold the fewest tokens. Known weaknesses, kept for comparison: the ratio
gate calls 80K matched tokens of 300K a miss, and the imbalance switch drops affinity for
the whole fleet (wire, section 5).
"""

from dataclasses import dataclass

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.scoring.options import option


@dataclass(frozen=True, slots=True)
class CacheAwareOptions:
    """Options of ``cache_aware``.

    Attributes:
        cache_threshold: Share of the prompt above which a match decides.
        balance_abs_threshold: Requests between most and least loaded above which load may decide.
        balance_rel_threshold: Ratio between them above which load may decide.
    """

    cache_threshold: float = option(0.3, high=1.0)
    balance_abs_threshold: float = option(64.0)
    balance_rel_threshold: float = option(1.5, low=1.0)


def cache_aware(request: RequestView, candidates: Candidates, options: CacheAwareOptions) -> Floats:
    """Requests, negated tokens of match, or tokens held, by the rule that applies (above)."""
    load = candidates.inflight_requests
    least, most = load.min(), load.max()
    if most - least > options.balance_abs_threshold and most > options.balance_rel_threshold * least:
        return load
    if candidates.safe_tokens.max() > options.cache_threshold * request.prompt_tokens:
        return -candidates.safe_tokens
    return candidates.held_tokens
