"""Explains a decision: every candidate's price and margin, and the workers that were no candidates.

    rehearse ──> ScoredRequest ──`policies.priced`──> costs of each side ──order──> the first of them
        └──> outcome ──`router.explaining.verdict`──> one word, one sentence

The same function prices the same view as in the decision. Cost: O(candidates) vector operations, one pass
over the other workers, and some 20 us for each candidate shown.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from policies import (
    Candidates,
    Decision,
    Policy,
    RequestView,
    ScoredRequest,
    Shed,
    cheapest_row,
    priced,
)
from policies.disaggregation import ScoredPair
from router.explaining.non_candidates import Absence, NonCandidate, bystanders
from router.explaining.plain_words import Candidate, DecodeCandidate, explained, lost_because, seconds
from router.explaining.rehearsal import Rehearsed
from router.explaining.verdict import Verdict
from router.gateway.gateway import Gateway

LIMIT = 50
"""Default number of candidates, decode workers and others shown."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one decision.

    Attributes:
        candidates: In order, the chosen one first; ``omitted`` were left out.
        omitted_costs: Their least and greatest finite cost; None without any.
        decoders: Candidates for the decode.
        bystanders: Workers that were no candidates.
        bystanders_omitted: Number of those left out, by reason.
        side: The reason for the prefill's side of a link; empty if there was no choice.
    """

    rehearsed: Rehearsed
    verdict: Verdict
    candidates: list[Candidate]
    omitted: int
    omitted_costs: tuple[float, float] | None
    decoders: list[DecodeCandidate]
    decoders_omitted: int
    bystanders: list[NonCandidate]
    bystanders_omitted: dict[Absence, int]
    side: str


@dataclass(frozen=True, slots=True)
class _Priced:
    """The candidates whose KV crosses one link (or none), priced; ``order`` has rows, best first."""

    link: str
    workers: Candidates
    costs: NDArray[np.float64]
    order: NDArray[np.intp]


def explain(gateway: Gateway, rehearsed: Rehearsed, limit: int = LIMIT) -> Explanation:
    """Explain a decision just made, without awaiting; show ``limit`` candidates and others at most."""
    scored = rehearsed.scored
    by_site = [] if scored is None else _priced_sides(gateway, scored)
    shown = [] if scored is None else _shown(gateway, scored, by_site, rehearsed, limit)
    slots = frozenset(chain.from_iterable(side.workers.slots.tolist() for side in by_site))
    others = bystanders(gateway, rehearsed, slots)
    named = list(islice(others, limit))
    omitted = len(slots) - len(shown)
    partners, partners_omitted = _decoders(gateway, rehearsed, limit)
    next_best = f"{shown[1].worker_id}: {shown[1].lost_because}" if len(shown) > 1 else ""
    return Explanation(
        rehearsed,
        Verdict(gateway, rehearsed, next_best),
        shown,
        omitted,
        _range(by_site, shown) if omitted else None,
        partners,
        partners_omitted,
        named,
        Counter(other.absence for other in others),
        explained(scored.verdict) if isinstance(scored, ScoredPair) and scored.verdict is not None else "",
    )


def _priced_sides(gateway: Gateway, scored: ScoredRequest) -> list[_Priced]:
    if not isinstance(scored, ScoredPair) or scored.by_site is None:
        return [_priced(scored.view, "", scored.candidates, scored.policy)]
    parts = [("", scored.by_site.local), *((side.link, side.slots) for side in scored.by_site.remote)]
    chosen = scored.candidates.slots.item(0)
    by_site = [
        _priced(scored.view, link, gateway.fleet.among(scored.everyone, slots, scored.bucket), scored.policy)
        for link, slots in parts
        if len(slots)
    ]
    return sorted(by_site, key=lambda side: not (side.workers.slots == chosen).any())


def _priced(view: RequestView, link: str, candidates: Candidates, policy: Policy) -> _Priced:
    workers, prices, _ = priced(view, candidates, policy)
    costs = np.asarray(prices, dtype=np.float64)
    order = costs.argsort(kind="stable")
    first = cheapest_row(view.key, workers.worker_hash, costs)
    if first is not None:
        order = np.concatenate(([first], order[order != first]))
    return _Priced(link, workers, costs, order)


def _shown(
    gateway: Gateway, scored: ScoredRequest, by_site: list[_Priced], rehearsed: Rehearsed, limit: int
) -> list[Candidate]:
    """Return the first candidates, the best of each side, and the one at its turn."""
    outcome = rehearsed.outcome
    turn = outcome.attempt.chosen.slot if isinstance(outcome, Decision) else -1
    shown: list[Candidate] = []
    before = 0
    for number, side in enumerate(by_site):
        taken = max(limit - before, 1)
        rows = side.order[:taken].tolist()
        own = (side.workers.slots == turn).nonzero()[0].tolist()
        rows += [row for row in own if row not in rows]
        best: Candidate | None = None
        for index, row in enumerate(rows):
            if index >= taken:
                index = int((side.order == row).nonzero()[0].item())
            one = _candidate(gateway, scored, side, row, 1 + before + index)
            best = best or one
            if one is not best:
                one.lost_because = lost_because(one, best, scored.policy)
            elif number:
                one.lost_because = "its side of the link was not chosen"
            else:
                one.chosen = one.cost < inf
            shown.append(one)
        before += len(side.order)
    return shown


def _candidate(gateway: Gateway, scored: ScoredRequest, side: _Priced, row: int, rank: int) -> Candidate:
    workers, policy = side.workers, scored.policy
    decode_view = scored.decode_view if isinstance(scored, ScoredPair) else None
    prices = workers.slow.prices_at(row)
    timing = workers.timings(scored.view.prompt_tokens, (prices,))[0]
    slot, now_us = timing.slot, workers.now_us
    ttft_s = timing.ready_s + timing.work_s
    cost = side.costs.item(row)
    priced = policy.price is not None and cost < inf
    saved_s = float(timing.saved_s) if priced else 0.0
    lost_s = max(cost + saved_s - ttft_s, 0.0) if priced else 0.0
    evict_s = min(float(timing.evict_s), lost_s)
    room_s = 0.0 if decode_view is None else decode_view.wait_s(slot)
    spills = workers.slow.spills
    has_room = gateway.placing.admission.has_room(slot, now_us) and (
        decode_view is None or decode_view.has_room(slot)
    )
    return Candidate(
        worker_id=gateway.fleet.at_slot(slot).worker_id,
        rank=rank,
        chosen=False,
        cost=cost,
        lost_because="",
        matched_tokens=round(workers.matched_tokens_at(slot)),
        safe_tokens=round(timing.safe_tokens),
        fetched_tokens=round(timing.fetched_tokens),
        uncached_tokens=round(scored.view.prompt_tokens - timing.safe_tokens),
        backlog_s=workers.loads.backlog_at_s(slot, now_us),
        fetch_s=timing.fetch_s,
        room_s=room_s,
        queue_s=timing.ready_s,
        service_s=timing.service_s,
        transfer_s=timing.transfer_s,
        spill_s=timing.spill_s,
        stall_s=timing.stall_s,
        work_s=timing.work_s,
        ttft_s=ttft_s - timing.stall_s - timing.spill_s,
        overtaken=float(timing.behind),
        later_s=lost_s - evict_s,
        evict_s=evict_s,
        saved_s=saved_s,
        has_room=has_room,
        bucket_steps=0 if spills is None else spills.steps.item(row),
        link=side.link,
    )


def _range(by_site: list[_Priced], shown: list[Candidate]) -> tuple[float, float] | None:
    ranks = {candidate.rank for candidate in shown}
    before, left = 0, []
    for side in by_site:
        hidden = [place_of for place_of in range(len(side.order)) if 1 + before + place_of not in ranks]
        left.append(side.costs[side.order[hidden]])
        before += len(side.order)
    costs = np.concatenate(left)
    costs = costs[np.isfinite(costs)]
    return (costs.min().item(), costs.max().item()) if len(costs) else None


def _decoders(gateway: Gateway, rehearsed: Rehearsed, limit: int) -> tuple[list[DecodeCandidate], int]:
    """Return the candidates for the decode, none if one worker does all, and the number left out."""
    scored, outcome = rehearsed.scored, rehearsed.outcome
    if not isinstance(scored, ScoredPair):
        return [], 0
    chosen = outcome.attempt.chosen if isinstance(outcome, Decision) else scored.first
    if isinstance(chosen, Shed) or not scored.decode_view.splits(chosen.slot):
        return [], 0
    partners = scored.decode_view.partners(chosen)
    first_cost, first = partners[0]
    winner = gateway.fleet.at_slot(first.slot).worker_id
    shown = []
    for rank, (cost, partner) in enumerate(partners[:limit], 1):
        won = rank == 1 and cost < inf
        lost = ""
        if cost == inf:
            lost = f"it has no room for {seconds(partner.wait_s)}, and another has"
        elif not won and cost - first_cost <= 1e-9 * abs(first_cost):
            lost = f"it costs the same; hashing of the prompt gave it to {winner}"
        elif not won:
            lost = f"it costs {cost:,.6g} against {first_cost:,.6g} of {winner}"
            if partner.tpot_s > first.tpot_s:
                lost += f"; a token takes {seconds(partner.tpot_s)} there against {seconds(first.tpot_s)}"
        shown.append(
            DecodeCandidate(
                gateway.fleet.at_slot(partner.slot).worker_id,
                rank,
                won,
                cost,
                lost,
                partner.wait_s,
                partner.transfer_s,
                partner.tpot_s,
                round(partner.cached_tokens),
            )
        )
    return shown, len(partners) - len(shown)
