"""Followers: requests whose prefix another one is just prefilling on the worker that they would go to.

The tree holds a prompt from the moment it is placed (`policies.fleet.fleet`), so that those with the same
start meet on one worker, and a follower is priced as if it found what its *leader* prefills. Whether it does
depends on the engine (wire.md 2):

* vLLM shares blocks that are being prefilled. A follower may go at once.
* SGLang matches a request when it takes it into a step, and inserts what a step computed after it. A follower
  taken into the *same step* as the last part of its leader computes that part again.

When is it taken into the same step (SGLang managers/schedule_policy.py ``PrefillAdder``: a step takes up to
``chunked_prefill_size`` tokens, the rest of a prompt begun before first, then those that wait in order)?

    leader         step 1       step 2       step 3           the follower joins step 3,
    |######| + |######| + |###.. follower|                    and computes ### again

    fits into one step and is at it     never: the follower joins the next step, and finds everything
    fits into one step and waits        the same step: all of the leader's part is computed twice
    takes several steps                 the last one, which has room left: its part is computed twice

SGLang lets a follower of one that waits go last, but only if it sorts by length of match (``--schedule-policy
lpm``; ``IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD``), and last may be the same step.

So a follower has three ways: go now, and perhaps compute a part twice; wait for the leader's first token, and
compute nothing twice; or go elsewhere. The last one was weighed already: `policies.scoring.placement`
compared what it costs here, the leader's time included, with what it costs elsewhere. Of the other two the
sooner is:

    now    V + s(u + m, c - m)                m   what would be computed twice
    wait   V + s(u, c) + `HANDOVER_S`         the engine finds nothing to do until the follower arrives

The wait is short and bounded: it ends with the leader's first token, or when the leader takes much longer
than predicted (`LATE_FACTOR`), and a worker whose backlog is beyond its target gives nobody room anyway. It
holds nothing from an idle worker: the follower would only wait in the engine instead.
"""

from collections.abc import Callable

from policies.state.loads import Loads, Reservation

HASH_BYTES = 8
"""Of a block in a path."""

HANDOVER_S = 0.01
"""From a leader's first token to its follower in the engine: the log, a decision and the network."""

LATE_FACTOR, LATE_S = 2.0, 0.1
"""A worker whose oldest prefill takes longer than so many times its prediction, and so many seconds, is not
waited for."""


Service = Callable[[float, float], float]


def repeated_blocks(
    loads: Loads, slot: int, path: bytes, safe_blocks: int, step_blocks: float, now_us: int
) -> float:
    """What a request would compute on a worker although a leader is computing it there.

    Args:
        loads: Who is prefilling.
        slot: Of the worker.
        path: Packed block hashes of the request, chained: two prompts that agree in one agree in all before.
        safe_blocks: What it is predicted to find, as if all leaders were done.
        step_blocks: What the engine prefills in a step.
        now_us: Log time.
    """
    head = loads.head(slot, now_us)
    if head is None or head.elapsed_s > LATE_FACTOR * head.service_s + LATE_S:
        return 0.0
    repeated = 0.0
    for request_id, leader in loads.prefills(slot):
        first = leader.safe_blocks
        if first < safe_blocks and leader.path and _block(leader.path, first) == _block(path, first):
            common = min(_common_blocks(leader.path, path, first), safe_blocks)
            begins = _last_step(leader, step_blocks, begun=request_id == head.request_id)
            repeated = max(repeated, common - begins)
    return repeated


def waits_for_leader(
    repeated_tokens: float, safe_tokens: float, uncached_tokens: float, service_s: Service
) -> bool:
    """Whether a follower is sooner if it waits for its leader's first token.

    Args:
        repeated_tokens: m: what it would compute twice.
        safe_tokens: c: what it would find after the wait.
        uncached_tokens: u: what is left then.
        service_s: Seconds to prefill so many tokens behind so many (`policies.ServiceModel.service_s`).
    """
    repeated_tokens = min(repeated_tokens, safe_tokens)
    if repeated_tokens <= 0:
        return False
    at_once_s = service_s(uncached_tokens + repeated_tokens, safe_tokens - repeated_tokens)
    return at_once_s > service_s(uncached_tokens, safe_tokens) + HANDOVER_S


def _last_step(leader: Reservation, step_blocks: float, *, begun: bool) -> float:
    """Block with which a leader's last step begins, that others may join; its end, if none may."""
    blocks = len(leader.path) // HASH_BYTES
    uncached = blocks - leader.safe_blocks
    if uncached <= step_blocks:
        return blocks if begun else leader.safe_blocks
    steps = uncached / step_blocks
    return leader.safe_blocks + (steps // 1.0 if steps % 1.0 else steps - 1.0) * step_blocks


def _block(path: bytes, number: int) -> bytes:
    """One hash of a path; empty beyond its end."""
    return path[HASH_BYTES * number : HASH_BYTES * (number + 1)]


def _common_blocks(path: bytes, other: bytes, known: int) -> int:
    """How many leading blocks two paths share, more than ``known``; by bisection, since they are chained."""
    low, high = known + 1, min(len(path), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if _block(path, middle - 1) == _block(other, middle - 1):
            low = middle
        else:
            high = middle - 1
    return low
