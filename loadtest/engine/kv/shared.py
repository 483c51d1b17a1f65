"""vLLM's device memory: one pool of blocks for all groups of layers, and one LRU order.

vLLM's hybrid manager (``docs/design/hybrid_kv_cache_manager.md``, ``v1/core/block_pool.py``) puts layers into
groups of one size, and all groups take blocks from one pool. Each block is evicted on its own, in the order
in which blocks came free: a request's from its tail, window KV already when the window has moved on.

In tokens of one group a block with full KV costs its tokens, one with window KV ``swa_groups`` times as much.
The pool is as large as both pools of `CacheRules` together.

* Recency counts from the unlocking of window KV, and from the end of the request for full KV, which goes
  first, as its group is freed first.
* A leaf without window KV is kept: full KV and window KV live and die apart. Only window KV without full KV
  is dropped with it, for no hit can reach it; in vLLM it would wait for its turn.
"""

from loadtest.engine.kv.device import Device, deepest_first
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import Node, RadixTree


class SharedDevice(Device):
    """A `Device` with one pool; the listener hears of each group."""

    def __init__(self, rules: CacheRules, tree: RadixTree, listener: KvListener) -> None:
        super().__init__(rules, tree, listener, None)
        self._groups = rules.swa_groups
        self._capacity = rules.full_tokens + rules.swa_groups * rules.swa_tokens

    @property
    def capacity_tokens(self) -> int:
        """Room for KV of either kind."""
        return self._capacity

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests lock or reserve."""
        return self.full.used + self._groups * self.swa.used

    def fits(self, room: int, unlocked: int, committed: int) -> bool:
        """See `Device`."""
        taken = self.full.used + self._groups * self.swa.committed
        return room + unlocked + self._groups * committed <= self._capacity - taken

    def unlock_window(self, node: Node, blocks: int) -> None:
        """See `Device`; window KV comes free now."""
        super().unlock_window(node, blocks)
        start = node.end - blocks
        walk = node
        while blocks and walk.end > start:
            if not walk.swa_locks and walk.swa:
                walk.swa_used = self.operation
                self._windows.add(walk.swa_used, walk)
            assert walk.parent is not None
            walk = walk.parent

    def touch_window(self, node: Node) -> None:
        """See `Device`; locked blocks are not in the order, and others were not used."""

    def retire_window(self, node: Node) -> None:
        """See `Device`."""
        super().retire_window(node)
        self._listener.removed(deepest_first(node.key), "sliding_window", "GPU")

    def make_room(self) -> None:
        """See `Device`."""
        while (missing := -self._free) > 0:
            leaf, window = self._leaves.peek(), self._windows.peek()
            if window is None or (leaf is not None and leaf.used <= window.swa_used):
                assert leaf is not None
                self._evict_leaf(leaf, missing)
            else:
                blocks = -(-missing // (self._size * self._groups))
                if blocks < window.blocks:
                    window = self._tree.split(window, window.start + blocks)
                self._evict_window(window)

    @property
    def _free(self) -> int:
        held = self.full.held + self.full.reserved + self._groups * (self.swa.held + self.swa.reserved)
        return self._capacity - held

    def _evict_leaf(self, leaf: Node, missing: int) -> None:
        """Drop as much of the tail of a leaf as is missing, counting window KV that goes with it."""
        cost = self._size * (1 + self._groups * leaf.swa)
        blocks = -(-missing // cost)
        if blocks < leaf.blocks:
            self._cut(leaf, blocks)
        else:
            parent = leaf.parent
            assert parent is not None
            self._drop(leaf)
            self._leaf(parent)

    def _useless(self, node: Node) -> bool:
        return False
