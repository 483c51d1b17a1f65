"""Score, then pick the candidate that takes a request.

The policy prices the candidates; the lowest cost wins. Workers of another length bucket cost more
(`policies.state.buckets`); policies without seconds see them only if they are worth it. Costs within 1e-9 of
each other are a tie, which goes to the highest rendezvous weight for (request key, worker): even over
requests, the same in every replica, independent of rows. The worker that served the request's session last is
preferred if it has as much cached and costs little more (`_at_home`).

The reason for the choice (`Reason`) goes by the window-safe match:

    spilled_up, spilled_down
               it belongs to a longer or a shorter length bucket than the request
    only       there was one candidate
    session    it served the session last, and costs little more than the cheapest, with as much cached
    fetched    it fetches the missing blocks from the cache that it shares (`policies.fleet.cache_pools`)
    cold       no candidate has a match
    affinity   no candidate has a longer match than the chosen one
    balanced   one has, but load, price or the policy spoke against it
"""

from enum import StrEnum
from itertools import repeat
from math import inf, isnan

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.pricing.timing import Timing
from policies.pricing.views import Candidates, Chosen, RequestView, Shed
from policies.scoring import Policy
from policies.state.rendezvous import weights

TIE = 1e-9
"""Relative difference of costs below which they are equal: rounding of a dozen float64 operations is 1e-15,
and no measured second is known to nine digits."""

HOME_RATIO = 0.1
"""Part of a request's own work by which the session's worker may cost more than the cheapest one. [guess] It
covers learned speeds that differ, and stays below the prefill of another request."""

NO_WORKER_RETRY_AFTER_S = 2.0
"""A worker that comes back is seen within one or two rounds of health checks."""


class Reason(StrEnum):
    """Reason for the choice of a worker; a label of metrics and a field of logs."""

    SPILLED_UP = "spilled_up"
    SPILLED_DOWN = "spilled_down"
    ONLY = "only"
    SESSION = "session"
    FETCHED = "fetched"
    COLD = "cold"
    AFFINITY = "affinity"
    BALANCED = "balanced"


def place(request: RequestView, candidates: Candidates | None, policy: Policy) -> Chosen | Shed:
    """Choose a worker for a request.

    Returns:
        The worker and its prediction, or ``Shed("no_worker")`` when there is no candidate (None or empty) or
        the policy considers none.
    """
    if candidates is None or not len(candidates.slow.slots):
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    prompt_tokens = request.prompt_tokens
    candidates, costs, timings = priced(request, candidates, policy)
    row = cheapest_row(request.key, candidates.slow.worker_hash, costs)
    if row is None:
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    timing = (
        timings[row] if timings else candidates.timings(prompt_tokens, (candidates.slow.prices_at(row),))[0]
    )
    home = False
    if request.home >= 0 and timing.slot != request.home:
        found = _at_home(request, candidates, costs, timings, timing, costs[row], policy)
        if found is not None:
            home, (row, timing) = True, found
    others_s = 0.0
    if policy.price is not None:
        others_s = max(float(costs[row] + timing.saved_s) - timing.ready_s - timing.work_s, 0.0)
    spilled = None if candidates.slow.spills is None else _spilled(candidates.slow.spills.steps.item(row))
    return Chosen(
        slot=timing.slot,
        matched_tokens=round(candidates.matched_tokens_at(timing.slot)) if candidates.matches else 0,
        safe_tokens=round(timing.safe_tokens),
        uncached_tokens=round(prompt_tokens - timing.safe_tokens),
        service_s=timing.service_s,
        estimated_ttft_s=timing.ready_s + timing.work_s - timing.stall_s - timing.spill_s,
        reason=Reason.SESSION if home else spilled or _reason(candidates, timings, timing),
        fetched_tokens=round(timing.fetched_tokens),
        queue_s=timing.ready_s,
        transfer_s=timing.transfer_s,
        stall_s=timing.stall_s,
        others_s=others_s,
    )


def priced(
    request: RequestView, candidates: Candidates, policy: Policy
) -> tuple[Candidates, Floats | list[float], list[Timing[float]]]:
    """Price each candidate, of which there is at least one.

    Returns:
        Candidates that are considered; the cost of each, where +inf is not chosen; and the timing of each, if
        they were priced one by one, else nothing.
    """
    if policy.price is None:
        candidates = candidates.worth_leaving_for(request.prompt_tokens)
    elif candidates.few:
        price, timings = policy.price, candidates.timings(request.prompt_tokens, candidates.few)
        return candidates, list(map(price, timings)), timings
    return candidates, policy.costs(request, candidates), []


def cheapest_row(key: int, worker_hash: NDArray[np.uint64], costs: Floats | list[float]) -> int | None:
    """Row of the lowest cost, ties broken by rendezvous; None if all costs are +inf.

    ``key`` and ``worker_hash`` are 64-bit hashes of the request and of the worker id of each row.
    """
    lowest = min(costs) if isinstance(costs, list) else costs.item(costs.argmin())
    assert not isnan(lowest), "a policy returned NaN"
    if lowest == inf:
        return None
    limit = lowest + TIE * abs(lowest)
    if isinstance(costs, list):
        rows = [row for row, cost in enumerate(costs) if cost <= limit]
        if len(rows) == 1:
            return rows[0]
        drawn = list(map(weights, repeat(key), map(worker_hash.item, rows)))
        return rows[drawn.index(max(drawn))]
    tied = (costs <= limit).nonzero()[0]
    return tied.item(0 if len(tied) == 1 else weights(key, worker_hash[tied]).argmax())


def _at_home(
    request: RequestView,
    candidates: Candidates,
    costs: Floats | list[float],
    timings: list[Timing[float]],
    cheapest: Timing[float],
    cost: float,
    policy: Policy,
) -> tuple[int, Timing[float]] | None:
    """Row and timing of the worker that served the session last, if it may take the cheapest one's place.

    It may not have less cached, nor cost more than `HOME_RATIO` of the request's own work more; a policy that
    does not count in seconds must find both equal. None if it may not, or is no candidate.
    """
    rows = (candidates.slow.slots == request.home).nonzero()[0]
    if not len(rows):
        return None
    row = rows.item(0)
    slack = TIE * abs(cost) if policy.price is None else HOME_RATIO * cheapest.work_s
    if costs[row] > cost + slack:
        return None
    prompt_tokens = request.prompt_tokens
    timing = (
        timings[row] if timings else candidates.timings(prompt_tokens, (candidates.slow.prices_at(row),))[0]
    )
    return (row, timing) if timing.safe_tokens >= cheapest.safe_tokens else None


def _spilled(steps: int) -> Reason | None:
    if not steps:
        return None
    return Reason.SPILLED_UP if steps > 0 else Reason.SPILLED_DOWN


def _reason(candidates: Candidates, timings: list[Timing[float]], chosen: Timing[float]) -> Reason:
    if len(candidates.slow.slots) == 1:
        return Reason.ONLY
    if chosen.fetched_tokens:
        return Reason.FETCHED
    if not candidates.matches:
        return Reason.COLD
    if chosen.safe_tokens >= candidates.deepest_tokens:
        return Reason.AFFINITY
    if timings:
        longest = max([timing.safe_tokens - timing.fetched_tokens for timing in timings])
    else:
        safe_tokens = candidates.safe_tokens
        longest = safe_tokens.item(safe_tokens.argmax())
    if longest <= 0.0:
        return Reason.COLD
    return Reason.AFFINITY if chosen.safe_tokens >= longest else Reason.BALANCED
