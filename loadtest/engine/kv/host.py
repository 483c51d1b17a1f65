"""The host tier (L2): copies of runs in CPU memory, and their eviction.

    on the device and the host     stays: it would have to be copied again
    on the host alone, a leaf      may go, least recently used first
    on the host alone, inside      goes after what continues it

Full and window KV have separate pools "also in L2" (MiMo-V2.5, arXiv:2607.13095, 3.1.1). Window KV is copied
for the last window of a run and a block: for a boundary at its end, or one block before. A state of linear
layers has its copy here as one block of window KV has, at the end of its run. A leaf takes along
host-only parents that nothing can go on from (SGLang ``mem_cache/hi_swa_radix_cache.py``,
``_evict_host_leaf``). Prefetches under way *reserve* room: ``held + reserved <= capacity`` in both pools.
"""

from loadtest.engine.kv.device import deepest_first
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.pools import Pool
from loadtest.engine.kv.recency import Recency
from loadtest.engine.kv.tree import Node, RadixTree


class HostMemory:
    """The nodes in host memory.

    Args:
        full_tokens: Room for full KV.
        swa_tokens: Room for window KV.
        window_blocks: Blocks of window KV that a boundary needs, 1 for states; 0 without such layers.
    """

    def __init__(
        self,
        tree: RadixTree,
        listener: KvListener,
        *,
        block_tokens: int,
        full_tokens: int,
        swa_tokens: int,
        window_blocks: int,
    ) -> None:
        self.full = Pool(full_tokens)
        self.swa = Pool(swa_tokens)
        self._tree = tree
        self._listener = None if type(listener) is KvListener else listener
        self._size = block_tokens
        self._window_blocks = window_blocks
        self._operation = 0
        self._leaves = Recency(self._is_leaf)
        self._windows = Recency(self._is_window)

    def split(self, upper: Node, lower: Node) -> None:
        """See `TreeObserver`."""
        # The lower part was pinned, and it keeps the upper one from being a leaf.
        upper.host_locks = 0
        if lower.host_swa:
            self._windows.add(upper.host_swa_used, upper)
        self._entered(lower)

    def merged(self, into: Node) -> None:
        """A run has grown at its head."""
        self._entered(into)

    def touch(self, node: Node) -> None:
        """One operation used the path to a node, and the window and a block before its end."""
        self._operation += 1
        start = node.end - self._window_blocks - 1
        walk = node
        while walk.parent is not None:
            walk.host_used = self._operation
            if walk.host_swa and walk.end > start:
                walk.host_swa_used = self._operation
                self._windows.add(walk.host_swa_used, walk)
            walk = walk.parent
        self._leaf(node)

    def hold(self, node: Node) -> bool:
        """Copy the full KV of a run; False if there is no room."""
        assert not node.host
        tokens = node.blocks * self._size
        if not self.make_room(tokens):
            return False
        self.full.held += tokens
        node.host = True
        self._leaf(node)
        return True

    def hold_window(self, node: Node) -> bool:
        """Copy the window KV of a run that is here; False if there is no room."""
        assert node.host
        assert not node.host_swa
        tokens = self._window_tokens(node)
        if not self.make_window_room(tokens):
            return False
        self.swa.held += tokens
        node.host_swa = True
        node.host_swa_used = self._operation
        self._windows.add(node.host_swa_used, node)
        return True

    def make_room(self, tokens: int) -> bool:
        """Evict until ``tokens`` are free in the full pool, or nothing more can be evicted."""
        if tokens > self.full.capacity:
            return False
        while (missing := tokens - self.full.free) > 0:
            node = self._leaves.take()
            if node is None:
                return False
            blocks = -(-missing // self._size)
            whole = self._tree.states or (self._window_blocks and not node.host_swa)
            if blocks < node.blocks and not whole:
                head = self._tree.split(node, node.end - blocks)
                self._drop(node)
                self._leaf(head)
            else:
                self._drop_branch(node)
        return True

    def make_window_room(self, tokens: int) -> bool:
        """Evict until ``tokens`` are free in the window pool, or nothing more can be evicted."""
        if tokens > self.swa.capacity:
            return False
        while tokens > self.swa.free:
            node = self._windows.take()
            if node is None:
                return False
            if self._evictable(node):
                self._drop_branch(node)
            else:
                self._drop_window(node)
        return True

    def left_device(self, node: Node) -> None:
        """The device copy of a run that is here is about to go: it may be a leaf then."""
        if not node.children:
            self._leaves.add(node.host_used, node)

    def drop_below(self, node: Node) -> None:
        """A run leaves the device and is not here: what continues it can never be reached again."""
        below = list(node.children.values())
        for child in below:
            below += child.children.values()
        for child in reversed(below):
            self._drop(child)

    def release(self, node: Node) -> None:
        """A prefetch no longer pins a run."""
        node.host_locks -= 1
        self._leaf(node)

    def clear(self) -> None:
        """Drop every copy that is not in use."""
        for node in reversed(list(self._tree.nodes())):
            if node.host and not node.locks and not node.host_locks:
                if node.host_swa:
                    self._drop_window(node)
                if node.device:
                    node.host = False
                    self.full.held -= node.blocks * self._size
                elif not node.children:
                    self._drop(node)

    def _drop_branch(self, node: Node) -> None:
        """Drop a leaf and the parents that it leaves without a usable boundary."""
        while True:
            parent = node.parent
            assert parent is not None
            self._drop(node)
            if not self._evictable(parent):
                return
            if not self._window_blocks or parent.host_swa:
                self._leaf(parent)
                return
            node = parent

    def _drop(self, node: Node) -> None:
        tokens = node.blocks * self._size
        if node.host_swa:
            self._drop_window(node)
        node.host = False
        self.full.held -= tokens
        self.full.evicted += tokens
        if self._listener is not None:
            self._listener.removed(deepest_first(node.key), "full", "CPU_PINNED")
        self._tree.detach(node)

    def _window_tokens(self, node: Node) -> int:
        return self._size if self._tree.states else node.blocks * self._size

    def _drop_window(self, node: Node) -> None:
        tokens = self._window_tokens(node)
        node.host_swa = False
        self.swa.held -= tokens
        self.swa.evicted += tokens

    def _entered(self, node: Node) -> None:
        if node.host_swa:
            self._windows.add(node.host_swa_used, node)
        self._leaf(node)

    def _leaf(self, node: Node) -> None:
        if node.host and not node.device and not node.children:
            self._leaves.add(node.host_used, node)

    @staticmethod
    def _evictable(node: Node) -> bool:
        return (
            node.host
            and not node.device
            and not node.children
            and not node.locks
            and not node.host_locks
            and node.parent is not None
        )

    def _is_leaf(self, used: int, node: Node) -> bool:
        return node.host_used == used and self._evictable(node)

    @staticmethod
    def _is_window(used: int, node: Node) -> bool:
        return (
            node.host_swa_used == used and node.host_swa and not node.host_locks and node.parent is not None
        )
