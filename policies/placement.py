"""Score, then pick: which of the candidates takes a request.

Who is a candidate (model, role, health, drain, length bucket) is decided before; what each one
costs, by the policy. Here the lowest cost wins. Costs within 1e-9 of each other are a tie, and
a tie goes to the worker with the highest rendezvous weight for (request key, worker): spread
evenly over requests, the same in every replica, and no worker is favoured by its row.

Why the chosen one was chosen (`Reason`), judged by the window-safe match:

    only       there was one candidate
    cold       nobody has a match
    affinity   nobody has a longer match than the chosen one
    balanced   somebody has, but load, price or the policy spoke against it
"""

from enum import StrEnum
from math import inf, isnan

from policies.costs import service_s
from policies.rendezvous import weights
from policies.scoring import Policy
from policies.views import Candidates, Chosen, Floats, RequestView, Shed

TIE = 1e-9
"""Relative difference of costs below which they are equal: rounding of a dozen float64 operations
is 1e-15, and no measured second is known to nine digits."""

NO_WORKER_RETRY_AFTER_S = 2.0
"""A worker that comes back is seen within one or two rounds of health checks."""


class Reason(StrEnum):
    """Why a worker was chosen; a label of metrics and a field of logs."""

    ONLY = "only"
    COLD = "cold"
    AFFINITY = "affinity"
    BALANCED = "balanced"


def place(request: RequestView, candidates: Candidates | None, policy: Policy) -> Chosen | Shed:
    """Choose a worker for a request.

    Args:
        request: The request to place.
        candidates: Who may take it; None or empty if nobody may.
        policy: How to price them.

    Returns:
        The worker and what is expected of it, or ``Shed("no_worker")`` when there is no candidate
        or the policy considers none.
    """
    if candidates is None or not len(candidates):
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    row = cheapest_row(request.key, candidates, policy.costs(request, candidates))
    if row is None:
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    safe = candidates.safe_tokens.item(row)
    uncached = request.prompt_tokens - safe
    prefill_s = service_s(
        candidates.a_s.item(row), candidates.b_s.item(row), candidates.c0_tokens.item(row), uncached, safe
    )
    ready_s = max(candidates.backlog_s.item(row), candidates.fetch_s.item(row))
    return Chosen(
        slot=candidates.slots.item(row),
        matched_tokens=round(candidates.matched_tokens.item(row)),
        safe_tokens=round(safe),
        uncached_tokens=round(uncached),
        service_s=prefill_s,
        estimated_ttft_s=ready_s + prefill_s + candidates.transfer_s.item(row),
        reason=_reason(candidates.safe_tokens, safe),
    )


def cheapest_row(key: int, candidates: Candidates, costs: Floats) -> int | None:
    """Row of the lowest cost, ties broken by rendezvous; None if all costs are +inf."""
    row = int(costs.argmin())
    lowest = costs.item(row)
    assert not isnan(lowest), "a policy returned NaN"
    if lowest == inf:
        return None
    tied = (costs <= lowest + TIE * abs(lowest)).nonzero()[0]
    if len(tied) == 1:
        return row
    return tied.item(weights(key, candidates.worker_hash[tied]).argmax())


def _reason(safe_tokens: Floats, chosen: float) -> Reason:
    if len(safe_tokens) == 1:
        return Reason.ONLY
    longest = safe_tokens.max()
    if longest <= 0.0:
        return Reason.COLD
    return Reason.AFFINITY if chosen >= longest else Reason.BALANCED
