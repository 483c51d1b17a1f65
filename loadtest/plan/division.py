"""Divisions of a fleet's workers by the length of requests.

Every bucket has workers of its own, by its share of the least possible prefill work: prompts behind the
content of an infinite cache of the bucket. A conversation that grows out of its bucket restarts in the
next one. A bucket with more of that work than time is excluded, since a percentile over all requests need not
show it.

    requests in  0-64K  64K-256K  256K-1M     divisions
                   x       x         x        0-64K, 64K-256K, 256K-1M;  0-64K, 64K-1M;  0-256K, 256K-1M
                   x                 x        0-64K, 64K-1M
                           x                  none
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.least_work import least_work_s, shared_out
from loadtest.simulator.utilisation import least_utilisation
from loadtest.simulator.workload import SimRequest, Workload
from policies import LengthBuckets

BOUND_STEP_TOKENS = 1 << 20
"""The last bound is a whole multiple of it if requests are longer than all published ranges."""

ENDLESS_TOKENS = 1 << 40
"""A cache that holds everything."""


@dataclass(frozen=True, slots=True)
class Division:
    """Length buckets, and the work in each.

    Attributes:
        tokens_max: Upper bounds, ascending, tokens of prompt plus expected output.
        works_s: Least seconds of prefill in each, > 0.
        span_s: Seconds in which the requests come, > 0.
    """

    tokens_max: tuple[int, ...]
    works_s: tuple[float, ...]
    span_s: float

    @property
    def workers_min(self) -> int:
        """The fewest workers with which every bucket has enough for its work."""
        return sum(int(work_s / self.span_s) + 1 for work_s in self.works_s)

    @property
    def label(self) -> str:
        """Name in tables."""
        return ", ".join(LengthBuckets(self.tokens_max).names)

    def bucket_workers(self, workers: int) -> tuple[tuple[int, int], ...]:
        """Division of ``workers``, at least one per bucket, as in `SimulationConfig`."""
        return tuple(zip(self.tokens_max, shared_out(workers, self.works_s), strict=True))


def divisions(
    workloads: Sequence[Workload], engine: EngineProfile, expected_output_tokens: int, *, speed: float = 1.0
) -> list[Division]:
    """Return divisions into two or more of the published ranges with requests, the most buckets first.

    ``workloads`` are one per seed; ``speed`` divides their starts and delays.
    """
    orders = [workload.in_order() for workload in workloads]
    longest = max(request.tokens for order in orders for request in order) + expected_output_tokens
    *lower, last = LengthBuckets().tokens_max
    every = LengthBuckets((*lower, max(last, -(-longest // BOUND_STEP_TOKENS) * BOUND_STEP_TOKENS)))
    used = {every.index(request.tokens + expected_output_tokens) for order in orders for request in order}
    *inner, end = (bound for number, bound in enumerate(every.tokens_max) if number in used)
    span_s = sum(_span_s(workload, engine, speed) for workload in workloads)
    made = []
    for count in range(len(inner), 0, -1):
        for chosen in combinations(inner, count):
            buckets = LengthBuckets((*chosen, end))
            works_s = [0.0] * len(buckets.tokens_max)
            for workload, order in zip(workloads, orders, strict=True):
                parts: list[list[SimRequest]] = [[] for _ in works_s]
                for request in order:
                    index = buckets.index(request.tokens + expected_output_tokens)
                    assert index is not None
                    parts[index].append(request)
                for index, part in enumerate(parts):
                    works_s[index] += least_work_s(part, engine.prefill, block_tokens=workload.block_tokens)
            made.append(Division(buckets.tokens_max, tuple(works_s), span_s))
    return made


def _span_s(workload: Workload, engine: EngineProfile, speed: float) -> float:
    """Time until the last arrival if no request waits: the least work over its share of the time."""
    work_s = least_work_s(workload.in_order(), engine.prefill, block_tokens=workload.block_tokens)
    return work_s / least_utilisation(workload, engine, 1, capacity_tokens=ENDLESS_TOKENS, speed=speed)
