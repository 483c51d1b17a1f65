"""Followers: requests whose prefix another request is just prefilling on the worker that they would go to.

The tree holds a prompt from the moment it is placed (`policies.fleet.fleet`), so requests with the same start
meet on one worker, and a follower is priced as if it found its *leader*'s blocks. The engine decides
whether it does (wire.md 2):

* vLLM shares blocks that are being prefilled. A follower may go at once.
* SGLang matches a request when it takes it into a step, and inserts what a step computed after it. A follower
  taken into the *same step* as the last part of its leader computes that part again.

SGLang's ``PrefillAdder`` (managers/schedule_policy.py): a step takes up to ``chunked_prefill_size`` tokens,
the rest of a prompt begun before first, then waiting requests in order.

    leader         step 1       step 2       step 3           the follower joins step 3,
    |######| + |######| + |###.. follower|                    and computes ### again

    leader fits into one step and has begun    the follower joins the next step, and finds everything
    leader fits into one step and waits        the same step: all of the leader's part is computed twice
    leader takes several steps                 the last one, which has room left: its part is computed twice

With ``--schedule-policy lpm`` SGLang lets followers of a waiting leader go last
(``IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD``), which may still be the same step.

`policies.scoring.placement` has compared other workers already. Here the sooner of two ways is taken:

    now    V + s(u + m, c - m)                m   tokens that would be computed twice
    wait   V + s(u, c) + `HANDOVER_S`         the engine idles until the follower arrives

The wait ends with the leader's first token, or when the leader takes much longer than predicted
(`LATE_FACTOR`); a worker beyond its target backlog gives room to no request anyway.
"""

from collections.abc import Callable

from policies.state.loads import Loads, Reservation
from radix import HASH_BYTES, common_blocks

HANDOVER_S = 0.01
"""Seconds from a leader's first token to its follower in the engine: the log, a decision and the network."""

LATE_FACTOR, LATE_S = 2.0, 0.1
"""A worker is not waited for if its oldest prefill takes longer than this multiple of its prediction plus
these seconds."""


Service = Callable[[float, float], float]


def repeated_blocks(
    loads: Loads, slot: int, path: bytes, safe_blocks: int, step_blocks: float, now_us: int
) -> float:
    """Blocks that a request would compute on a worker although a leader is computing them there.

    ``safe_blocks`` is its predicted match, as if all leaders were done. Paths are chained hashes: two prompts
    that agree in one agree in all before.
    """
    head = loads.head(slot, now_us)
    if head is None or head.elapsed_s > LATE_FACTOR * head.service_s + LATE_S:
        return 0.0
    repeated = 0.0
    for request_id, leader in loads.prefills(slot):
        first = leader.safe_blocks
        if first < safe_blocks and leader.path and _block(leader.path, first) == _block(path, first):
            common = min(common_blocks(leader.path, path, 0), safe_blocks)
            begun = request_id == head.request_id if head.request_id else leader.at_us == head.placed_us
            begins = _last_step(leader, step_blocks, begun=begun)
            repeated = max(repeated, common - begins)
    return repeated


def waits_for_leader(
    repeated_tokens: float, safe_tokens: float, uncached_tokens: float, service_s: Service
) -> bool:
    """True if a follower is sooner if it waits for its leader's first token; m, c, u and s(u, c) as above."""
    repeated_tokens = min(repeated_tokens, safe_tokens)
    if repeated_tokens <= 0:
        return False
    at_once_s = service_s(uncached_tokens + repeated_tokens, safe_tokens - repeated_tokens)
    return at_once_s > service_s(uncached_tokens, safe_tokens) + HANDOVER_S


def _last_step(leader: Reservation, step_blocks: float, *, begun: bool) -> float:
    """First block of a leader's last step, which others may join; its end, if none may."""
    blocks = len(leader.path) // HASH_BYTES
    uncached = blocks - leader.safe_blocks
    if uncached <= step_blocks:
        return blocks if begun else leader.safe_blocks
    steps = uncached / step_blocks
    return leader.safe_blocks + (steps // 1.0 if steps % 1.0 else steps - 1.0) * step_blocks


def _block(path: bytes, number: int) -> bytes:
    return path[HASH_BYTES * number : HASH_BYTES * (number + 1)]
