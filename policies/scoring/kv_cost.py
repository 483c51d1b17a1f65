"""``kv_cost``: the cost function of Dynamo's KV router, in KV blocks.

    prefill = (reserved prefill tokens + prompt)/block - credit·safe/block      at least 0
    cost = prefill_load_scale·prefill + inflight_tokens/block + active_request_weight·requests

Theory D ("Dynamo now", v1.2.1) and that project's router documentation, whose defaults these
are; its temperature is 0, so the lowest cost wins. Left out: the credits of host and disk tiers
and the decay of the credit, which is 0 by default. The new request's own decode blocks are the
same on every worker and cancel.
"""

from dataclasses import dataclass

import numpy as np

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView
from policies.scoring.options import option


@dataclass(frozen=True, slots=True)
class KvCostOptions:
    """Options of ``kv_cost``.

    Attributes:
        prefill_load_scale: Weight of prefill blocks against decode blocks.
        overlap_score_credit: Blocks of prefill that one matched block takes off.
        active_request_weight: Blocks that one request in flight counts for.
        block_tokens: Tokens in a KV block (vLLM's default). It changes no decision unless
            ``active_request_weight`` is set.
    """

    prefill_load_scale: float = option(1.0)
    overlap_score_credit: float = option(1.0)
    active_request_weight: float = option(0.0)
    block_tokens: float = option(16.0, low=1.0)


def kv_cost(request: RequestView, candidates: Candidates, options: KvCostOptions) -> Floats:
    """Blocks to prefill and to decode there (formula above), >= 0."""
    prefill_tokens = candidates.prefill_tokens + request.prompt_tokens
    prefill_tokens -= options.overlap_score_credit * candidates.safe_tokens
    costs = options.prefill_load_scale * np.maximum(prefill_tokens, 0.0) + candidates.inflight_tokens
    costs /= options.block_tokens
    if options.active_request_weight:
        costs += options.active_request_weight * candidates.inflight_requests
    return costs
