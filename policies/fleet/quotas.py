"""Quotas of KV space: a tenant's part of the workers' caches, and its price beyond its share.

The tree counts each tenant's blocks at each worker (`radix.tree`). Each tenant has an order of the workers
(rendezvous hashing: the same in all replicas, another one for each tenant), and its *home* are the first of
them, with its share of the space of all that may take its request:

    workers in its order    [ 1 ][ 2 ]|[ 3 ][ 4 ][ 5 ][ 6 ][ 7 ][ 8 ]      share: a quarter
    distance                  0   0.5   1   1.5   2   2.5   3   3.5        space before / share

While its blocks fill more than its share, any block that its request evicts from a cache that is not at home
is assumed to belong to others, who still need it:

    seconds a token = prefill of a token · distance

At home, and within its share, an eviction costs what it is expected to cost (`policies.fleet.columns`). So
its requests push out its own blocks at home, then those on as few other workers as its load needs. It loses
the choice of a cache, and no service: a price excludes no worker.

An owner is a hash of the tenant's name, 48 bits: equal in all replicas, and small in the log. The tree is
asked every `REFRESH_US`, not for every request. This is no part of the fold.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import xxhash

from policies.fleet.columns import REFRESH_US, Columns
from policies.pricing.views import Displacing, Slots
from policies.state.rendezvous import weights
from radix import PrefixTree

STANDINGS_MAX = 1000
"""Tenants and lists of workers that are remembered until the next look."""

ShareOf = Callable[[str], float | None]
"""Share of all KV space of a tenant, above 0 to 1, by its name; None for all: nothing is counted."""


def no_shares(_tenant: str) -> float | None:
    """Count nothing, and limit no tenant."""
    return None


def owner_of(tenant: str) -> int:
    """Owner in the tree of a tenant's blocks; 0, no owner, for requests without a tenant."""
    return xxhash.xxh3_64_intdigest(tenant.encode()) >> 16 or 1 if tenant else 0


class Quotas:
    """KV space of the workers, and its part filled by each tenant.

    Args:
        tree: Holders of blocks, by slot.
        columns: Hashes of the workers.
        share_of: Rule of each tenant.
        block_tokens: Tokens in a block.
    """

    def __init__(self, tree: PrefixTree, columns: Columns, share_of: ShareOf, block_tokens: int) -> None:
        self._tree = tree
        self._columns = columns
        self.share_of = share_of
        self._block_tokens = float(block_tokens)
        self._space = np.zeros(8, dtype=np.int64)
        self._standings: dict[tuple[int, int], tuple[Slots, int, Displacing | None]] = {}

    def set_space(self, slot: int, blocks: int) -> None:
        """Note the blocks that fit into a worker's cache; 0 if unknown, or there is no worker."""
        if slot >= len(self._space):
            self._space = np.concatenate([self._space, np.zeros(slot + 1, dtype=np.int64)])
        if self._space[slot] != blocks:
            self._space[slot] = blocks
            self._standings.clear()

    def standing(self, tenant: str, slots: Slots, now_us: int) -> tuple[int, Displacing | None]:
        """Owner of the blocks that a tenant's request brings, and the price of pushing out others'.

        The owner is 0 if nothing is counted, the price None if the tenant is within its share of the space of
        the workers in these slots. Callers that pass the same array again save the counting.
        """
        share = self.share_of(tenant)
        if share is None:
            return 0, None
        owner = owner_of(tenant)
        if share >= 1.0 or not owner:
            return owner, None
        # By identity, as in `policies.fleet.columns`: the cached rows hold the array.
        known = self._standings.get((owner, id(slots)))
        if known is None or known[0] is not slots or now_us - known[1] >= REFRESH_US:
            if len(self._standings) >= STANDINGS_MAX:
                self._standings.clear()
            known = slots, now_us, self._displacing(owner, share, slots)
            self._standings[owner, id(slots)] = known
        return owner, known[2]

    def used_tokens(self) -> tuple[dict[int, float], float]:
        """Tokens of each owner in the caches of all workers with a known space, and that space."""
        used: Counter[int] = Counter()
        for slot in self._space.nonzero()[0].tolist():
            used.update(self._tree.owned_blocks(slot))
        tokens = {owner: blocks * self._block_tokens for owner, blocks in used.items()}
        return tokens, float(self._space.sum()) * self._block_tokens

    def _displacing(self, owner: int, share: float, slots: Slots) -> Displacing | None:
        tree, space = self._tree, self._space[slots]
        total = int(space.sum())
        owned = np.array([tree.owned_blocks(slot).get(owner, 0) for slot in slots.tolist()])
        if owned[space > 0].sum() <= share * total:
            return None
        order = weights(owner, self._columns.hashes(slots)).argsort()
        distance = np.empty(len(slots))
        distance[order] = (space[order].cumsum() - space[order]) / (share * total)
        ratio, free_tokens = np.zeros(len(self._space)), np.zeros(len(self._space))
        ratio[slots] = np.where((distance < 1.0) | (space == 0), 0.0, distance)
        held = np.array([tree.held_blocks(slot) for slot in slots.tolist()])
        free_tokens[slots] = np.maximum(space - held, 0) * self._block_tokens
        return Displacing(ratio, free_tokens)
