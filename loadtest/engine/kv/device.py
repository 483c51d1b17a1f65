"""The device tier (L1): KV on the GPU, its users, and its eviction.

Two pools, each with its own accounts, locks and recency (MiMo-V2.5, arXiv:2607.13095, 3.1.1; SGLang
``swa_radix_cache.py``):

* *Full pool.* A lease locks the whole path to its node. Unlocked leaves go, least recently used first, from
  their tails: a block-wise LRU, since a prefix is never used later than what continues it. A leaf takes its
  window KV along, and parents that become leaves from which nothing can be reused (tombstones) go with it.
* *Window pool.* A lease locks the window before its node, in whole blocks. Unlocked runs go, least recently
  used first and nearest to the root first: a block with a continuation becomes a tombstone, a last one goes
  altogether. A match or an insertion counts as a use of the last W tokens and a block only
  (``unified_cache_components/swa_component.py``, ``refresh_lru``).

SGLang evicts whole nodes; here a run is cut where the need ends, so results do not depend on how sequences
were cut into nodes. `SharedDevice` has vLLM's single pool. A lower tier may keep what leaves (`TierPolicy`):
the node then stays in the tree without ``device``.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import Group, KvListener
from loadtest.engine.kv.pools import Pool
from loadtest.engine.kv.recency import Recency
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import Node, RadixTree, TreeObserver


class TierPolicy(TreeObserver, Protocol):
    """The lower tiers of a cache: host memory and the shared pool.

    It keeps `Node.host`, `Node.host_swa` and the host's accounts. Host copies are closed under prefixes, as
    device copies are. The policy may evict host copies, deepest first, but not of nodes with ``locks`` or
    ``host_locks``, and detaches nodes that are on no tier any more.
    """

    def open(self, lease: Lease, now_s: float) -> None:
        """A request was queued: start its prefetch and set ``lease.ready_s``."""

    def settle(self, lease: Lease, now_s: float) -> None:
        """It is about to be matched: add its prefetched blocks to the tree, as host-only nodes."""

    def reused(self, lease: Lease, now_s: float) -> None:
        """It was admitted and reuses the path to its node; sets ``pool_tokens``."""

    def load(self, lease: Lease, full_blocks: int, window_blocks: int, now_s: float) -> None:
        """Copy blocks of full and of window KV to the device; sets ``load_bytes``."""

    def stored(self, lease: Lease, node: Node, now_s: float) -> None:
        """A prefill, or an answer, has ended at a node: new blocks on its path may be copied to the host."""

    def leaving(self, node: Node, group: Group) -> None:
        """The device copy of a run is about to go; last chance to copy it."""

    def ended(self, lease: Lease, now_s: float) -> None:
        """The request is over, in any state."""

    def clear(self) -> None:
        """Drop all host copies that are not in use."""


class Device:
    """The nodes on the device.

    Attributes:
        full: Accounts of the full pool.
        swa: Accounts of the window pool.
        operation: Number of the operation in progress: the time of recency.
        dropping: Called before a node leaves the device; set by `Checkpoints`.
    """

    def __init__(
        self, rules: CacheRules, tree: RadixTree, listener: KvListener, tiers: TierPolicy | None
    ) -> None:
        self.full = Pool(rules.full_tokens)
        self.swa = Pool(rules.swa_tokens)
        self.operation = 0
        self.dropping: Callable[[Node], None] | None = None
        self._window_blocks = rules.window_blocks
        self._attention = rules.attention
        self._tree = tree
        self._listener = listener
        self._tiers = tiers
        self._size = rules.block_tokens
        self._leaves = Recency(self._is_leaf)
        self._windows = Recency(self._is_window)
        tree.observers.append(self)

    @property
    def capacity_tokens(self) -> int:
        """Room for full KV."""
        return self.full.capacity

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests lock or reserve."""
        return self.full.used

    def fits(self, room: int, unlocked: int, committed: int) -> bool:
        """True if a request can be admitted.

        It needs ``room`` tokens of the full pool beyond those that it finds, of which ``unlocked`` are not
        locked yet, and at most ``committed`` tokens of the window pool.
        """
        return room + unlocked <= self.full.obtainable and committed <= self.swa.capacity - self.swa.committed

    def split(self, upper: Node, lower: Node) -> None:
        """See `TreeObserver`."""
        if lower.swa:
            self._windows.add(upper.swa_used, upper)
            self._windows.add(lower.swa_used, lower)
        self._leaf(lower)

    def merged(self, gone: Node, into: Node) -> None:
        """See `TreeObserver`."""
        if into.swa:
            self._windows.add(into.swa_used, into)
        self._leaf(into)

    def hold(self, node: Node) -> None:
        """The full KV of a run has come to the device."""
        assert not node.device
        self._tree.set_device(node, device=True)
        tokens = node.blocks * self._size
        self.full.held += tokens
        if node.locks:
            self.full.locked += tokens

    def hold_window(self, node: Node) -> None:
        """The window KV of a run has come to the device."""
        assert not node.swa
        node.swa = True
        node.swa_used = self.operation
        tokens = node.blocks * self._size
        self.swa.held += tokens
        if node.swa_locks:
            self.swa.locked += tokens
        else:
            self._windows.add(node.swa_used, node)

    def lock(self, node: Node) -> None:
        """Lock the path to a node."""
        walk: Node | None = node
        while walk is not None:
            walk.locks += 1
            if walk.locks > 1:
                return
            if walk.device:
                self.full.locked += walk.blocks * self._size
            walk = walk.parent

    def unlock(self, node: Node) -> None:
        """Undo `lock`."""
        walk: Node | None = node
        while walk is not None:
            walk.locks -= 1
            if walk.locks:
                break
            if walk.device:
                self.full.locked -= walk.blocks * self._size
            walk = walk.parent

    def touch(self, node: Node) -> None:
        """The path to a node was used as a whole, and may be unlocked now."""
        node.used = self.operation
        self._leaf(node)

    def lock_window(self, node: Node, blocks: int) -> None:
        """Lock the window KV of the last blocks of the path to a node; cuts a run that begins earlier."""
        start = node.end - blocks
        walk = node
        while blocks and walk.end > start:
            if walk.start < start:
                self._tree.split(walk, start)
            if walk.swa_locks == 0 and walk.swa:
                self.swa.locked += walk.blocks * self._size
            walk.swa_locks += 1
            assert walk.parent is not None
            walk = walk.parent

    def unlock_window(self, node: Node, blocks: int) -> None:
        """Undo `lock_window`; blocks without another lock can be evicted."""
        start = node.end - blocks
        walk = node
        while blocks and walk.end > start:
            walk.swa_locks -= 1
            if walk.swa_locks == 0 and walk.swa:
                self.swa.locked -= walk.blocks * self._size
                self._windows.add(walk.swa_used, walk)
            assert walk.parent is not None
            walk = walk.parent

    def touch_window(self, node: Node) -> None:
        """The window before the end of a node was used, and the block before it."""
        start = node.end - self._window_blocks - 1
        walk = node
        while walk.end > start and walk.parent is not None:
            if walk.start < start:
                self._tree.split(walk, start)
            walk.swa_used = self.operation
            if walk.swa and not walk.swa_locks:
                self._windows.add(walk.swa_used, walk)
            walk = walk.parent

    def retire_window(self, node: Node) -> None:
        """Free the window KV of an unlocked run; it becomes a tombstone."""
        if self._tiers is not None:
            self._tiers.leaving(node, "sliding_window")
        node.swa = False
        self.swa.held -= node.blocks * self._size

    def make_room(self) -> None:
        """Evict until the held and reserved blocks fit. The locked and reserved ones must fit."""
        if self.full.free < 0:
            self._evict(-self.full.free)
        while self.swa.free < 0:
            node = self._windows.pop()
            blocks = -(self.swa.free // self._size)
            if blocks < node.blocks:
                node = self._tree.split(node, node.start + blocks)
            if node.device_children or node.locks:
                self._evict_window(node)
            else:
                self._drop_branch(node)

    def drop_useless(self, node: Node) -> None:
        """Drop a node if nothing can be reused from it any more and nothing needs it."""
        if self._evictable(node):
            self._drop_branch(node)

    def clear(self) -> None:
        """Evict everything that is not locked."""
        self._evict(self.full.held - self.full.locked)

    def _evict(self, missing: int) -> None:
        while missing > 0:
            node = self._leaves.pop()
            blocks = -(-missing // self._size)
            if blocks < node.blocks and not self._useless(node):
                missing -= self._cut(node, blocks)
            else:
                missing -= self._drop_branch(node)

    def _useless(self, node: Node) -> bool:
        """True if a boundary inside a leaf, or at its end, can never be reused."""
        if self._attention == "sliding_window":
            return not node.swa
        return self._attention == "linear"

    def _cut(self, node: Node, blocks: int) -> int:
        """Drop the last blocks of a leaf; returns the tokens dropped."""
        head = self._tree.split(node, node.end - blocks)
        dropped = self._drop(node)
        self._leaf(head)
        return dropped

    def _drop_branch(self, node: Node) -> int:
        """Drop a leaf and the parents that are left as useless leaves; returns the tokens dropped."""
        dropped = 0
        while True:
            parent = node.parent
            assert parent is not None
            dropped += self._drop(node)
            if not self._evictable(parent):
                return dropped
            if parent.state is not None or not self._useless(parent):
                self._leaf(parent)
                return dropped
            node = parent

    def _drop(self, node: Node) -> int:
        if self._tiers is not None:
            self._tiers.leaving(node, "full")
        if self.dropping is not None:
            self.dropping(node)
        if node.swa:
            self._evict_window(node)
        tokens = node.blocks * self._size
        self.full.held -= tokens
        self.full.evicted += tokens
        if type(self._listener) is not KvListener:
            self._listener.removed(deepest_first(node.key), "full", "GPU")
        assert node.parent is not None
        node.parent.used = max(node.parent.used, node.used)
        self._tree.set_device(node, device=False)
        if not node.host:
            self._tree.detach(node)
        return tokens

    def _evict_window(self, node: Node) -> None:
        self.swa.evicted += node.blocks * self._size
        self.retire_window(node)

    def _evictable(self, node: Node) -> bool:
        return node.device and not node.locks and not node.device_children and node.parent is not None

    def _leaf(self, node: Node) -> None:
        if self._evictable(node):
            self._leaves.add(node.used, node)

    def _is_leaf(self, used: int, node: Node) -> bool:
        return node.used == used and self._evictable(node)

    @staticmethod
    def _is_window(used: int, node: Node) -> bool:
        return node.swa_used == used and node.swa and not node.swa_locks and node.parent is not None


def deepest_first(key: bytes) -> bytes:
    """The hashes of a run in the order in which they go."""
    return np.frombuffer(key, "<u8")[::-1].tobytes()
