"""KV cache that several workers share: an L3 pool behind their own memory.

A pool is a holder in the prefix tree, like a worker, but nobody can be sent to it: what a worker has
prefilled is written through to its pool, and every worker of the pool may fetch it from there instead of
computing it (HiCache's L3, Mooncake Store, GCache of the MiMo-V2.5 paper, 3.1.4). What that is worth is
priced in seconds like everything else (`policies.pricing.views`): the fetch overlaps the worker's backlog.

A prompt enters its pool when its prefill is over, not when it is placed: until then nobody could
fetch it. So what was placed is kept until the end of its prefill is known (`PoolWrites`), in either order.

Which pool a worker belongs to is its label ``cache_pool``; one without the label belongs to the pool ``*``. A
name without a `CachePool` is none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.pricing.views import Pools
from policies.state.loads import Loads
from policies.state.ops import Placed

POOL_LABEL, ANY_POOL = "cache_pool", "*"

HOLDER = "pool/"
"""What a pool's name is prefixed with where workers are named; no worker id holds a slash before its port."""


@dataclass(frozen=True, slots=True)
class CachePool:
    """What fetching from a pool costs a worker.

    The defaults are those of a store on RDMA: HiCache prefetches 256 tokens or more
    (SGLang, ``--hicache-storage-prefetch-threshold``), and 5 GB/s of 100 KB tokens are 50,000 tokens/s.

    Attributes:
        capacity_tokens: What it can hold, in tokens; 0 for no bound.
        fetch_base_s: Seconds before the first token comes.
        fetch_tokens_per_s: Tokens a second that come to one worker, > 0.
        fetch_tokens_min: Engines do not fetch fewer.
    """

    capacity_tokens: int = 0
    fetch_base_s: float = 0.005
    fetch_tokens_per_s: float = 50_000.0
    fetch_tokens_min: int = 256


class PoolMembers:
    """Which worker shares which pool, by slot.

    Attributes:
        slots: Of its pool, for each worker that shares one.
    """

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self._pools: dict[int, CachePool] = {}

    def join(self, slot: int, pool_slot: int, pool: CachePool) -> None:
        """The worker in a slot shares this pool, which has a slot of its own, and no other."""
        self.slots[slot] = pool_slot
        self._pools[slot] = pool

    def leave(self, slot: int) -> None:
        """The worker in a slot shares none."""
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
            np.array([1.0 / pool.fetch_tokens_per_s if pool else 0.0 for pool in pools]),
            np.array([float(pool.fetch_tokens_min) if pool else np.inf for pool in pools]),
        )


UNWRITTEN_MAX = 100
"""Placements with their paths in one piece of a snapshot: 450 KB of prompts of 128K tokens."""


class PoolWrites:
    """Prompts that go into a pool when their prefill is over.

    Args:
        loads: Knows which requests are in flight, and which of them are prefilled.
        write: Called with what was placed and the pool's slot.
    """

    def __init__(self, loads: Loads, write: Callable[[Placed, int], None]) -> None:
        self._loads = loads
        self._write = write
        self._waiting: dict[str, tuple[Placed, int]] = {}

    def placed(self, op: Placed, pool_slot: int) -> None:
        """A request was placed on a worker of the pool, and `Loads` has seen it."""
        if not any(op.paths):
            return
        prefilled = self._loads.prefilled(op.request_id)
        if prefilled:
            self._write(op, pool_slot)
        elif prefilled is not None:
            self._waiting[op.request_id] = op, pool_slot

    def ended(self, request_id: str) -> None:
        """Its first token came, or it finished, and `Loads` has seen it."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and self._loads.prefilled(request_id):
            self._write(*waiting)

    def unwritten(self) -> list[Placed]:
        """Return the newest placements whose prompts go into a pool later, for who starts meanwhile."""
        return [op for op, _ in list(self._waiting.values())[-UNWRITTEN_MAX:]]

    def collect(self) -> None:
        """Forget the requests that are no longer in flight."""
        requests = self._loads.requests
        self._waiting = {key: value for key, value in self._waiting.items() if key in requests}
