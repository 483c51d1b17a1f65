"""The front door of one worker's KV stack: leases of requests on one data-parallel rank.

    lease = cache.open(blocks, prompt_tokens, output_tokens, now_s)     queued; prefetch begins
    cache.admit(lease, now_s)         match, lock, reserve; False: no room now, nothing changed
    cache.computed(lease, t, now_s)   after each chunk: t prompt tokens are computed in all
    cache.decoded(lease, t, now_s)    now and then: t tokens of the answer are there
    cache.close(lease, blocks, t, now_s)   ended well: its blocks stay until evicted
    cache.abort(lease, now_s)         in any state

* A match is at most prompt - 1 tokens, in whole blocks: an engine always recomputes the last one.
* Admission reserves room for the rest of the prompt and the whole answer, so a running request
  is never preempted, and ``held + reserved <= capacity`` in both pools after every call.
* In the window pool a request never has more than its window and the step that it computes, so that is what
  it is admitted for. Its commitment counts its window as if nobody shared it: then the sum of
  commitments bounds what is locked and reserved, whoever leaves first.
* What becomes of window KV that its request has moved on from says `CacheRules.swa_release`. At the end
  of a request only the last W tokens and a block stay in any case, as in SGLang's
  ``free_swa_out_of_window_slots`` (``mem_cache/common.py``).
"""

from loadtest.engine.kv.device import Device, TierPolicy
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener, NullListener
from loadtest.engine.kv.matching import safe_blocks
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import Node, RadixTree
from radix.blocks import HASH_BYTES


class KvCache:
    """The KV cache of one rank.

    Args:
        rules: Sizes and whose rules apply.
        listener: Hears KV events.
        tree: The tree that ``tiers`` works on, if there are any.
        tiers: Lower tiers; None: the device only.
    """

    def __init__(
        self,
        rules: CacheRules,
        listener: KvListener | None = None,
        *,
        tree: RadixTree | None = None,
        tiers: TierPolicy | None = None,
    ) -> None:
        self.rules = rules
        self.tree = tree or RadixTree()
        self.tiers = tiers
        self._listener = listener or NullListener()
        self.device = Device(rules, self.tree, self._listener, tiers)
        self._size = rules.block_tokens
        self._swa_committed = 0
        # Engines keep a block more than the window, so that a boundary before a partial block is usable.
        self._tail_tokens = rules.window_tokens + rules.block_tokens if rules.window_tokens else 0
        if tiers is not None:
            self.tree.observers.append(tiers)

    @property
    def capacity_tokens(self) -> int:
        """Room of the full pool."""
        return self.device.full.capacity

    @property
    def held_tokens(self) -> int:
        """Tokens of the full pool that can be matched, locked or not."""
        return self.device.full.held

    @property
    def used_tokens(self) -> int:
        """Tokens of the full pool that running requests lock or reserve: what engines report as usage."""
        return self.device.full.used

    @property
    def evicted_tokens(self) -> int:
        """Tokens evicted from the full pool since the start."""
        return self.device.full.evicted

    @property
    def swa_held_tokens(self) -> int:
        """`held_tokens` of the window pool."""
        return self.device.swa.held

    @property
    def swa_used_tokens(self) -> int:
        """`used_tokens` of the window pool."""
        return self.device.swa.used

    def open(self, blocks: bytes, prompt_tokens: int, output_tokens: int, now_s: float) -> Lease:
        """Queue a request.

        Args:
            blocks: Packed chained hashes of the full blocks of the prompt.
            prompt_tokens: Length of the prompt, > 0.
            output_tokens: Longest answer. Prompt and answer must fit the empty cache.
            now_s: Now.
        """
        assert len(blocks) // HASH_BYTES == prompt_tokens // self._size
        lease = Lease(blocks, prompt_tokens, output_tokens, now_s)
        if self.tiers is not None:
            self.tiers.open(lease, now_s)
        return lease

    def match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        """What `admit` would reuse from the device now; changes nothing."""
        path, partial, matched = self.tree.walk(self.tree.root, blocks, (prompt_tokens - 1) // self._size)
        return self._usable(path, partial, matched)[0] * self._size

    def admit(self, lease: Lease, now_s: float) -> bool:
        """Match a request, lock what it reuses and reserve room for the rest.

        Returns:
            False if there is no room now; then nothing changed.
        """
        assert lease.state == "open"
        if self.tiers is not None:
            self.tiers.settle(lease, now_s)
        path, partial, matched = self.tree.walk(
            self.tree.root, lease.blocks, (lease.prompt_tokens - 1) // self._size
        )
        on_device, usable = self._usable(path, partial, matched)
        missing = unlocked = 0
        if partial is not None:
            path.append(partial)
        for node in path:
            blocks = min(node.end, usable) - node.start
            if blocks <= 0:
                break
            if not node.device:
                missing += blocks
            elif not node.locks:
                unlocked += blocks
        device = self.device
        room = lease.prompt_tokens + lease.output_tokens - (usable - missing) * self._size
        committed = self._window_commitment(lease)
        if (
            room > device.full.obtainable - unlocked * self._size
            or committed > device.swa.capacity - self._swa_committed
        ):
            return False
        while path and path[-1].start >= usable:
            path.pop()
        node = self.tree.root
        if path:
            node = path[-1]
            if node.end > usable:
                node = path[-1] = self.tree.split(node, usable)
        lease.state = "admitted"
        lease.node = node
        lease.end = lease.first_block = usable
        lease.device_tokens = on_device * self._size
        lease.host_tokens = (usable - on_device) * self._size
        lease.window_locked = min(usable, self.rules.window_blocks)
        lease.reserved = room - missing * self._size
        lease.swa_committed = committed
        device.lock(node)
        device.lock_window(node, lease.window_locked)
        device.full.reserved += lease.reserved
        self._swa_committed += committed
        if self.tiers is not None:
            self._load(lease, path, missing, now_s)
        self._reserve_window(lease, lease.prompt_tokens + lease.output_tokens)
        device.touch_window(node)
        device.make_room()
        return True

    def computed(self, lease: Lease, prompt_tokens: int, now_s: float) -> None:
        """A step has ended: so many tokens of the prompt are computed in all."""
        self._insert(lease, prompt_tokens, now_s)
        self.device.make_room()

    def decoded(self, lease: Lease, tokens: int, now_s: float) -> None:
        """So many tokens of the answer are there in all: may release window KV, every N tokens.

        Once the window has left the prompt, its KV is not locked any more, and that of the last run is freed
        unless something continues it (SGLang ``swa_radix_cache.py``, ``dec_swa_lock_only``).
        """
        assert lease.state == "admitted"
        assert lease.node is not None
        released = tokens - tokens % self.rules.decode_release_tokens
        if not lease.window_locked or self._kept_from(lease.prompt_tokens + released) < lease.end:
            return
        node = lease.node
        self.device.unlock_window(node, lease.window_locked)
        lease.window_locked = 0
        self._release_windows(lease, node, lease.end)
        if node.swa and not node.swa_locks and not node.device_children:
            self.device.retire_window(node)

    def close(self, lease: Lease, blocks: bytes, tokens: int, now_s: float) -> None:
        """A request has ended well.

        Args:
            lease: Its lease, admitted.
            blocks: Packed hashes of the full blocks that it computed, prompt and answer; begin
                with those of the prompt as far as it was computed.
            tokens: Tokens that it computed: all but the last sampled one.
            now_s: Now.
        """
        lease.blocks = blocks
        self._insert(lease, tokens, now_s)
        self._end(lease, now_s)

    def abort(self, lease: Lease, now_s: float) -> None:
        """A request is given up, in any state; what it computed and stored stays. Idempotent."""
        if lease.state != "ended":
            self._end(lease, now_s)

    def clear(self) -> bool:
        """Evict everything that is not in use; True if nothing is left."""
        device = self.device
        if self.tiers is not None:
            self.tiers.clear()
        device.clear()
        empty = device.full.held == 0 and device.full.reserved == 0 and not self.tree.root.children
        if empty:
            self._listener.cleared()
        return empty

    def _usable(self, path: list[Node], partial: Node | None, matched: int) -> tuple[int, int]:
        """Blocks of a match that are usable from the device alone, and with what the host has."""
        nodes = path if partial is None else [*path, partial]
        lengths = [min(node.end, matched) - node.start for node in nodes]
        held = [length for node, length in zip(nodes, lengths, strict=True) if node.device]
        needed = self.rules.window_blocks
        if not needed:
            return sum(held), sum(lengths)
        live = [node.swa for node in nodes]
        on_device = safe_blocks(zip(held, live, strict=False), needed)
        if self.tiers is None:
            return on_device, on_device
        anywhere = [node.swa or node.host_swa for node in nodes]
        return on_device, safe_blocks(zip(lengths, anywhere, strict=True), needed)

    def _load(self, lease: Lease, path: list[Node], missing: int, now_s: float) -> None:
        """Bring what the lease reuses and only the host has to the device."""
        assert self.tiers is not None
        self.tiers.reused(lease, path, now_s)
        for node in path:
            if not node.device:
                self.device.hold(node)
        windows = 0
        walk = lease.node
        assert walk is not None
        while walk.end > lease.end - lease.window_locked and walk.parent is not None:
            if not walk.swa:
                windows += walk.blocks
                self.device.hold_window(walk)
            walk = walk.parent
        if missing or windows:
            self.tiers.load(lease, missing, windows, now_s)

    def _window_commitment(self, lease: Lease) -> int:
        rules = self.rules
        if not rules.window_tokens:
            return 0
        total = lease.prompt_tokens + lease.output_tokens
        return min(total, rules.window_blocks * self._size + self._window_room(total))

    def _window_room(self, rest: int) -> int:
        """Window KV that a request may have outside of the tree: a step, or a window while it decodes."""
        rules = self.rules
        step = rules.chunk_tokens + self._size if rules.chunk_tokens else rest
        return min(rest, max(step, rules.window_tokens + rules.decode_release_tokens + 2 * self._size))

    def _reserve_window(self, lease: Lease, total: int) -> None:
        if self.rules.window_tokens:
            wanted = self._window_room(total - lease.end * self._size)
            self.device.swa.reserved += wanted - lease.swa_reserved
            lease.swa_reserved = wanted

    def _insert(self, lease: Lease, tokens: int, now_s: float) -> None:
        """Put the full blocks of the first ``tokens`` of the lease's sequence into the tree."""
        assert lease.state == "admitted"
        assert lease.node is not None
        end = min(len(lease.blocks) // HASH_BYTES, tokens // self._size)
        start = lease.end
        if end <= start:
            return
        assert (end - start) * self._size <= lease.reserved
        device, tree = self.device, self.tree
        path, partial, position = tree.walk(lease.node, lease.blocks, end)
        if partial is not None:
            path.append(tree.split(partial, position) if position < partial.end else partial)
        node = path[-1] if path else lease.node
        # What another request has stored meanwhile is shared, and the copy of it is freed.
        device.full.reserved -= (end - start) * self._size
        lease.reserved -= (end - start) * self._size
        fresh = [found for found in path if not found.device]
        if position < end:
            node = tree.attach(node, lease.blocks[position * HASH_BYTES : end * HASH_BYTES])
            fresh.append(node)
        device.lock(node)
        device.unlock(lease.node)
        for found in fresh:
            device.hold(found)
        lease.end = end
        if self.rules.window_tokens:
            self._insert_windows(lease, node, start, tokens)
        lease.node = node
        for found in fresh:
            self._listener.stored(lease, found.start, found.end, "full")
            if self.tiers is not None:
                self.tiers.stored(found, now_s)

    def _insert_windows(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """The window KV of the blocks from ``start`` on goes into the tree as far as it is kept."""
        assert lease.node is not None
        rules, device = self.rules, self.device
        keep = self._kept_from(tokens)
        if rules.swa_release == "pressure" and tokens <= lease.prompt_tokens:
            self._revive(node, start, lease.end)
        else:
            for position in self._retained_ends(start, keep):
                self._revive(node, max(start, position - rules.window_blocks), position)
            lease.live += self._revive(node, max(start, keep), lease.end)
        blocks = min(lease.end, rules.window_blocks)
        device.lock_window(node, blocks)
        device.unlock_window(lease.node, lease.window_locked)
        lease.window_locked = blocks
        if rules.swa_release == "window":
            self._release_windows(lease, node, keep)
        device.touch_window(node)
        self._reserve_window(lease, lease.prompt_tokens + lease.output_tokens)

    def _kept_from(self, tokens: int) -> int:
        """First block whose window KV a request keeps that has come to so many tokens."""
        return max(0, tokens - self._tail_tokens) // self._size

    def _retained_ends(self, start: int, end: int) -> list[int]:
        """Boundaries in ``(start, end]`` whose windows are retained by position, in blocks.

        A position inside a block counts as the boundary before it.
        """
        interval, size = self.rules.retained_interval_tokens, self._size
        if not interval:
            return []
        first = start * size // interval * interval
        ends = {at // size for at in range(first, end * size + size, interval)}
        return sorted(at for at in ends if start < at <= end)

    def _revive(self, node: Node, start: int, end: int) -> list[tuple[int, int]]:
        """Fresh window KV for blocks on the path to a node: tombstones become live; says which."""
        revived: list[tuple[int, int]] = []
        walk = node
        while walk.end > start:
            if not walk.swa and walk.start < end:
                if walk.start < start:
                    self.tree.split(walk, start)
                if walk.end > end:
                    walk = self.tree.split(walk, end)
                self.device.hold_window(walk)
                revived.append((walk.start, walk.end))
            assert walk.parent is not None
            walk = walk.parent
        return revived

    def _release_windows(self, lease: Lease, node: Node, before: int) -> None:
        """Release the window KV before a block that a request has put on the path to a node."""
        kept: list[tuple[int, int]] = []
        for start, end in lease.live:
            if end > before:
                kept.append((max(start, before), end))
            end = min(end, before)
            for position in self._retained_ends(start, end + self.rules.window_blocks - 1):
                self._retire(node, start, position - self.rules.window_blocks)
                start = position
            self._retire(node, start, end)
        lease.live = kept

    def _retire(self, node: Node, start: int, end: int) -> None:
        walk = node
        while walk.end > start:
            if walk.swa and not walk.swa_locks and walk.start < end:
                if walk.start < start:
                    self.tree.split(walk, start)
                if walk.end > end:
                    walk = self.tree.split(walk, end)
                self.device.retire_window(walk)
            assert walk.parent is not None
            walk = walk.parent

    def _join(self, node: Node) -> None:
        """Join what the end of a request has left alike on its path."""
        walk = node
        while walk.parent is not None:
            self.tree.merge(walk)
            walk = walk.parent

    def _end(self, lease: Lease, now_s: float) -> None:
        device = self.device
        if lease.state == "admitted":
            assert lease.node is not None
            device.full.reserved -= lease.reserved
            device.swa.reserved -= lease.swa_reserved
            self._swa_committed -= lease.swa_committed
            lease.reserved = lease.swa_reserved = lease.swa_committed = 0
            device.unlock_window(lease.node, lease.window_locked)
            device.touch_window(lease.node)
            device.unlock(lease.node)
            device.touch(lease.node)
            self._join(lease.node)
            device.make_room()
            lease.node = None
        lease.state = "ended"
        if self.tiers is not None:
            self.tiers.ended(lease, now_s)
