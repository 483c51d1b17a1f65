"""KV cache that several workers share: an L3 pool behind their own memory.

A pool is a holder in the prefix tree, like a worker, but takes no requests: prefilled prompts are written
through to a worker's pool, and every worker of the pool may fetch them instead of computing (HiCache's L3,
Mooncake Store, GCache of the MiMo-V2.5 paper, 3.1.4). A fetch is priced in seconds like everything else
(`policies.pricing.views`): it overlaps the worker's backlog.

A prompt enters its pool when its prefill is over, not when it is placed: until then it cannot be fetched. So
a placement is kept until the end of its prefill is known (`PoolWrites`), in either order.

A worker's pool is its label ``cache_pool``; without the label it belongs to the pool ``*``. A name without a
`CachePool` is no pool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from policies.declared import setting
from policies.pricing.views import Pools
from policies.state.loads import Loads
from policies.state.ops import Placed

PATIENCE = {"best_effort": 0.0, "timeout": 1.0, "wait_complete": inf}
"""Wait of an engine for a fetch, relative to that of ``timeout`` (`policies.estimates.fetch_times`)."""

POOL_LABEL, ANY_POOL = "cache_pool", "*"

HOLDER = "pool/"
"""Prefix of a pool's name among worker ids; no worker id holds a slash before its port."""


@dataclass(frozen=True)
class CachePool:
    """A KV cache that several workers share (L3): the value type of placement.cache_pools.

    The defaults are those of a store on RDMA: HiCache prefetches 256 tokens or more
    (SGLang, ``--hicache-storage-prefetch-threshold``), and 5 GB/s of 100 KB tokens are 50,000 tokens/s.
    """

    capacity_tokens: int = setting(0, "Capacity in tokens; 0 for no bound.", ge=0)
    fetch_base_s: float = setting(0.005, "Time before a fetch brings anything, in seconds.", ge=0)
    fetch_tokens_per_s: float = setting(50_000.0, "Tokens a second that come to one worker.", gt=0)
    fetch_tokens_min: int = setting(256, "Engines do not fetch fewer tokens.", ge=1)
    prefetch_policy: Literal["timeout", "best_effort", "wait_complete"] = setting(
        "timeout", "Rule that stops a fetch, as SGLang's --hicache-storage-prefetch-policy names it."
    )


class PoolMembers:
    """Pools of the workers: ``slots`` maps a worker's slot to its pool's."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self._pools: dict[int, CachePool] = {}
        self.factors: dict[int, float] = {}
        """By slot of a pool, the learned time of a fetch relative to its settings."""

    def join(self, slot: int, pool_slot: int, pool: CachePool) -> None:
        """Put a worker into this pool, and no other."""
        self.slots[slot] = pool_slot
        self._pools[slot] = pool

    def leave(self, slot: int) -> None:
        """Take a worker out of its pool."""
        self.slots.pop(slot, None)
        self._pools.pop(slot, None)

    def columns(self, slots: list[int]) -> Pools | None:
        """The pools of these workers as columns; None if none of them has one."""
        if self.slots.keys().isdisjoint(slots):
            return None
        pools = [self._pools.get(slot) for slot in slots]
        return Pools(
            np.array([self.slots.get(slot, slot) for slot in slots], dtype=np.intp),
            np.array([pool.fetch_base_s if pool else 0.0 for pool in pools]),
            np.array(
                [
                    self.factors.get(self.slots[slot], 1.0) / pool.fetch_tokens_per_s if pool else 0.0
                    for slot, pool in zip(slots, pools, strict=True)
                ]
            ),
            np.array([float(pool.fetch_tokens_min) if pool else np.inf for pool in pools]),
            np.array([PATIENCE[pool.prefetch_policy] if pool else np.inf for pool in pools]),
        )


UNWRITTEN_MAX = 100
"""Placements with their paths in one piece of a snapshot: 450 KB of prompts of 128K tokens."""


WAIT_US_MAX = 600_000_000
"""Ten minutes: the prompt of a prefill that takes longer is not expected in the pool."""


class PoolWrites:
    """Prompts that go into a pool when their prefill is over.

    Args:
        loads: Knows the requests in flight, and those prefilled.
        write: Called with the placement and the pool's slot.
    """

    def __init__(self, loads: Loads, write: Callable[[Placed, int], None]) -> None:
        self._loads = loads
        self._write = write
        self._waiting: dict[str, tuple[Placed, int]] = {}

    def placed(self, op: Placed, pool_slot: int) -> None:
        """Note a placement on a worker of the pool, after `Loads` has seen it."""
        if not any(op.paths):
            return
        prefilled = self._loads.prefilled(op.request_id)
        if prefilled:
            self._write(op, pool_slot)
        elif not self._loads.has_finished(op.request_id) and op.at_us > self._loads.left_us(op.replica):
            self._waiting[op.request_id] = op, pool_slot

    def ended(self, request_id: str) -> None:
        """Note the first token or the end of a request, after `Loads` has seen it."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and self._loads.prefilled(request_id):
            self._write(*waiting)

    def unwritten(self) -> list[Placed]:
        """Return the newest placements whose prompts go into a pool later, for who starts meanwhile."""
        return [op for op, _ in list(self._waiting.values())[-UNWRITTEN_MAX:]]

    def collect(self, now_us: int) -> None:
        """Forget the requests of replicas that left, and those that were placed too long ago."""
        left_us, oldest_us = self._loads.left_us, now_us - WAIT_US_MAX
        self._waiting = {
            request_id: (op, slot)
            for request_id, (op, slot) in self._waiting.items()
            if op.at_us > max(left_us(op.replica), oldest_us)
        }
