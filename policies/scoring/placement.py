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
from functools import partial
from itertools import repeat
from math import inf, isnan
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.pricing.plain import Offer, PlainRows
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

_match_of, _hash_of = itemgetter(0), itemgetter(1)

Ranked = TypeVar("Ranked", Offer, tuple[float, int, int])

NOWHERE = Shed("no_worker", NO_WORKER_RETRY_AFTER_S)


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


# Not looked up in the enumeration for each request, which takes 0.05 us.
ONLY, SESSION, COLD = Reason.ONLY, Reason.SESSION, Reason.COLD
AFFINITY, BALANCED = Reason.AFFINITY, Reason.BALANCED


def place(request: RequestView, candidates: Candidates | None, policy: Policy) -> Chosen | Shed:
    """Choose a worker for a request.

    Returns:
        The worker and its prediction, or ``Shed("no_worker")`` when there is no candidate (None or empty) or
        the policy considers none.
    """
    if candidates is None:
        return NOWHERE
    plain, others, queue = candidates.slow.plain, policy.counts_others, candidates.queue
    if (
        plain is not None
        and others is not None
        and (queue is None or queue.tickets is None)
        and candidates.copying is None
        and not candidates.loads_s
    ):
        return _place_plain(request, candidates, plain, counts_others=others)
    if not len(candidates.slow.slots):
        return NOWHERE
    candidates, costs, timings = priced(request, candidates, policy)
    row = cheapest_row(request.key, candidates.slow.worker_hash, costs)
    if row is None:
        return NOWHERE
    timing, home = timings[row] if timings else _timing(request, candidates, row), False
    if request.home >= 0 and timing.slot != request.home:
        found = _at_home(request, candidates, costs, timings, timing, costs[row], policy)
        if found is not None:
            home, (row, timing) = True, found
    ready_s, work_s, safe_tokens = timing.ready_s, timing.work_s, timing.safe_tokens
    others_s = 0.0
    if policy.price is not None:
        others_s = max(float(costs[row] + timing.saved_s) - ready_s - work_s, 0.0)
    return Chosen(
        timing.slot,
        round(candidates.matched_tokens_at(timing.slot)) if candidates.matches else 0,
        round(safe_tokens),
        round(request.prompt_tokens - safe_tokens),
        timing.service_s,
        ready_s + work_s - timing.stall_s - timing.spill_s,
        SESSION if home else _reason(candidates, timings, timing, row),
        round(timing.fetched_tokens),
        ready_s,
        timing.transfer_s,
        timing.stall_s,
        0.0,
        others_s,
    )


def _place_plain(
    request: RequestView, candidates: Candidates, plain: PlainRows, *, counts_others: bool
) -> Chosen | Shed:
    """Choose among a few workers that no option concerns, by their costs."""
    matches, windowed, prompt_tokens = candidates.matches, candidates.windowed, request.prompt_tokens
    queue, ships = candidates.queue, candidates.ships
    groups = plain.by_match(matches, candidates.tokens_per_block, candidates.prompt_tokens, windowed=windowed)
    offers = plain.offers(
        groups,
        prompt_tokens,
        candidates.loads,
        candidates.now_us,
        inf if queue is None else queue.committed_s,
        None if ships is None else partial(ships.at, candidates.loads),
        counts_others=counts_others,
    )
    offers.sort()
    best = _cheapest(request.key, offers)
    if best is None:
        return NOWHERE
    reason, home = None, request.home
    if home >= 0 and home != best[2]:
        cost, _, _, safe_tokens, _, work_s, _ = best
        for offer in offers:
            if offer[2] == home and offer[0] <= cost + HOME_RATIO * work_s and offer[3] >= safe_tokens:
                best, reason = offer, SESSION
    cost, _, slot, safe_tokens, ready_s, work_s, service_s = best
    transfer_s = stall_s = 0.0
    if ships is not None:
        _, transfer_s, stall_s = ships.at(candidates.loads, slot, service_s)
    if reason is None:
        longest = safe_tokens if len(groups) == 1 else max(map(_match_of, groups))
        if len(offers) == 1:
            reason = ONLY
        elif not matches:
            reason = COLD
        elif safe_tokens >= longest > 0.0:
            reason = AFFINITY
        else:
            reason = _by_match(candidates, safe_tokens, longest)
    safe = whole = round(safe_tokens)
    if windowed and matches:
        whole = round(candidates.matched_tokens_at(slot))
    others_s = cost - ready_s - work_s
    return Chosen(
        slot,
        whole,
        safe,
        round(prompt_tokens - safe_tokens),
        service_s,
        ready_s + work_s - stall_s,
        reason,
        0,
        ready_s,
        transfer_s,
        stall_s,
        0.0,
        others_s if others_s > 0.0 else 0.0,
    )


def priced(
    request: RequestView, candidates: Candidates, policy: Policy
) -> tuple[Candidates, Floats | list[float], list[Timing[float]]]:
    """Price each candidate, of which there is at least one.

    Returns:
        Candidates that are considered; the cost of each, where +inf is not chosen; and the timing of each, if
        they were priced one by one, else nothing.
    """
    price = policy.price
    if price is None:
        candidates = candidates.worth_leaving_for(request.prompt_tokens)
    elif candidates.slow.few:
        timings = candidates.timings(request.prompt_tokens, candidates.slow.few)
        return candidates, list(map(price, timings)), timings
    return candidates, policy.costs(request, candidates), []


def cheapest_row(key: int, worker_hash: NDArray[np.uint64], costs: Floats | list[float]) -> int | None:
    """Row of the lowest cost, ties broken by rendezvous; None if all costs are +inf.

    ``key`` and ``worker_hash`` are 64-bit hashes of the request and of the worker id of each row.
    """
    if isinstance(costs, list):
        ranked = sorted(zip(costs, worker_hash.tolist(), range(len(costs)), strict=True))
        cheapest = _cheapest(key, ranked)
        return None if cheapest is None else cheapest[2]
    lowest = costs.item(costs.argmin())
    if not lowest < inf:
        assert not isnan(lowest), "a policy returned NaN"
        return None
    tied = (costs <= lowest + TIE * abs(lowest)).nonzero()[0]
    return tied.item(0 if len(tied) == 1 else weights(key, worker_hash[tied]).argmax())


def _cheapest(key: int, ranked: list[Ranked]) -> Ranked | None:
    """Do the same for a few workers, sorted by their costs, with their hashes; return the one chosen."""
    lowest = ranked[0][0]
    if not lowest < inf:
        assert not isnan(lowest), "a price is NaN"
        return None
    limit = lowest + TIE * abs(lowest)
    if len(ranked) == 1 or ranked[1][0] > limit:
        return ranked[0]
    tied = ranked  # as where all are idle
    if ranked[-1][0] > limit:
        tied = [each for each in ranked if each[0] <= limit]
    drawn = list(map(weights, repeat(key), map(_hash_of, tied)))
    return tied[drawn.index(max(drawn))]


def _timing(request: RequestView, candidates: Candidates, row: int) -> Timing[float]:
    """Time on the candidate of a row, of many."""
    return candidates.timings(request.prompt_tokens, (candidates.slow.prices_at(row),))[0]


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
    timing = timings[row] if timings else _timing(request, candidates, row)
    return (row, timing) if timing.safe_tokens >= cheapest.safe_tokens else None


def _reason(candidates: Candidates, timings: list[Timing[float]], chosen: Timing[float], row: int) -> Reason:
    slow = candidates.slow
    if slow.spills is not None:
        steps = slow.spills.steps.item(row)
        if steps:
            return Reason.SPILLED_UP if steps > 0 else Reason.SPILLED_DOWN
    if len(slow.slots) == 1:
        return ONLY
    if chosen.fetched_tokens:
        return Reason.FETCHED
    if not candidates.matches:
        return COLD
    if chosen.safe_tokens >= candidates.deepest_tokens:
        return AFFINITY  # before all candidates are gone through
    if timings:
        longest = max([timing.safe_tokens - timing.fetched_tokens for timing in timings])
    else:
        longest = candidates.safe_tokens.max().item()
    return _by_match(candidates, chosen.safe_tokens, longest)


def _by_match(candidates: Candidates, safe_tokens: float, longest: float) -> Reason:
    """Reason for a worker by its match and the longest one of a candidate; both count without a fetch."""
    if longest <= 0.0:
        return COLD
    if safe_tokens >= longest or safe_tokens >= candidates.deepest_tokens:
        return AFFINITY
    return BALANCED
