"""Candidates and decisions in plain words, for an operator at night.

Sentences compare seconds with seconds and tokens with tokens, and name the worker. They decide nothing and
can be checked against the figures beside them.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from policies import Policy, Reason
from policies.disaggregation import OffloadVerdict

NOTICED_S = 5e-5
"""A shorter difference is not mentioned, although costs to nine digits decide."""

REASONS = {
    Reason.ONLY: "is the only candidate",
    Reason.SESSION: "served the session last, costs little more than the cheapest and has as much cached",
    Reason.COLD: "is the policy's choice; no candidate has any start of the prompt cached",
    Reason.AFFINITY: "is the policy's choice, and has the longest start of the prompt cached",
    Reason.BALANCED: "is the policy's choice, although another has more of the prompt cached",
    Reason.FETCHED: "is the policy's choice, with the tokens that it fetches from its shared cache",
    Reason.SPILLED_UP: "is of a longer length bucket, and cheaper than those of its own",
    Reason.SPILLED_DOWN: "is of a shorter length bucket, and cheaper than those of its own",
}


class Candidate(
    msgspec.Struct,
    gc=False,
    rename={"worker_id": "worker", "service_s": "prefill_s", "work_s": "x_s", "later_s": "later_requests_s"},
):
    """A worker that might take the request; times in seconds. ``POST /explain`` has the new names.

    Attributes:
        rank: In the order of the policy, from 1; the other side of a link comes behind the chosen one.
        link: Crossed by its KV; empty for none.
        cost: In the policy's own unit; +inf is not considered.
        matched_tokens, safe_tokens: Prefix match; the window-safe part, with ``fetched_tokens``.
        backlog_s: V: prefill reserved there by all replicas.
        fetch_s: F: the fetch, beside the backlog.
        room_s: W: until a decode worker has room for the KV.
        queue_s: V' = max(V + A, F, W), A being the work of the ``overtaken`` waiting requests that go first.
        service_s, transfer_s, spill_s: s: its prefill; X: exposed transfer; P: price of leaving the length
            bucket.
        stall_s: Lost by the requests that decode there.
        work_s: x = s + X + P + stall.
        ttft_s: Predicted time to first token.
        later_s: Seconds lost by waiting and later requests, if the policy prices that.
        evict_s: Expected recomputation of evicted blocks, a part of the cost.
        saved_s: Taken off the cost: seconds that later requests save by a copy of a hot prefix.
        bucket_steps: Distance in length buckets; 0 at home.
    """

    worker_id: str
    rank: int
    chosen: bool
    cost: float
    lost_because: str
    matched_tokens: int
    safe_tokens: int
    fetched_tokens: int
    uncached_tokens: int
    backlog_s: float
    fetch_s: float
    room_s: float
    queue_s: float
    service_s: float
    transfer_s: float
    spill_s: float
    stall_s: float
    work_s: float
    ttft_s: float
    overtaken: float
    later_s: float
    evict_s: float
    saved_s: float
    has_room: bool
    bucket_steps: int
    link: str


class DecodeCandidate(msgspec.Struct, frozen=True, gc=False, rename={"worker_id": "worker"}):
    """A worker that might decode the chosen one's prefill.

    ``cost`` is in the unit of the decode policy; +inf is not considered. ``room_s`` is the time until it has
    room for the KV, ``transfer_s`` exposed.
    """

    worker_id: str
    rank: int
    chosen: bool
    cost: float
    lost_because: str
    room_s: float
    transfer_s: float
    tpot_s: float
    cached_tokens: int


def seconds(value: float) -> str:
    """Return a time in words, to its significant digits."""
    if value >= 0.0995:
        return f"{value:,.2f} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-6 else "0 s"


def listed(parts: Iterable[str]) -> str:
    """Join parts of a sentence."""
    every = list(parts)
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def lost_because(one: Candidate, winner: Candidate, policy: Policy) -> str:
    """Return the reason why a candidate lost against the winner."""
    if one.cost == inf:
        return f"it {policy.left_out or 'is not considered by the policy'}"
    more = one.cost - winner.cost
    if more <= 1e-9 * abs(winner.cost):
        text = f"it costs the same; hashing of the prompt gave it to {winner.worker_id}"
    elif policy.price is not None:
        return _by_seconds(one, winner, more)
    else:
        against = f"{one.cost:,.6g} against {winner.cost:,.6g} of {winner.worker_id}"
        text = f"{against} ({policy.unit}; the least wins)"
    later_s = one.ttft_s - winner.ttft_s
    if policy.price is not None or abs(later_s) < NOTICED_S:
        return text
    which = "later" if later_s > 0 else "sooner"
    return f"{text}; by the service-time model it would answer {seconds(abs(later_s))} {which}"


def _by_seconds(one: Candidate, winner: Candidate, more_s: float) -> str:
    tokens = abs(one.uncached_tokens - winner.uncached_tokens)
    prefill = f"of prefill ({tokens:,} uncached tokens)" if tokens else "of prefill"
    own = (
        (one.queue_s - winner.queue_s, "of queue"),
        (one.service_s - winner.service_s, prefill),
        (one.transfer_s - winner.transfer_s, "of transfer"),
    )
    others = (
        (one.spill_s - winner.spill_s, "for leaving the length bucket"),
        (one.stall_s - winner.stall_s, "that requests decoding there lose"),
        (one.later_s - winner.later_s, "that waiting and later requests lose"),
        (one.evict_s - winner.evict_s, "to compute the blocks again that it pushes out of the cache"),
        (winner.saved_s - one.saved_s, "that a copy of a hot prefix would save others"),
    )
    parts = (*own, *others)
    worse = [f"{seconds(part)} {what}" for part, what in parts if part >= NOTICED_S]
    saved = [f"{seconds(-part)} {what}" for part, what in parts if part <= -NOTICED_S]
    alone = all(abs(part) < NOTICED_S for part, _ in others)
    text = f"it would {'be' if alone else 'cost'} {seconds(more_s)} {'later' if alone else 'more'}"
    if worse:
        text += f": {listed(worse)}"
        if saved:
            text += f" against {listed(saved)} saved"
    return text


def explained(verdict: OffloadVerdict) -> str:
    """Explain the side of a link where a request is prefilled, in tokens, seconds and bytes."""
    where = f"over {verdict.link}" if verdict.remote else "locally"
    local = (
        "no worker prefills locally"
        if verdict.local_s < 0
        else f"{verdict.uncached_local:,} uncached tokens take {verdict.local_s:.3f} s locally"
    )
    weight = f"{verdict.kv_bytes / 1e6:,.1f} MB of KV" if verdict.kv_bytes >= 0 else "KV of unknown weight"
    limit = f", threshold {verdict.threshold_tokens:,}" if verdict.threshold_tokens else ""
    alone = ", alone on it since a second cannot take it below the cap" if verdict.above_cap else ""
    return (
        f"prefilled {where} ({verdict.reason.value}): {local}; {verdict.uncached_remote:,} take "
        f"{verdict.remote_s:.3f} s there, {verdict.link_s:.3f} s of it for {weight} on a link that is "
        f"{verdict.state.value} and {verdict.utilisation:.0%} full{alone}{limit}"
    )
