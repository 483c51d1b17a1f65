"""``min_ttft``: the worker that answers this request soonest, at any cost to the others.

    cost = max(V, F) + s(u, c) + X      seconds to first token (theory E1)

Mooncake's rule (arXiv:2407.00079), with the fetch overlapping the backlog instead of following
it. Best below saturation; near it, it spreads sessions until every cache thrashes (theory E3 ii).
"""

from policies.estimates.costs import Number
from policies.pricing.timing import Timing


def min_ttft(timing: Timing[Number]) -> Number:
    """Estimated seconds to first token (formula above), >= 0."""
    return timing.ready_s + timing.work_s
