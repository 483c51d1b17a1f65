"""Shared storage of KV blocks (L3): one pool for all workers with the same model.

    worker ── L3Client ──link── pool ──┬── node: memory, disk
    (TP ranks: each its part,          ├── node
     the shortest of them counts)      └── node

* `GroupedPool`, after GCache (MiMo-V2.5, arXiv:2607.13095, section 3.2): consistent hashing over storage
  nodes, one replica, all blocks of a session on one node (`SessionSets`), memory and disk with promotion and
  demotion. So each node has its own copy of a head that sessions share. After a failure clients run into the
  SDK's short timeout until the master has missed heartbeats; then the node's sets move on to others, empty. A
  node that leaves as planned hands its sets over. One that returns has its content, unless the failure lost
  it, and gets its sets back with what was written meanwhile.
  Requests of no known session are grouped by content: what follows the same first ``group_tokens`` is one
  group, heads belong to the node of their first block, and nothing moves.
* `PooledMemory`, after Mooncake Store: each block on a node of its own choice, so reads use all nodes, and
  one failed node takes every n-th block of every sequence: a prefix ends at its first lost block.

Both follow HiCache (SGLang ``mem_cache/hicache_storage.py``): keys are chained block hashes; only absent
blocks are written; the trailing ``ceil(W/block)`` blocks of a fetch must have window data, all or nothing
(``PoolHitPolicy.TRAILING_PAGES``). The key includes the tensor-parallel size, since each rank stores its own
heads, unless the pool shares across sizes. A write is visible at once: it takes milliseconds, its use comes
seconds later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

import numpy as np

from loadtest.engine.kv.link import Link
from loadtest.engine.kv.pieces import Span, clip, window_end
from loadtest.engine.kv.ring import HashRing
from loadtest.engine.kv.runs import RunStore, Stored
from loadtest.engine.kv.session_sets import SessionSet, SessionSets
from loadtest.engine.kv.tree import HASH_BYTES


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Bytes of a KV block, all tensor-parallel ranks together, each part counted once.

    Attributes:
        block_bytes: Full-attention (or MLA) data.
        window_block_bytes: Sliding-window data, or one linear state; 0 if the model has neither.
        window_blocks: Blocks before a boundary whose window data make it usable: ``ceil(W/block)``, 1 for
            linear states, 0 for full attention.
    """

    block_tokens: int
    block_bytes: int
    window_block_bytes: int = 0
    window_blocks: int = 0

    def __post_init__(self) -> None:
        assert self.block_tokens > 0
        assert self.block_bytes > 0
        assert (self.window_blocks > 0) == (self.window_block_bytes > 0)

    def n_bytes(self, blocks: int, window_blocks: int) -> int:
        """Bytes of ``blocks``, of which ``window_blocks`` have window data."""
        return blocks * self.block_bytes + window_blocks * self.window_block_bytes


@dataclass(frozen=True, slots=True)
class Absence:
    """A node that is away from ``leaves_s`` to ``returns_s``.

    ``how``: its content is ``lost``; or ``kept`` until it can be reached again; or it leaves as ``planned``.
    """

    node: int
    leaves_s: float
    returns_s: float = inf
    how: Literal["lost", "kept", "planned"] = "lost"

    def __post_init__(self) -> None:
        """Refuse times that are none with `ValueError`."""
        if not 0 <= self.leaves_s < self.returns_s:
            raise ValueError(
                f"a node cannot leave at {self.leaves_s:g} s and be back at {self.returns_s:g} s"
            )

    def __str__(self) -> str:
        """As it is told on a command line."""
        back = "" if self.returns_s == inf else f"{self.returns_s:g}"
        return f"{self.node}@{self.leaves_s:g}-{back}:{self.how}"


@dataclass(frozen=True, slots=True)
class L3Settings:
    """A shared pool.

    Attributes:
        kind: ``grouped`` (GCache-like) or ``pooled`` (Mooncake-like).
        memory_tokens: Room in memory of each node, in tokens of full-attention data.
        disk_tokens: Room on disk of each node; ``grouped`` only.
        ttl_s: Lifetime of a block after its last use; None for no end.
        node_bytes_per_s: Network of a node. [guess] two 400 Gbps ports.
        disk_bytes_per_s: Reads from a node's disks. [guess] two NVMe drives.
        latency_s: Time of a read beside its bytes: 280 us (MiMo-V2.5, 3.2, RDMA reads of 1 MB).
        sdk_timeout_s: A client's wait for a dead node; the paper says only "short". [guess]
        detection_s: Time from a failure to the ring without the node: missed heartbeats. [guess]
        group_tokens: Common first tokens of a group of requests that name no session. [guess]
        share_tensor_parallel: Workers of different tensor-parallel sizes can read each other's blocks.
        virtual_nodes: Points of a node on the ring.
        rank_loss_ratio: Probability that one tensor-parallel rank misses a block that the others have.
        absences: Nodes that are away for a time.
        decode_writes: Workers that only decode write what they computed (`DecodeOffload`).
        tensor_parallel: Sizes of the workers, in turn; none: all have that of the profile.
    """

    kind: Literal["grouped", "pooled"] = "grouped"
    nodes: int = 8
    memory_tokens: int = 16_000_000
    disk_tokens: int = 0
    ttl_s: float | None = None
    node_bytes_per_s: float = 100e9
    disk_bytes_per_s: float = 12e9
    latency_s: float = 280e-6
    sdk_timeout_s: float = 0.05
    detection_s: float = 3.0
    group_tokens: int = 1024
    share_tensor_parallel: bool = False
    virtual_nodes: int = 128
    rank_loss_ratio: float = 0.0
    absences: tuple[Absence, ...] = ()
    decode_writes: bool = True
    tensor_parallel: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a pool without nodes, and tiers or absences that it cannot have, with `ValueError`."""
        if self.nodes < 1 or self.memory_tokens < 0 or self.disk_tokens < 0:
            raise ValueError("a pool needs at least one node, and room cannot be negative")
        if self.kind == "pooled" and self.disk_tokens:
            raise ValueError("pooled memory has no disk tier: disk_tokens must be 0")
        if not 0 <= self.rank_loss_ratio < 1:
            raise ValueError("rank_loss_ratio is a share, 0 or above and below 1")
        if any(not 0 <= absence.node < self.nodes for absence in self.absences):
            raise ValueError(f"absences name a node beyond 0 to {self.nodes - 1}")
        if any(size < 1 for size in self.tensor_parallel):
            raise ValueError("a tensor-parallel size is 1 or more")


@dataclass(frozen=True, slots=True)
class Found:
    """Answer to a look-up, known at ``answered_s``.

    ``end_block`` is the block asked for if nothing can be read.
    """

    end_block: int
    answered_s: float


class L3Pool(Protocol):
    """Port of an `L3Client`.

    Blocks are the packed chained hashes of a sequence from its start; ``session`` names the session that it
    belongs to, empty if unknown.
    """

    @property
    def settings(self) -> L3Settings:
        """Its settings."""

    @property
    def sizes(self) -> BlockSizes:
        """The blocks that it holds."""

    def find(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> Found:
        """Reach of a reader that has the blocks before ``start_block``; uses nothing."""

    def read(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> float:
        """Use blocks that were found; the time at which the nodes have sent the last byte."""

    def store(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        windows: Sequence[Span],
        now_s: float,
        session: bytes = b"",
    ) -> Stored:
        """Write the absent blocks of a span, with the window data of some spans in it.

        Of a session a pool may take what it lacks before the span, too: the writer has it.
        """

    def touch(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> None:
        """Make blocks the most recently used without reading them."""

    def fail(self, node: int, now_s: float, *, lost: bool = True) -> None:
        """A node stops answering; ``lost`` if its blocks are gone for good."""

    def drain(self, node: int, now_s: float) -> None:
        """A node leaves as planned: all clients know at once."""

    def recover(self, node: int, now_s: float) -> None:
        """A node is back."""

    @property
    def held_bytes(self) -> int:
        """Bytes held, in memory and on disk."""

    @property
    def evicted_bytes(self) -> int:
        """Bytes evicted or expired since the start."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that moved from node to node since the start."""

    @property
    def node_bytes(self) -> Sequence[int]:
        """Bytes read from each node and moved between nodes since the start."""


def build_pool(settings: L3Settings, sizes: BlockSizes) -> L3Pool:
    """A pool of the kind that the settings name."""
    return GroupedPool(settings, sizes) if settings.kind == "grouped" else PooledMemory(settings, sizes)


@dataclass(slots=True, eq=False)
class _Node:
    store: RunStore
    network: Link
    disk: Link
    failed_s: float = inf


class GroupedPool:
    """Sessions on nodes by consistent hashing."""

    def __init__(self, settings: L3Settings, sizes: BlockSizes) -> None:
        self.settings = settings
        self.sizes = sizes
        self._ring = HashRing(settings.nodes, settings.virtual_nodes)
        self._sets = SessionSets(settings.nodes, self._ring)
        self._group_blocks = max(1, settings.group_tokens // sizes.block_tokens)
        per_block = sizes.block_bytes / sizes.block_tokens
        self._nodes = [
            _Node(
                RunStore(
                    int(settings.memory_tokens * per_block),
                    int(settings.disk_tokens * per_block),
                    sizes.block_bytes,
                    sizes.window_block_bytes,
                    settings.ttl_s,
                ),
                Link(settings.node_bytes_per_s),
                Link(settings.disk_bytes_per_s),
            )
            for _ in range(settings.nodes)
        ]
        self._absent: set[int] = set()
        self._failed: set[int] = set()
        self.moved_bytes = 0

    @property
    def held_bytes(self) -> int:
        """See `L3Pool`."""
        return sum(node.store.memory_bytes + node.store.disk_bytes for node in self._nodes)

    @property
    def evicted_bytes(self) -> int:
        """See `L3Pool`."""
        return sum(node.store.evicted_bytes + node.store.expired_bytes for node in self._nodes)

    @property
    def node_bytes(self) -> Sequence[int]:
        """See `L3Pool`."""
        return [node.network.moved_bytes for node in self._nodes]

    def find(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> Found:
        """See `L3Pool`."""
        answered_s = now_s + self.settings.latency_s
        reach = start_block
        windows: list[Span] = []
        for node, start, end in self._parts(space, session, blocks, start_block, end_block, now_s):
            if node.failed_s <= now_s:
                answered_s = now_s + self.settings.sdk_timeout_s
                break
            reach, found = node.store.reach(space, blocks, start, end, now_s)
            windows += found
            if reach < end:
                break
        return Found(window_end(windows, start_block, reach, self.sizes.window_blocks), answered_s)

    def read(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> float:
        """See `L3Pool`."""
        sent_s = now_s
        for node, start, end in self._parts(space, session, blocks, start_block, end_block, now_s):
            from_disk = node.store.read(space, blocks, start, end, now_s)
            windows = self.sizes.window_blocks if end == end_block else 0
            n_bytes = self.sizes.n_bytes(end - start, min(windows, end - start))
            sent_s = max(sent_s, node.network.send(n_bytes, now_s), node.disk.send(from_disk, now_s))
        return sent_s + self.settings.latency_s

    def store(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        windows: Sequence[Span],
        now_s: float,
        session: bytes = b"",
    ) -> Stored:
        """See `L3Pool`."""
        added = added_windows = 0
        for node, start, end in self._parts(space, session, blocks, start_block, end_block, now_s):
            if node.failed_s > now_s:
                if session:
                    start = node.store.reach(space, blocks, 0, start, now_s)[0]
                stored = node.store.store(space, blocks, start, end, windows, now_s)
                added += stored.blocks
                added_windows += stored.window_blocks
        if session and (written := self._sets.of(session, self._absent)) is not None:
            written.wrote(space, blocks[: end_block * HASH_BYTES])
        return Stored(added, added_windows)

    def touch(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> None:
        """See `L3Pool`."""
        for node, start, end in self._parts(space, session, blocks, start_block, end_block, now_s):
            if node.failed_s > now_s:
                node.store.touch(space, blocks, start, end, now_s)

    def fail(self, node: int, now_s: float, *, lost: bool = True) -> None:
        """See `L3Pool`."""
        self._nodes[node].failed_s = min(now_s, self._nodes[node].failed_s)
        self._failed.add(node)
        if lost:
            self._nodes[node].store.clear()

    def drain(self, node: int, now_s: float) -> None:
        """See `L3Pool`; its sets of sessions move to the other nodes."""
        self._look(now_s)
        if node in self._failed:
            return
        self._failed.add(node)
        self._absent.add(node)
        for moved, taker in list(self._sets.leaving(node, self._absent)):
            self._move(moved, taker, now_s)
        self._nodes[node].failed_s = -inf
        self._nodes[node].store.clear()

    def recover(self, node: int, now_s: float) -> None:
        """See `L3Pool`; its sessions come back with the blocks written meanwhile."""
        self._nodes[node].failed_s = inf
        self._failed.discard(node)
        self._absent.discard(node)
        for moved in list(self._sets.returning(node)):
            self._move(moved, node, now_s)

    def _move(self, moved: SessionSet, to: int, now_s: float) -> None:
        source, target = self._nodes[moved.node], self._nodes[to]
        if source.failed_s > now_s:
            for space, blocks in moved.chains:
                reach, windows = source.store.reach(space, blocks, 0, len(blocks) // HASH_BYTES, now_s)
                stored = target.store.store(space, blocks, 0, reach, clip(windows, 0, reach), now_s)
                n_bytes = self.sizes.n_bytes(stored.blocks, stored.window_blocks)
                source.network.send(n_bytes, now_s)
                target.network.send(n_bytes, now_s)
                self.moved_bytes += n_bytes
        self._sets.put(moved, to)

    def _look(self, now_s: float) -> None:
        """Note whose failure the master has noticed by now."""
        if self._failed:
            self._absent = {
                node
                for node in self._failed
                if self._nodes[node].failed_s + self.settings.detection_s <= now_s
            }

    def _parts(
        self, space: bytes, session: bytes, blocks: bytes, start: int, end: int, now_s: float
    ) -> list[tuple[_Node, int, int]]:
        """The nodes of a span of a sequence; empty if all have left the ring."""
        self._look(now_s)
        if session:
            found = self._sets.of(session, self._absent)
            return [(self._nodes[found.node], start, end)] if found is not None and start < end else []
        head = self._group_blocks
        parts: list[tuple[_Node, int, int]] = []
        for named_by, first, last in ((0, start, min(end, head)), (head - 1, max(start, head), end)):
            if first < last:
                key = blocks[named_by * HASH_BYTES : (named_by + 1) * HASH_BYTES]
                owner = self._ring.owner(space + key, self._absent)
                if owner is not None:
                    parts.append((self._nodes[owner], first, last))
        return parts


class PooledMemory:
    """Blocks spread over the memories of all nodes, one by one.

    A failed node loses its blocks (there is one replica); later writes go to the others. A block written
    while its node was away is taken to be on that node again when it has returned.
    """

    def __init__(self, settings: L3Settings, sizes: BlockSizes) -> None:
        self.settings = settings
        self.sizes = sizes
        self._node_bytes = int(settings.memory_tokens * sizes.block_bytes / sizes.block_tokens)
        self._store = RunStore(
            self._node_bytes * settings.nodes,
            0,
            sizes.block_bytes,
            sizes.window_block_bytes,
            settings.ttl_s,
        )
        self._failed: dict[int, float] = {}
        self._network = Link(settings.node_bytes_per_s * settings.nodes)
        self.moved_bytes = 0

    @property
    def held_bytes(self) -> int:
        """See `L3Pool`."""
        return self._store.memory_bytes

    @property
    def evicted_bytes(self) -> int:
        """See `L3Pool`."""
        return self._store.evicted_bytes + self._store.expired_bytes

    @property
    def node_bytes(self) -> Sequence[int]:
        """See `L3Pool`; blocks are spread evenly."""
        return [self._network.moved_bytes // self.settings.nodes] * self.settings.nodes

    def find(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> Found:
        """See `L3Pool`."""
        reach, windows = self._store.reach(space, blocks, start_block, end_block, now_s)
        held = window_end(windows, start_block, reach, self.sizes.window_blocks)
        silent = any(failed_s + self.settings.detection_s > now_s for failed_s in self._failed.values())
        return Found(held, now_s + (self.settings.sdk_timeout_s if silent else self.settings.latency_s))

    def read(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> float:
        """See `L3Pool`."""
        self._store.read(space, blocks, start_block, end_block, now_s)
        windows = min(self.sizes.window_blocks, end_block - start_block)
        sent_s = self._network.send(self.sizes.n_bytes(end_block - start_block, windows), now_s)
        return sent_s + self.settings.latency_s

    def store(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        windows: Sequence[Span],
        now_s: float,
        session: bytes = b"",
    ) -> Stored:
        """See `L3Pool`."""
        if len(self._failed) == self.settings.nodes:
            return Stored(0, 0)
        return self._store.store(space, blocks, start_block, end_block, windows, now_s)

    def touch(
        self,
        space: bytes,
        blocks: bytes,
        start_block: int,
        end_block: int,
        now_s: float,
        session: bytes = b"",
    ) -> None:
        """See `L3Pool`."""
        self._store.touch(space, blocks, start_block, end_block, now_s)

    def fail(self, node: int, now_s: float, *, lost: bool = True) -> None:
        """See `L3Pool`; memory of a client process is always lost with it."""
        del lost
        if node in self._failed:
            return
        self._failed[node] = now_s
        nodes = self.settings.nodes
        self._store.lose(lambda packed: np.flatnonzero(_spread(packed, nodes) == node).tolist())
        self._store.resize(self._node_bytes * (nodes - len(self._failed)))

    def drain(self, node: int, now_s: float) -> None:
        """See `L3Pool`; its blocks go with it, as the store has one copy and moves none."""
        self.fail(node, now_s - self.settings.detection_s)

    def recover(self, node: int, now_s: float) -> None:
        """See `L3Pool`."""
        self._failed.pop(node, None)
        self._store.resize(self._node_bytes * (self.settings.nodes - len(self._failed)))


def _spread(packed: bytes, nodes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """The node of each hash: its high bits, as the low ones may already choose something else."""
    hashes = np.frombuffer(packed, "<u8")
    return (hashes >> np.uint64(32)) % np.uint64(nodes)
