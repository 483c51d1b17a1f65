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
from policies.pricing.plain import PlainTimes
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


Times = PlainTimes | list[Timing[float]]


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
    if candidates is None or not (candidates.few or len(candidates.slow.slots)):
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    candidates, costs, times = priced(request, candidates, policy)
    row = cheapest_row(request.key, candidates.slow.worker_hash, costs)
    if row is None:
        return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
    timing, home = _timing(request, candidates, times, row), False
    if request.home >= 0 and timing.slot != request.home:
        found = _at_home(request, candidates, costs, times, timing, costs[row], policy)
        if found is not None:
            home, (row, timing) = True, found
    ready_s, work_s, safe_tokens = timing.ready_s, timing.work_s, timing.safe_tokens
    others_s = 0.0
    if policy.price is not None:
        others_s = float(costs[row] + timing.saved_s) - ready_s - work_s
        if others_s < 0.0:
            others_s = 0.0
    matched_tokens = safe = round(safe_tokens)
    if candidates.windowed or timing.fetched_tokens:
        matched_tokens = round(candidates.matched_tokens_at(timing.slot)) if candidates.matches else 0
    return Chosen(
        timing.slot,
        matched_tokens,
        safe,
        round(request.prompt_tokens - safe_tokens),
        timing.service_s,
        ready_s + work_s - timing.stall_s - timing.spill_s,
        Reason.SESSION if home else _reason(candidates, times, timing, row),
        round(timing.fetched_tokens),
        ready_s,
        timing.transfer_s,
        timing.stall_s,
        0.0,
        others_s,
    )


def priced(
    request: RequestView, candidates: Candidates, policy: Policy
) -> tuple[Candidates, Floats | list[float], Times]:
    """Price each candidate, of which there is at least one.

    Returns:
        Candidates that are considered; the cost of each, where +inf is not chosen; and the timing of each, if
        they were priced one by one, else nothing.
    """
    prompt_tokens, price = request.prompt_tokens, policy.price
    if price is None:
        candidates = candidates.worth_leaving_for(prompt_tokens)
    elif candidates.few:
        plain = candidates.plain_times(prompt_tokens, price)
        if plain is not None:
            return candidates, plain.costs, plain
        timings = candidates.timings(prompt_tokens, candidates.few)
        return candidates, [timing.cost(price) for timing in timings], timings
    return candidates, policy.costs(request, candidates), []


def cheapest_row(key: int, worker_hash: NDArray[np.uint64], costs: Floats | list[float]) -> int | None:
    """Row of the lowest cost, ties broken by rendezvous; None if all costs are +inf.

    ``key`` and ``worker_hash`` are 64-bit hashes of the request and of the worker id of each row.
    """
    if isinstance(costs, list):
        return _cheapest_of_few(key, worker_hash, costs)
    lowest = costs.item(costs.argmin())
    if not lowest < inf:
        assert not isnan(lowest), "a policy returned NaN"
        return None
    tied = (costs <= lowest + TIE * abs(lowest)).nonzero()[0]
    return tied.item(0 if len(tied) == 1 else weights(key, worker_hash[tied]).argmax())


def _cheapest_of_few(key: int, worker_hash: NDArray[np.uint64], costs: list[float]) -> int | None:
    lowest, *others = sorted(costs)
    if not lowest < inf:
        assert not isnan(lowest), "a price is NaN"
        return None
    limit = lowest + TIE * abs(lowest)
    if not others or others[0] > limit:
        return costs.index(lowest)
    rows = [row for row, cost in enumerate(costs) if cost <= limit]
    drawn = list(map(weights, repeat(key), map(worker_hash.item, rows)))
    return rows[drawn.index(max(drawn))]


def _timing(request: RequestView, candidates: Candidates, times: Times, row: int) -> Timing[float]:
    """Time on the candidate of a row."""
    if isinstance(times, PlainTimes):
        return times.at(row)
    prices = candidates.slow.prices_at
    return times[row] if times else candidates.timings(request.prompt_tokens, (prices(row),))[0]


def _at_home(
    request: RequestView,
    candidates: Candidates,
    costs: Floats | list[float],
    times: Times,
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
    timing = _timing(request, candidates, times, row)
    return (row, timing) if timing.safe_tokens >= cheapest.safe_tokens else None


def _reason(candidates: Candidates, times: Times, chosen: Timing[float], row: int) -> Reason:
    slow = candidates.slow
    if slow.spills is not None:
        steps = slow.spills.steps.item(row)
        if steps:
            return Reason.SPILLED_UP if steps > 0 else Reason.SPILLED_DOWN
    if len(slow.slots) == 1:
        return Reason.ONLY
    if chosen.fetched_tokens:
        return Reason.FETCHED
    if not candidates.matches:
        return Reason.COLD
    safe_tokens = chosen.safe_tokens
    if isinstance(times, PlainTimes):
        longest = max(times.safe_tokens)
    elif safe_tokens >= candidates.deepest_tokens:
        return Reason.AFFINITY  # before all candidates are gone through
    elif times:
        longest = max([timing.safe_tokens - timing.fetched_tokens for timing in times])
    else:
        longest = candidates.safe_tokens.max().item()
    if longest <= 0.0:
        return Reason.COLD
    if safe_tokens >= longest or safe_tokens >= candidates.deepest_tokens:
        return Reason.AFFINITY
    return Reason.BALANCED
