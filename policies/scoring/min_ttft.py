"""``min_ttft``: the worker that answers this request soonest, whatever it costs the others.

    cost = max(V, F) + s(u, c) + X      seconds to first token (theory E1)

Mooncake's rule (arXiv:2407.00079), with the fetch overlapping the backlog instead of following
it. Best below saturation; near it, it spreads sessions until every cache thrashes (theory E3 ii).
"""

import numpy as np

from policies.costs import service_s
from policies.views import Candidates, Floats, RequestView


def min_ttft(request: RequestView, candidates: Candidates) -> Floats:
    """Estimated seconds to first token (formula above), >= 0."""
    cached = candidates.safe_tokens
    costs = service_s(
        candidates.a_s, candidates.b_s, candidates.c0_tokens, request.prompt_tokens - cached, cached
    )
    costs += candidates.transfer_s
    costs += np.maximum(candidates.backlog_s, candidates.fetch_s)
    return costs
