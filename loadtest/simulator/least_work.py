"""The prefill that requests cost where caches do their best, and how workers are shared out by it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.timing import PrefillTiming
from loadtest.simulator.bounds import infinite_hit_tokens
from loadtest.simulator.workload import SimRequest


def prefills_s(
    requests: Sequence[SimRequest], hit_tokens: NDArray[np.int64], prefill: PrefillTiming
) -> list[float]:
    """Seconds to prefill each prompt alone, behind its cached part (`loadtest.simulator.bounds`)."""
    return [
        prefill.prompt_s(request.tokens - hit, hit)
        for request, hit in zip(requests, hit_tokens.tolist(), strict=True)
    ]


def least_work_s(requests: Sequence[SimRequest], prefill: PrefillTiming, *, block_tokens: int) -> float:
    """Seconds of prefill of all of them together, in this order, with one infinite cache."""
    return sum(prefills_s(requests, infinite_hit_tokens(requests, block_tokens=block_tokens), prefill))


def shared_out(workers: int, works_s: Sequence[float]) -> list[int]:
    """Workers in proportion to the work, at least one for each; the busiest part gets the next one."""
    assert workers >= len(works_s)
    shares = [1] * len(works_s)
    for _ in range(workers - len(works_s)):
        busiest = int(np.argmax(np.array(works_s) / np.array(shares)))
        shares[busiest] += 1
    return shares
