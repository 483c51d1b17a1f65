"""Start of a search: arithmetic of a fleet, without simulation.

    TTFT      with infinite caches and no queue it is the prefill of what is new; a limit below that is
              beyond any fleet of this engine
    prefill   the least possible work (prompts behind what one pooled LRU cache would have held) must take
              less than all the workers' time: with fewer workers queues grow as long as requests come
    decode    a batch may be as large as the engine runs, memory holds and the time per token allows; so many
              tokens per second leave a worker at most

The first two are bounds (the second unless a placement reuses more than a pooled LRU cache would). The last
is a guess: requests do not come evenly.
"""

from math import ceil

import numpy as np

from loadtest.engine.profiles import EngineProfile
from loadtest.plan.objective import Slo
from loadtest.simulator.bounds import infinite_hit_tokens
from loadtest.simulator.least_work import prefills_s
from loadtest.simulator.memory import Memory
from loadtest.simulator.utilisation import least_utilisation
from loadtest.simulator.workload import Workload

NO_MEMORY = Memory()


def ttft_p90_min_s(workload: Workload, engine: EngineProfile) -> float:
    """The 90th percentile of the time to first token with infinite caches and no queue."""
    requests = workload.in_order()
    hits = infinite_hit_tokens(requests, block_tokens=workload.block_tokens)
    return float(np.percentile(prefills_s(requests, hits, engine.prefill), 90))


def prefill_workers_min(
    workload: Workload,
    engine: EngineProfile,
    workers_max: int,
    *,
    memory: Memory = NO_MEMORY,
    speed: float = 1.0,
) -> int | None:
    """Fewest workers, up to ``workers_max``, with idle time beside the least possible prefill work.

    None if too few.

    ``speed`` divides the workload's starts and delays.
    """
    low, high = 0, workers_max + 1
    while high - low > 1:
        middle = (low + high) // 2
        capacity_tokens = memory.capacity_tokens(engine, middle)
        busy = least_utilisation(workload, engine, middle, capacity_tokens=capacity_tokens, speed=speed)
        if busy < 1.0:
            high = middle
        else:
            low = middle
    return high if high <= workers_max else None


def decode_workers_guess(workload: Workload, engine: EngineProfile, slo: Slo, *, speed: float = 1.0) -> int:
    """About how many workers can decode everything in time, at least 1."""
    requests = workload.in_order()
    outputs = np.array([request.output_tokens for request in requests], dtype=np.float64)
    contexts = np.array([request.tokens for request in requests]) + outputs / 2
    # A request in a batch is weighted by its time there.
    context_tokens = float((contexts * outputs).sum() / outputs.sum())
    batch = min(
        float(engine.max_running),
        engine.rules.full_tokens * engine.dp_ranks / context_tokens,
        _batch_in_time(engine, context_tokens, slo.tpot_p90_s),
    )
    tokens_per_s = batch / _token_s(engine, context_tokens, batch)
    duration_s = _duration_s(workload, engine, context_tokens, batch) / speed
    return max(1, ceil(float(outputs.sum()) / (tokens_per_s * duration_s)))


def _token_s(engine: EngineProfile, context_tokens: float, batch: float) -> float:
    decode = engine.decode
    per_request_s = decode.request_s + decode.kv_token_s * context_tokens
    return (decode.base_s + batch * per_request_s) / decode.mtp_speedup


def _batch_in_time(engine: EngineProfile, context_tokens: float, limit_s: float | None) -> float:
    """The largest batch in which a token takes no longer than a limit; 1 if there is none."""
    if limit_s is None:
        return float("inf")
    alone_s = _token_s(engine, context_tokens, 0.0)
    each_s = _token_s(engine, context_tokens, 1.0) - alone_s
    return max((limit_s - alone_s) / each_s, 1.0)


def _duration_s(workload: Workload, engine: EngineProfile, context_tokens: float, batch: float) -> float:
    if not workload.users:
        return max(max(session.start_s or 0.0 for session in workload.sessions), 1.0)
    token_s = _token_s(engine, context_tokens, batch)
    spent_s = sum(request.delay_s + request.output_tokens * token_s for request in workload.requests())
    return max(spent_s / workload.users, 1.0)
