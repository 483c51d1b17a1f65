"""``lmetric``: uncached tokens ahead times batch size.

    cost = (reserved prefill tokens + prompt - safe)·(requests in flight + 1)

LMetric, arXiv:2603.15202 (theory D). Tokens times requests: no unit, and no weight to tune. The
request itself is counted in the batch, or all idle workers would cost 0 with any cached tokens.
It is the limit of `expected_cost` for much load, with linear prices (theory E2).
"""

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView


def lmetric(request: RequestView, candidates: Candidates) -> Floats:
    """Tokens to prefill times requests (formula above), >= 0."""
    tokens = candidates.prefill_tokens + (request.prompt_tokens - candidates.safe_tokens)
    return tokens * (candidates.inflight_requests + 1.0)
