"""Value of time and room: hit rate over a lifetime, and over the capacity of each tier.

    lifetime   one cache without bounds that drops a block that long after its last use
    own        workers with that capacity each, on the device and beyond it in host memory: requests go where
               most of their prompt is
    pool       the same workers without host memory, and one cache behind them that all write and read

No request waits and none is computed twice at once: the limit of the caches, not a fleet's result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.engine.kv.runs import RunStore
from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.identity import HASH_BYTES
from loadtest.simulator.memory import device_tokens
from loadtest.simulator.workload import SimRequest, Workload
from radix import PrefixTree

TTLS_S = (10, 30, 60, 120, 300, 600, 1_200, 3_600, 10_800, 43_200, 86_400)
"""Lifetimes to look at, up to a day."""

DOUBLINGS = (-5, 8)
"""Sizes of a tier: a thirty-second of the devices to 128 times as much, as far as they are worth anything."""

ENOUGH = 0.999
"""Share of the infinite cache's reuse at which a line ends."""

STAYS_RATIO = 0.5
"""Share of a prompt that a worker must hold to get it; else the one with the fewest tokens so far does."""

GIB = 1 << 30

_UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Line:
    """Hit ratios at ascending points: seconds, or GiB of all workers or nodes together."""

    points: Sequence[float]
    hit_ratios: Sequence[float]


@dataclass(frozen=True, slots=True)
class TierValue:
    """Value of time and room.

    Attributes:
        workers: Workers that share the requests.
        device_gib: KV memory of their devices together.
        device_hit_ratio: Of their devices alone.
    """

    workers: int
    infinite_hit_ratio: float
    device_gib: float
    device_hit_ratio: float
    ttl: Line
    own: Line
    pool: Line


def tier_value(
    workload: Workload, engine: EngineProfile, workers: int, infinite_hit_ratio: float
) -> TierValue:
    """Value of time and room for a workload on ``workers`` that take requests."""
    token_s = engine.decode.base_s / engine.decode.mtp_speedup
    arrivals = workload.arrivals(lambda request: request.output_tokens * token_s)
    requests = [request for _, request in arrivals]
    device = device_tokens(engine)
    most = ENOUGH * infinite_hit_ratio

    def tier(own: int, shared: int) -> float:
        return _tier_hits(requests, workload.block_tokens, workers, own, shared)

    def line(points: Iterator[tuple[float, float]]) -> Line:
        found: list[tuple[float, float]] = []
        for point in points:
            found.append(point)
            if point[1] >= most:
                break
        return Line([at for at, _ in found], [ratio for _, ratio in found])

    total_gib = workers * device * engine.shape.token_bytes / GIB
    sizes = [2.0**doubling for doubling in range(*DOUBLINGS)]
    return TierValue(
        workers=workers,
        infinite_hit_ratio=infinite_hit_ratio,
        device_gib=total_gib,
        device_hit_ratio=tier(device, 0),
        ttl=line((ttl_s, _ttl_hits(arrivals, workload.block_tokens, ttl_s)) for ttl_s in TTLS_S),
        own=line((total_gib * size, tier(int(device * size), 0)) for size in sizes),
        pool=line((total_gib * size, tier(device, int(workers * device * size))) for size in sizes),
    )


def _ttl_hits(arrivals: Sequence[tuple[float, SimRequest]], block_tokens: int, ttl_s: float) -> float:
    store = RunStore(_UNBOUNDED, 0, 1, ttl_s=ttl_s)
    hits = prompts = 0
    for at_s, request in arrivals:
        whole = (request.tokens - 1) // block_tokens
        hits += store.reach(b"", request.blocks, 0, whole, at_s)[0] * block_tokens
        prompts += request.tokens
        store.store(b"", request.held, 0, len(request.held) // HASH_BYTES, (), at_s)
    return hits / max(prompts, 1)


def _tier_hits(
    requests: Sequence[SimRequest], block_tokens: int, workers: int, own_tokens: int, shared_tokens: int
) -> float:
    """Hit ratio of workers with ``own_tokens`` each, and a pool behind them."""
    tree, pool = PrefixTree(1 << 40, block_tokens), workers
    for slot in range(workers):
        tree.set_capacity(slot, own_tokens // block_tokens)
    tree.set_capacity(pool, shared_tokens // block_tokens)
    given = [0] * workers
    hits = prompts = 0
    for at_us, request in enumerate(requests, start=1):
        match = tree.match(request.blocks)
        own = [match.matched_at(slot) for slot in range(workers)]
        best = max(range(workers), key=lambda slot: (own[slot], -given[slot]))
        if own[best] * block_tokens < STAYS_RATIO * request.tokens:
            best = given.index(min(given))
        held = max(own[best], match.matched_at(pool) if shared_tokens else 0)
        hits += min(held, (request.tokens - 1) // block_tokens) * block_tokens
        prompts += request.tokens
        given[best] += request.tokens
        tree.insert(best, request.held, at_us, end=False)
        if shared_tokens:
            tree.insert(pool, request.held, at_us, end=False)
    return hits / max(prompts, 1)
