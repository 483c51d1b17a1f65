"""Owners of the parts of a sharded prefix tree.

A *shard* is the prompts of one tenant, model and first block; here the first hash stands for all three. Its
owners are the ``owners`` replicas that a rendezvous ranks first, so a death moves the shards of the dead one
only.

A head that many share (a system prompt) would put all its traffic on two or three replicas. So a shard that
brings more requests than a replica's mean is *split* behind the blocks that its prompts share, by the hash of
the next block:

    shard [S...]  --split at |S|-->  [S|0] [S|1] ... [S|n]       a prompt that ends within S stays in [S...]

Splits are registers: all replicas know them. A split may be split again.
"""

from dataclasses import dataclass

import numpy as np

from loadtest.simulator.identity import Hashes, hashes_of, scope_root
from radix import HASH_BYTES

PARTS_PER_REPLICA = 4
PARTS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Split:
    """Depth in blocks at which a shard is split, and the seconds at which it was."""

    depth: int
    at_s: float


class Shards:
    """Shards, their splits and their owners among ``replicas``, of which some may be dead."""

    def __init__(self, replicas: int, owners: int) -> None:
        assert 0 < owners <= replicas
        self.splits: dict[int, Split] = {}
        self.dead: set[int] = set()
        self._owners_wanted = owners
        self._parts = min(PARTS_MAX, PARTS_PER_REPLICA * replicas)
        self._ids: Hashes = np.array([scope_root("replica", n) for n in range(replicas)], dtype=np.uint64)
        self._owners: dict[int, tuple[int, ...]] = {}

    def shards_of(self, path: bytes) -> list[int]:
        """Return the shard of a prompt of at least one block, behind those that were split on its way."""
        key = _word(path, 0)
        found = [key]
        while (split := self.splits.get(key)) is not None and len(path) > split.depth * HASH_BYTES:
            key = scope_root(key, split.depth, _word(path, split.depth) % self._parts)
            found.append(key)
        return found

    def owners_of(self, shard: int) -> tuple[int, ...]:
        """Return the living owners of a shard, best first."""
        found = self._owners.get(shard)
        if found is None:
            order = np.argsort(hashes_of(shard, self._ids))[::-1].tolist()
            living = [replica for replica in order if replica not in self.dead]
            found = self._owners[shard] = tuple(living[: self._owners_wanted])
        return found

    def bury(self, replica: int) -> None:
        """Note a death: the next replicas in rank own its shards."""
        self.dead.add(replica)
        self._owners.clear()


def _word(path: bytes, block: int) -> int:
    return int.from_bytes(path[block * HASH_BYTES : (block + 1) * HASH_BYTES], "little")
