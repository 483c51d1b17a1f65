"""A worker's access to a shared pool: cost of reads, and agreement of its ranks.

    find ──> begins: the answer ──bytes over the pool's and the worker's links──> ends
                                   └─ stop: what has arrived in whole batches is kept

Tensor-parallel ranks read at once. With multi-head attention each reads its heads; with MLA each reads
all latent KV, but only one writes (SGLang ``managers/cache_controller.py``, ``backup_skip``). Linear states
are divided in both cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p
from random import Random

from loadtest.engine.kv.l3 import Found, L3Pool
from loadtest.engine.kv.link import Link
from loadtest.engine.kv.pieces import Span


@dataclass(frozen=True, slots=True)
class Fetch:
    """A read under way: blocks from ``start_block`` to ``end_block``, bytes of all ranks together.

    Attributes:
        begins_s: Arrival of the first byte.
        ends_s: Arrival of the last one.
    """

    start_block: int
    end_block: int
    n_bytes: int
    begins_s: float
    ends_s: float

    def arrived_blocks(self, now_s: float, batch_blocks: int) -> int:
        """Blocks that are complete at a time: whole batches, or all."""
        blocks = self.end_block - self.start_block
        if now_s >= self.ends_s:
            return blocks
        if now_s <= self.begins_s:
            return 0
        share = (now_s - self.begins_s) / (self.ends_s - self.begins_s)
        return int(share * blocks) // batch_blocks * batch_blocks


class L3Client:
    """One worker's access to a pool.

    Ranks must go on with one length, so the shortest counts (``all_reduce(MIN)``, SGLang
    ``managers/cache_controller.py``).

    Args:
        replicated: Every rank needs all of each block (MLA): one rank writes, and each reads.
        read_bytes_per_s: The worker's network: 170 GB/s by RDMA into host memory, about 350 GB/s straight
            into device memory (MiMo-V2.5, 3.2).
        seed: Draws the blocks that single ranks miss (`L3Settings.rank_loss_ratio`).
    """

    def __init__(
        self,
        pool: L3Pool,
        *,
        tensor_parallel: int = 1,
        replicated: bool = False,
        read_bytes_per_s: float = 170e9,
        seed: int = 0,
    ) -> None:
        self.pool = pool
        self._ranks = tensor_parallel
        self._copies = tensor_parallel if replicated else 1
        latent_only = replicated and not pool.sizes.window_blocks
        shared = latent_only or pool.settings.share_tensor_parallel
        self._space = b"" if shared else tensor_parallel.to_bytes(4, "little")
        self._network = Link(read_bytes_per_s)
        self._rank_loss_ratio = pool.settings.rank_loss_ratio
        self._random = Random(seed)
        self.read_bytes = 0
        self.written_bytes = 0
        self.read_blocks = 0
        self.written_blocks = 0

    def find(
        self, blocks: bytes, start_block: int, end_block: int, now_s: float, session: bytes = b""
    ) -> Found:
        """Reach of all ranks from ``start_block`` on, and the time at which it is known."""
        found = self.pool.find(self._space, blocks, start_block, end_block, now_s, session)
        if found.end_block > start_block and self._rank_loss_ratio:
            reach = start_block + min(self._rank_hit() for _ in range(self._ranks))
            if reach < found.end_block:
                return self.pool.find(self._space, blocks, start_block, reach, now_s, session)
        return found

    def read(
        self, blocks: bytes, start_block: int, end_block: int, now_s: float, session: bytes = b""
    ) -> Fetch:
        """Begin to read blocks that were found."""
        sizes = self.pool.sizes
        windows = min(sizes.window_blocks, end_block - start_block)
        n_bytes = sizes.n_bytes((end_block - start_block) * self._copies, windows)
        sent_s = self.pool.read(self._space, blocks, start_block, end_block, now_s, session)
        ends_s = max(sent_s, self._network.send(n_bytes, now_s))
        self.read_bytes += n_bytes
        self.read_blocks += end_block - start_block
        return Fetch(start_block, end_block, n_bytes, now_s, ends_s)

    def stop(self, fetch: Fetch, kept_blocks: int, now_s: float) -> None:
        """Stop a read early: what has not arrived is not sent."""
        blocks = fetch.end_block - fetch.start_block
        if kept_blocks < blocks:
            unsent = fetch.n_bytes * (blocks - kept_blocks) // blocks
            self._network.give_back(unsent, now_s)
            self.read_bytes -= unsent
            self.read_blocks -= blocks - kept_blocks

    def store(
        self,
        blocks: bytes,
        start_block: int,
        end_block: int,
        windows: Sequence[Span],
        now_s: float,
        session: bytes = b"",
    ) -> None:
        """Write the blocks that the pool does not have."""
        stored = self.pool.store(self._space, blocks, start_block, end_block, windows, now_s, session)
        self.written_blocks += stored.blocks
        self.written_bytes += self.pool.sizes.n_bytes(stored.blocks, stored.window_blocks)

    def keep_alive(
        self, blocks: bytes, start_block: int, end_block: int, now_s: float, session: bytes = b""
    ) -> None:
        """Tell the pool that blocks are in use here, though no worker reads them there."""
        self.pool.touch(self._space, blocks, start_block, end_block, now_s, session)

    def _rank_hit(self) -> int:
        """Blocks before the first that one rank misses: geometric."""
        return int(log(1.0 - self._random.random()) / log1p(-self._rank_loss_ratio))
