"""Sliding windows: window KV that a request needs, locks, leaves behind and releases.

    window    .......##..........##........##..........        # live, . tombstone
    pressure  ################################........####
                     junction    interval  prompt    answer

* A request goes on from a boundary only with a whole window before it (`matching`). It locks that window in
  the tree, in whole blocks, and moves the lock along as it inserts.
* *Room.* A running request has its window and the step that it computes (MiMo-V2.5, arXiv:2607.13095, 3.1.3:
  the pool stays at the size of a window or of a chunk). Its commitment counts its window as unshared, so the
  sum of commitments bounds what is locked and reserved.
* *Release*, when the request moves on (`CacheRules.swa_release`). ``window`` is vLLM's retention by positions
  (``v1/core/single_type_kv_cache_manager.py``, ``cache_blocks``, ``reachable_block_mask``): with a retention
  interval, 0 included, it keeps windows at the multiples of the interval, at the end of the prompt, and where
  the prompt left a known sequence (the shared-prefix junction). Kept windows go in their turn of the LRU
  order only. SGLang's is `SglangWindows`. ``pressure`` is vLLM's dense checkpointing, and SGLang's rule up
  to 0.5.16 (``swa_radix_cache.py``, ``cache_unfinished_req``): whole chunks stay until evicted.
* *Answers* of SGLang are released but for the last W tokens and a block (``mem_cache/common.py``,
  ``free_swa_out_of_window_slots``: the block more keeps a boundary before a partial block usable).
* *Decode.* Once the window has left the prompt, checked every N tokens, its KV there is unlocked, and freed
  at once where nothing else continues it (``swa_radix_cache.py``, ``dec_swa_lock_only``).

Tombstones that a request passes are computed again, and so healed.
"""

from loadtest.engine.kv.boundaries import Boundaries
from loadtest.engine.kv.device import Device
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.matching import safe_blocks
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import Node, RadixTree


class Windows(Boundaries):
    """Boundaries by sliding windows; the listener hears of stored ones by vLLM's rule."""

    def __init__(self, rules: CacheRules, tree: RadixTree, device: Device, listener: KvListener) -> None:
        super().__init__(rules.block_tokens)
        self._rules = rules
        self._tree = tree
        self._device = device
        self._listener = listener
        self._size = rules.block_tokens
        self._needed = rules.window_blocks
        self._vllm = rules.match_rule == "vllm"
        self._tail_tokens = rules.window_tokens + rules.block_tokens

    def usable(self, nodes: list[Node], matched: int) -> tuple[int, int]:
        """See `Boundaries`."""
        on_device = safe_blocks(nodes, matched, self._needed)
        if on_device == matched:
            return matched, matched
        return on_device, safe_blocks(nodes, matched, self._needed, host=True)

    def commitment(self, lease: Lease) -> int:
        """See `Boundaries`."""
        total = lease.prompt_tokens + lease.output_tokens
        return min(total, self._needed * self._size + self._room(total))

    def admitted(self, lease: Lease, matched: int) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        if self._rules.swa_release == "window":
            lease.kept_ends = [matched, (lease.prompt_tokens - 1) // self._size]
        lease.window_locked = min(lease.end, self._needed)
        self._device.lock_window(lease.node, lease.window_locked)
        self._reserve(lease)
        self._device.touch_window(lease.node)

    def load(self, lease: Lease) -> int:
        """See `Boundaries`."""
        walk = lease.node
        assert walk is not None
        blocks = 0
        while walk.parent is not None and walk.end > lease.end - lease.window_locked:
            if not walk.swa:
                blocks += walk.blocks
                self._hold(lease, walk)
            walk = walk.parent
        return blocks

    def inserted(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        rules, device = self._rules, self._device
        keep = self._kept_from(tokens)
        if rules.swa_release == "pressure" and (self._vllm or tokens <= lease.prompt_tokens):
            self._revive(lease, node, start, lease.end)
        else:
            for position in self._kept_ends(lease, start, keep + self._needed - 1):
                self._revive(lease, node, max(start, position - self._needed), position)
            lease.live += self._revive(lease, node, max(start, keep), lease.end)
        blocks = min(lease.end, self._needed)
        device.lock_window(node, blocks)
        device.unlock_window(lease.node, lease.window_locked)
        lease.window_locked = blocks
        if rules.swa_release == "window":
            self._release(lease, node, keep)
        device.touch_window(node)
        self._reserve(lease)

    def decoded(self, lease: Lease, tokens: int) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        answer = tokens - lease.prompt_tokens
        released = tokens - answer % self._rules.decode_release_tokens
        if not lease.window_locked or self._kept_from(released) < lease.end:
            return
        node, start = lease.node, lease.end - lease.window_locked
        self._device.unlock_window(node, lease.window_locked)
        lease.window_locked = 0
        if self._rules.swa_release == "window":
            self._release(lease, node, lease.end)
        if not self._vllm and not node.device_children:
            top = node
            while top.start > start and top.parent is not None and top.parent.device_children == 1:
                top = top.parent
            self._retire(lease, node, max(start, top.start), lease.end, self._device.operation)

    def ended(self, lease: Lease) -> None:
        """See `Boundaries`."""
        device = self._device
        assert lease.node is not None
        device.swa.reserved -= lease.swa_reserved
        lease.swa_reserved = 0
        device.unlock_window(lease.node, lease.window_locked)
        lease.window_locked = 0
        if lease.kept_ends:
            self._release(lease, lease.node, lease.end)
        device.touch_window(lease.node)

    def _room(self, rest: int) -> int:
        """Window KV that a request may have outside of the tree: a step, or a window while it decodes.

        vLLM plans a step while the one before still runs, and frees nothing that this one may read
        (``v1/core/kv_cache_manager.py``, ``allocate_slots``: ``num_in_flight_tokens``).
        """
        rules = self._rules
        step = rules.chunk_tokens * (1 + self._vllm) + self._size if rules.chunk_tokens else rest
        return min(rest, max(step, rules.window_tokens + rules.decode_release_tokens + 2 * self._size))

    def _reserve(self, lease: Lease) -> None:
        wanted = self._room(lease.prompt_tokens + lease.output_tokens - lease.end * self._size)
        self._device.swa.reserved += wanted - lease.swa_reserved
        lease.swa_reserved = wanted

    def _kept_from(self, tokens: int) -> int:
        """First block whose window KV a request of ``tokens`` keeps."""
        return max(0, tokens - self._tail_tokens) // self._size

    def _kept_ends(self, lease: Lease, start: int, end: int) -> list[int]:
        """Boundaries in ``(start, end]`` whose windows stay, in blocks.

        Inside a block the boundary before it.
        """
        interval, size = self._rules.retained_interval_tokens, self._size
        ends = set(lease.kept_ends)
        if interval:
            first = start * size // interval * interval
            ends.update(at // size for at in range(first, end * size + size, interval))
        return sorted(at for at in ends if start < at <= end)

    def _hold(self, lease: Lease, node: Node) -> None:
        self._device.hold_window(node)
        if self._vllm:
            self._listener.stored(lease, node.start, node.end, "sliding_window")

    def _revive(self, lease: Lease, node: Node, start: int, end: int) -> list[tuple[int, int]]:
        """Fresh window KV for blocks on the path to a node: tombstones become live; says which."""
        revived: list[tuple[int, int]] = []
        walk = node
        while walk.end > start:
            if not walk.swa and walk.start < end:
                if walk.start < start:
                    self._tree.split(walk, start)
                if walk.end > end:
                    walk = self._tree.split(walk, end)
                self._hold(lease, walk)
                revived.append((walk.start, walk.end))
            assert walk.parent is not None
            walk = walk.parent
        return revived

    def _release(self, lease: Lease, node: Node, before: int) -> None:
        """Release the window KV before a block that a request has put on the path to a node."""
        since = self._device.operation  # it was hidden from others all the time
        live: list[tuple[int, int]] = []
        for start, end in lease.live:
            if end > before:
                live.append((max(start, before), end))
            self._retire(lease, node, start, min(end, before), since)
        lease.live = live

    def _retire(self, lease: Lease, node: Node, start: int, end: int, since: int) -> None:
        """Free the window KV of blocks on the path to a node, but for windows that stay."""
        for position in self._kept_ends(lease, start, end + self._needed - 1):
            self._free(node, start, min(end, position - self._needed), since)
            start = position
        self._free(node, start, end, since)

    def _free(self, node: Node, start: int, end: int, since: int) -> None:
        """Free window KV that is not locked and was not used since an operation."""
        if start >= end:
            return
        walk = node
        while walk.end > start:
            if walk.swa and not walk.swa_locks and walk.start < end and walk.swa_used <= since:
                if walk.start < start:
                    self._tree.split(walk, start)
                if walk.end > end:
                    walk = self._tree.split(walk, end)
                self._device.retire_window(walk)
            assert walk.parent is not None
            walk = walk.parent
