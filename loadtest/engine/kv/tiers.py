"""HiCache: host memory and a shared pool below the device, after SGLang and MiMo-V2.5.

    queued ─open─> look up L3, prefetch to host ─(ready_s)─> admit: settle ─> match L1+L2 ─> load to device
    prefill ends ─stored─> copy to host (D2H) ─> write to L3    evicted from the device ─leaving─> host only

Defaults are SGLang's (``mem_cache/hiradix_cache.py``, ``managers/cache_controller.py``, ``server_args.py``):

* *Write policies.* A run is copied to the host when it is stored (``write_through``), at its second use
  (``write_through_selective``), or when the device evicts it (``write_back``); in the first two cases only if
  the run above it is there. The host's content is written to L3, which keeps only what it lacks.
* *Prefetch.* At enqueue, if L3 holds at least ``prefetch_threshold_tokens`` beyond L1 and L2, and prefetches
  under way do not exceed ``prefetch_limit_ratio`` of the host beyond the device's size. It needs room on the
  host, and shares the pool's and the worker's links. ``best_effort`` never waits and stops the rest when the
  request is scheduled, ``wait_complete`` waits for all, ``timeout`` for ``min(max, base + per_ki * tokens /
  1024)`` seconds.
* *Loading* to the device overlaps with the prefill layer by layer (`pipelined_s` of
  ``loadtest/engine/timing.py``); here it is bytes (`Lease.load_bytes`).
* *Transfers to the host* count as done when they begin: that direction of the link is many times faster than
  prefill makes KV.

**Sliding windows across tiers** (MiMo-V2.5, arXiv:2607.13095, 3.1.4). Only trailing windows are copied and
stored. L3 gives a whole window or nothing: a prefetch that is stopped early is dropped.

| case | what happens |
|---|---|
| device complete, host deficient | windows on the path that are missing are copied when its prefill ends |
| host complete, device deficient | loaded with the next match that needs it |
| hot prefix served by L1/L2, idle in L3 | `keep_alive`: every match tells L3 that the prefix is in use |
| short and medium sequences | dense windows that the device retains are copied like any other |

**Linear states across tiers.** A state is copied with the run that it ends, stored as the window data of its
last block, and loaded when a request goes on from there.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from loadtest.engine.histogram import Histogram
from loadtest.engine.kv.host import HostMemory
from loadtest.engine.kv.l3 import BlockSizes
from loadtest.engine.kv.l3_client import Fetch, L3Client
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import Group, KvListener
from loadtest.engine.kv.matching import safe_blocks, state_blocks
from loadtest.engine.kv.pieces import Span
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import HASH_BYTES, Node, RadixTree, sequence_to

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]


_GB_PER_S = (0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0)
_BLOCKS = (1.0, 5.0, 10.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiCacheSettings:
    """The host tier of one rank and its traffic with L3.

    Attributes:
        host_ratio: Size of each host pool per size of the device's (``--hicache-ratio``).
        host_tokens: Size of the full pool instead of the ratio (``--hicache-size``); the window pool keeps
            the ratio.
        write_policy: ``--hicache-write-policy``.
        prefetch_policy: ``--hicache-storage-prefetch-policy``.
        prefetch_threshold_tokens: Less than this is not fetched (``prefetch_threshold``).
        prefetch_timeout_base_s: Of ``timeout`` (``hicache_storage.py``, ``PrefetchTimeoutConfig``; older
            releases: 1 s).
        prefetch_timeout_per_ki_token_s: The same, per 1,024 tokens (before: 0.25 s).
        prefetch_limit_ratio: Share of the host's size beyond the device's that prefetches under way may take.
        prefetch_batch_blocks: Blocks of one storage request, between which a prefetch stops
            (``STORAGE_BATCH_SIZE``).
        keep_alive: A match in L1 or L2 refreshes the prefix in L3 (MiMo-V2.5; SGLang does not).
    """

    host_ratio: float = 2.0
    host_tokens: int = 0
    write_policy: WritePolicy = "write_through"
    prefetch_policy: PrefetchPolicy = "timeout"
    prefetch_threshold_tokens: int = 256
    prefetch_timeout_base_s: float = 2.0
    prefetch_timeout_per_ki_token_s: float = 0.1
    prefetch_timeout_max_s: float = 30.0
    prefetch_limit_ratio: float = 0.8
    prefetch_batch_blocks: int = 128
    keep_alive: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty host or negative times with `ValueError`."""
        if self.host_ratio <= 0 or self.host_tokens < 0:
            raise ValueError("the host tier needs room: host_ratio > 0")
        if min(self.prefetch_timeout_base_s, self.prefetch_timeout_per_ki_token_s) < 0:
            raise ValueError("a timeout cannot be negative")

    def timeout_s(self, tokens: int) -> float:
        """Longest wait of a request for a prefetch of ``tokens``."""
        match self.prefetch_policy:
            case "best_effort":
                return 0.0
            case "wait_complete":
                return inf
            case "timeout":
                linear_s = self.prefetch_timeout_base_s + self.prefetch_timeout_per_ki_token_s * tokens / 1024
                return min(self.prefetch_timeout_max_s, linear_s)


@dataclass(slots=True)
class TierCounters:
    """Transfers between the tiers since the start.

    Attributes:
        prefetched_tokens: L3 to host, and put into the tree.
        dropped_tokens: L3 to host in vain: stopped before the window came, or here already.
        backed_up_tokens: Device to host.
        loaded_tokens: Host to device.
        loaded_bytes: The same, with windows.
        prefetch_s: Seconds from a read's first byte to its last, in all.
        prefetch_gb_per_s: Bandwidth of each read; bounds are those of SGLang's metrics_collector.py.
        keep_alives: Matches that refreshed L3.
    """

    prefetched_tokens: int = 0
    dropped_tokens: int = 0
    backed_up_tokens: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    prefetches: int = 0
    prefetches_stopped: int = 0
    prefetch_s: float = 0.0
    prefetch_gb_per_s: Histogram = field(default_factory=lambda: Histogram(_GB_PER_S))
    prefetch_blocks: Histogram = field(default_factory=lambda: Histogram(_BLOCKS))
    keep_alives: int = 0


@dataclass(slots=True)
class _Prefetch:
    fetch: Fetch
    anchor: Node
    tokens: int
    window_tokens: int


class HiCache:
    """The lower tiers of one rank; a `TierPolicy` on the tree of its `KvCache`."""

    def __init__(
        self,
        rules: CacheRules,
        settings: HiCacheSettings,
        tree: RadixTree,
        sizes: BlockSizes,
        *,
        client: L3Client | None = None,
        listener: KvListener | None = None,
    ) -> None:
        assert (sizes.block_tokens, sizes.window_blocks) == (rules.block_tokens, rules.window_blocks)
        self.settings = settings
        self.counters = TierCounters()
        self.client = client
        self._size = rules.block_tokens
        self._window_blocks = rules.window_blocks
        self._sizes = sizes
        self._tree = tree
        full_tokens = settings.host_tokens or int(rules.full_tokens * settings.host_ratio)
        states = int(rules.state_slots * settings.host_ratio) * rules.block_tokens
        self.host = HostMemory(
            tree,
            listener or KvListener(),
            block_tokens=rules.block_tokens,
            full_tokens=full_tokens,
            swa_tokens=states or int(rules.swa_tokens * settings.host_ratio),
            window_blocks=rules.window_blocks,
        )
        self._prefetch_limit = settings.prefetch_limit_ratio * (full_tokens - rules.full_tokens)
        self._threshold_blocks = max(1, -(-settings.prefetch_threshold_tokens // self._size))
        self._uses_before_copy = 2 if settings.write_policy == "write_through_selective" else 1
        self._prefetches: dict[Lease, _Prefetch] = {}
        self._fetched: dict[Lease, tuple[int, int]] = {}
        self._now_s = 0.0
        self._flushing = False

    def split(self, upper: Node, lower: Node) -> None:
        """See `TreeObserver`."""
        self.host.split(upper, lower)

    def merged(self, gone: Node, into: Node) -> None:
        """See `TreeObserver`."""
        self.host.merged(into)

    def open(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""
        self._now_s = now_s
        self._flushing = False
        if self.client is None:
            return
        end = (lease.prompt_tokens - 1) // self._size
        anchor, start = self._local(lease.blocks, end)
        if end - start < self._threshold_blocks or self.host.full.reserved >= self._prefetch_limit:
            return
        if anchor.parent is not None and not anchor.host:
            return
        anchor.host_locks += 1
        found = self.client.find(lease.blocks, start, end, now_s, lease.session)
        lease.ready_s = min(found.answered_s, now_s + self.settings.timeout_s(0))
        if found.end_block - start >= self._threshold_blocks:
            self.host.make_room((found.end_block - start) * self._size)
            room = self.host.full.free // self._size
            if room < found.end_block - start:
                found = self.client.find(lease.blocks, start, start + room, now_s, lease.session)
        tokens = (found.end_block - start) * self._size
        window_tokens = min(self._window_blocks * self._size, tokens)
        if tokens >= self._threshold_blocks * self._size and self.host.make_window_room(window_tokens):
            self.host.full.reserved += tokens
            self.host.swa.reserved += window_tokens
            fetch = self.client.read(lease.blocks, start, found.end_block, found.answered_s, lease.session)
            self._prefetches[lease] = _Prefetch(fetch, anchor, tokens, window_tokens)
            lease.ready_s = min(fetch.ends_s, now_s + self.settings.timeout_s(tokens))
            self.counters.prefetches += 1
        else:
            self.host.release(anchor)

    def settle(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""
        self._now_s = now_s
        prefetch = self._prefetches.pop(lease, None)
        if prefetch is None:
            return
        fetch = prefetch.fetch
        arrived = self._finish(prefetch, now_s)
        if self._window_blocks and fetch.start_block + arrived < fetch.end_block:
            self.counters.dropped_tokens += arrived * self._size
        elif arrived:
            end = fetch.start_block + arrived
            new = self._hang(lease.blocks, fetch.start_block, end)
            self._fetched[lease] = (fetch.start_block, end)
            self.counters.prefetched_tokens += new * self._size
            self.counters.dropped_tokens += (arrived - new) * self._size
        self.host.release(prefetch.anchor)

    def reused(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""
        start, end = self._fetched.pop(lease, (0, 0))
        local = lease.device_tokens // self._size
        matched = lease.matched_tokens // self._size
        lease.pool_tokens = max(0, min(end, matched) - max(start, local)) * self._size
        node = lease.node
        assert node is not None
        if node.parent is None:
            return
        self.host.touch(node)
        if self._uses_before_copy > 1:
            walk: Node | None = node
            while walk is not None:
                if not walk.host and walk.parent is not None:
                    walk.hits += 1
                walk = walk.parent
        if self.client is not None and self.settings.keep_alive:
            self.client.keep_alive(lease.blocks, 0, matched, now_s, lease.session)
            self.counters.keep_alives += 1

    def load(self, lease: Lease, full_blocks: int, window_blocks: int, now_s: float) -> None:
        """See `TierPolicy`."""
        lease.load_bytes = self._sizes.n_bytes(full_blocks, window_blocks)
        self.counters.loaded_tokens += full_blocks * self._size
        self.counters.loaded_bytes += lease.load_bytes

    def stored(self, lease: Lease, node: Node, now_s: float) -> None:
        """See `TierPolicy`."""
        self._now_s = now_s
        self._flushing = False
        self.host.touch(node)
        walk = node
        if self.settings.write_policy == "write_back":
            while walk.parent is not None and not walk.session:
                walk.session = lease.session
                walk = walk.parent
            return
        missing: list[Node] = []
        while walk.parent is not None and not walk.host:
            missing.append(walk)
            walk = walk.parent
        start = stop = walk.end
        windows: list[Span] = []
        for run in reversed(missing):
            if run.hits + 1 < self._uses_before_copy or not self._copy(run, windows):
                break
            stop = run.end
        if stop > start:
            self._archive(node, start, stop, windows, lease.session)
        self._repair(node, lease.session)

    def leaving(self, node: Node, group: Group) -> None:
        """See `TierPolicy`."""
        if group != "full":
            return
        if not node.host and self.settings.write_policy == "write_back" and not self._flushing:
            windows: list[Span] = []
            if self._copy(node, windows, cut=False):
                self._archive(node, node.start, node.end, windows, node.session)
        if node.host:
            self.host.left_device(node)
        else:
            self.host.drop_below(node)

    def ended(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""
        self._fetched.pop(lease, None)
        prefetch = self._prefetches.pop(lease, None)
        if prefetch is not None:
            self.counters.dropped_tokens += self._finish(prefetch, now_s) * self._size
            self.host.release(prefetch.anchor)

    def clear(self) -> None:
        """See `TierPolicy`; what the device drops now is flushed, not written back."""
        self._flushing = True
        self.host.clear()

    def _local(self, blocks: bytes, end: int) -> tuple[Node, int]:
        """Part of a sequence in L1 and L2: its last run, and the usable boundary."""
        path, partial, matched = self._tree.walk(self._tree.root, blocks, end)
        if partial is not None:
            path.append(partial)
        usable = matched
        if self._tree.states:
            usable = state_blocks(path, matched, host=True)
        elif self._window_blocks:
            usable = safe_blocks(path, matched, self._window_blocks, host=True)
        anchor = self._tree.root
        for run in path:
            if run.start < usable:
                anchor = run
        return anchor, usable

    def _finish(self, prefetch: _Prefetch, now_s: float) -> int:
        """End a prefetch, early or not, and give back its room; the blocks that have arrived."""
        assert self.client is not None
        fetch = prefetch.fetch
        arrived = fetch.arrived_blocks(now_s, self.settings.prefetch_batch_blocks)
        if fetch.start_block + arrived < fetch.end_block:
            self.client.stop(fetch, arrived, now_s)
            self.counters.prefetches_stopped += 1
        seconds = max(0.0, min(now_s, fetch.ends_s) - fetch.begins_s)
        self.counters.prefetch_s += seconds
        if arrived and seconds:
            share = arrived / (fetch.end_block - fetch.start_block)
            self.counters.prefetch_gb_per_s.observe(fetch.n_bytes * share / seconds / 1e9)
            self.counters.prefetch_blocks.observe(arrived)
        self.host.full.reserved -= prefetch.tokens
        self.host.swa.reserved -= prefetch.window_tokens
        return arrived

    def _hang(self, blocks: bytes, start: int, end: int) -> int:
        """Put fetched blocks into the tree, with the window at their end; those that were not there."""
        tree = self._tree
        path, partial, position = tree.walk(tree.root, blocks, end)
        if position < start:
            return 0
        node = path[-1] if path else tree.root
        if partial is not None:
            node = tree.split(partial, position) if position < partial.end else partial
        if position < end:
            node = tree.attach(node, blocks[position * HASH_BYTES : end * HASH_BYTES])
            held = self.host.hold(node)
            assert held, "its room was reserved"
        self.host.touch(node)
        walk = node
        while walk.parent is not None and walk.end > end - self._window_blocks:
            if walk.host and not walk.host_swa:
                if walk.start < end - self._window_blocks and not tree.states:
                    tree.split(walk, end - self._window_blocks)
                self.host.hold_window(walk)
            walk = walk.parent
        return end - position

    def _copy(self, run: Node, windows: list[Span], *, cut: bool = True) -> bool:
        """Copy a run that is on the device only to the host; False if it has no room.

        ``windows`` takes the span whose window KV the shared pool should have. ``cut`` cuts off the part
        before the last window and a block, so that its window KV is not copied; not while the device is
        dropping the run.
        """
        if not self.host.hold(run):
            return False
        self.counters.backed_up_tokens += run.blocks * self._size
        run.hits = 0
        if self._has_window(run):
            self._copy_window(run, windows, cut=cut)
        return True

    def _has_window(self, run: Node) -> bool:
        """True if the device has what a boundary at the end of a run needs beside full KV."""
        return run.state is not None if self._tree.states else run.swa

    def _copy_window(self, run: Node, windows: list[Span], *, cut: bool = True) -> None:
        kept_from = run.end - self._window_blocks - 1
        if cut and run.start < kept_from and not self._tree.states:
            self._tree.split(run, kept_from)
        if self.host.hold_window(run):
            windows.append((max(run.start, run.end - self._window_blocks), run.end))

    def _repair(self, node: Node, session: bytes) -> None:
        """Copy what the host lacks of the window before the end of a node, and of the states on its path."""
        walk = node
        first = 0 if self._tree.states else node.end - self._window_blocks - 1
        while walk.parent is not None and walk.end > first:
            if walk.host and self._has_window(walk) and not walk.host_swa:
                windows: list[Span] = []
                self._copy_window(walk, windows)
                self._archive(walk, walk.start, walk.end, windows, session)
            walk = walk.parent

    def _archive(self, node: Node, start: int, end: int, windows: list[Span], session: bytes) -> None:
        """Write blocks on the path to a node to the shared pool, as far as they are not there."""
        if self.client is not None:
            self.client.store(sequence_to(node), start, end, windows, self._now_s, session)
