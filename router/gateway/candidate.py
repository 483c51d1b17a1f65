"""Workers as an explanation shows them: what the policy saw of each, in seconds and tokens."""

from dataclasses import dataclass

import msgspec

from policies import DecodePartner


class Candidate(msgspec.Struct, gc=False):
    """One worker that might take the request; times in seconds.

    Attributes:
        worker_id: Which.
        rank: Its place in the order of the policy, from 1; on the side of a link that was not chosen, behind
            all of the one that was.
        link: What its KV would cross; empty for none.
        chosen: Whether the policy chose it.
        cost: What the policy says, in its own unit; +inf is not considered.
        matched_tokens: Prefix match.
        safe_tokens: Window-safe match, with what it would fetch.
        fetched_tokens: Of these, what it would fetch.
        uncached_tokens: What it would prefill.
        backlog_s: V: prefill reserved there by all replicas.
        fetch_s: F: what it would fetch, beside the backlog.
        room_s: W: until a decode worker has room for the KV.
        queue_s: V' = max(V + A, F, W), A being the work of waiting requests that go first.
        overtaken: Waiting requests that would go behind it.
        service_s: s: its prefill.
        transfer_s: X: exposed transfer.
        spill_s: P: what leaving the length bucket costs.
        stall_s: What the requests lose that decode there.
        work_s: x = s + X + P, with what they lose.
        ttft_s: Predicted time to first token.
        later_s: What waiting and later requests lose, if the policy prices that.
        evict_s: Of the cost, what is expected to be computed again for others that it pushes out of the
            cache.
        has_room: Whether it may be given more now.
        bucket_steps: How many length buckets it is away; 0 at home.
        lost_because: In words; empty for the chosen one.
    """

    worker_id: str
    rank: int
    link: str
    chosen: bool
    cost: float
    matched_tokens: int
    safe_tokens: int
    fetched_tokens: int
    uncached_tokens: int
    backlog_s: float
    fetch_s: float
    room_s: float
    queue_s: float
    overtaken: float
    service_s: float
    transfer_s: float
    spill_s: float
    stall_s: float
    work_s: float
    ttft_s: float
    later_s: float
    evict_s: float
    has_room: bool
    bucket_steps: int
    lost_because: str = ""


@dataclass(frozen=True, slots=True)
class DecodeCandidate:
    """One worker that might decode what the chosen one prefills.

    Attributes:
        worker_id: Which.
        rank: Its place, from 1.
        chosen: Whether it was chosen.
        cost: In the unit of the decode policy; +inf is not considered.
        partner: What is known of it.
        lost_because: In words; empty for the chosen one.
    """

    worker_id: str
    rank: int
    chosen: bool
    cost: float
    partner: DecodePartner
    lost_because: str = ""
