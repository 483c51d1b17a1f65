"""The front door of one worker's KV stack: leases of requests on one data-parallel rank.

    lease = cache.open(blocks, prompt_tokens, output_tokens, now_s)     queued; prefetch begins
    cache.admit(lease, now_s)         match, lock, reserve; False: no room now, nothing changed
    cache.computed(lease, t, now_s)   after each chunk: t prompt tokens are computed in all
    cache.decoded(lease, t, now_s)    now and then: t tokens of the answer are there
    cache.close(lease, blocks, t, now_s)   ended well: its blocks stay until evicted
    cache.abort(lease, now_s)         in any state

* A match is at most prompt - 1 tokens, in whole blocks: an engine always recomputes the last one.
* Admission reserves room for the rest of the prompt and the whole answer, so a running request is never
  preempted, and ``held + reserved <= capacity`` in both pools after every call.
* `Boundaries` says what a request needs beside full KV to go on from a boundary.
* With lower tiers the match continues over the host's KV, which admission loads to the device.
"""

from bisect import bisect_left
from collections.abc import Callable

from loadtest.engine.kv.boundaries import Boundaries
from loadtest.engine.kv.checkpoints import Checkpoints
from loadtest.engine.kv.device import Device, TierPolicy
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.sglang_states import SglangStates
from loadtest.engine.kv.sglang_windows import SglangWindows
from loadtest.engine.kv.shared import SharedDevice
from loadtest.engine.kv.tree import HASH_BYTES, Node, RadixTree
from loadtest.engine.kv.windows import Windows


class KvCache:
    """The KV cache of one rank; without ``tiers`` the device only.

    ``tree`` must be that of the tiers, which need SGLang's pools.
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
        self.tree = tree or RadixTree(states=rules.state_slots > 0)
        self._tiers = tiers
        self._listener = listener or KvListener()
        self._size = rules.block_tokens
        shared = rules.match_rule == "vllm" and rules.window_tokens > 0
        assert tiers is None or not shared
        self.device = (
            SharedDevice(rules, self.tree, self._listener)
            if shared
            else Device(rules, self.tree, self._listener, tiers)
        )
        self._boundaries = self._rule_of(rules)
        if tiers is not None:
            self.tree.observers.append(tiers)

    def _rule_of(self, rules: CacheRules) -> Boundaries:
        sglang = rules.match_rule == "sglang"
        if rules.window_tokens:
            windows = SglangWindows if sglang and rules.swa_release == "window" else Windows
            return windows(rules, self.tree, self.device, self._listener)
        if rules.state_slots:
            states = SglangStates if sglang else Checkpoints
            return states(rules, self.tree, self.device, self._listener)
        return Boundaries(rules.block_tokens)

    @property
    def capacity_tokens(self) -> int:
        """Room of the full pool; of the whole one, where vLLM's rule shares it."""
        return self.device.capacity_tokens

    @property
    def held_tokens(self) -> int:
        """Tokens of full KV that can be matched, locked or not."""
        return self.device.full.held

    @property
    def used_tokens(self) -> int:
        """Tokens of `capacity_tokens` that running requests lock or reserve: what engines report as usage."""
        return self.device.used_tokens

    @property
    def evicted_tokens(self) -> int:
        """Tokens of full KV evicted since the start."""
        return self.device.full.evicted

    @property
    def swa_capacity_tokens(self) -> int:
        """Room of the window pool."""
        return self.device.swa.capacity

    @property
    def swa_used_tokens(self) -> int:
        """Tokens of window KV that running requests lock or reserve."""
        return self.device.swa.used

    def open(
        self, blocks: bytes, prompt_tokens: int, output_tokens: int, now_s: float, session: bytes = b""
    ) -> Lease:
        """Queue a request of ``prompt_tokens`` > 0 and at most ``output_tokens``.

        Both must fit the empty cache. ``session`` names its session for a shared pool.
        """
        assert len(blocks) // HASH_BYTES == prompt_tokens // self._size
        lease = Lease(blocks, prompt_tokens, output_tokens, now_s, session)
        if self._tiers is not None:
            self._tiers.open(lease, now_s)
        return lease

    def match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        """Tokens that `admit` would reuse from the device now; changes nothing."""
        path, matched = self._find(blocks, prompt_tokens)
        return self._boundaries.usable(path, matched)[0] * self._size

    def reach_tokens(self, blocks: bytes, prompt_tokens: int) -> tuple[int, int]:
        """Tokens that a request could reuse now with the host's help, and those held, reusable or not."""
        path, matched = self._find(blocks, prompt_tokens)
        return self._boundaries.usable(path, matched)[1] * self._size, matched * self._size

    def admit(self, lease: Lease, now_s: float) -> bool:
        """Match a request, lock the reused blocks and reserve room for the rest.

        False, without a change, if there is none.
        """
        assert lease.state == "open"
        if self._tiers is not None:
            self._tiers.settle(lease, now_s)
        device = self.device
        path, matched = self._find(lease.blocks, lease.prompt_tokens)
        on_device, usable = self._boundaries.usable(path, matched)
        while path and path[-1].start >= usable:
            path.pop()
        # The device blocks and the locked blocks are heads of the path.
        missing = usable - _reach(path, usable, _on_device)
        unlocked = usable - missing - min(usable - missing, _reach(path, usable, _locked))
        rest = lease.prompt_tokens + lease.output_tokens - usable * self._size
        committed = self._boundaries.commitment(lease)
        if not device.fits(rest + missing * self._size, unlocked * self._size, committed):
            return False
        if path and path[-1].end > usable:
            path[-1] = self.tree.split(path[-1], usable)
        node = path[-1] if path else self.tree.root
        device.operation += 1
        device.lock(node)
        device.full.reserved += rest
        device.swa.committed += committed
        lease.state = "admitted"
        lease.node = node
        lease.end = usable
        lease.computed_tokens = usable * self._size
        lease.device_tokens = on_device * self._size
        lease.host_tokens = (usable - on_device) * self._size
        lease.reserved = rest
        lease.swa_committed = committed
        # Before the window is locked, which may cut runs that are on the host only.
        for found in path:
            if not found.device:
                device.hold(found)
                self._listener.stored(lease, found.start, found.end, "full")
        self._boundaries.admitted(lease, matched)
        if self._tiers is not None:
            self._tiers.reused(lease, now_s)
            windows = self._boundaries.load(lease)
            if missing or windows:
                self._tiers.load(lease, missing, windows, now_s)
        device.make_room()
        return True

    def computed(self, lease: Lease, prompt_tokens: int, now_s: float) -> None:
        """A step has ended: ``prompt_tokens`` of the prompt are computed in all."""
        self._insert(lease, prompt_tokens, now_s, final=False)
        self.device.make_room()

    def decoded(self, lease: Lease, tokens: int, now_s: float) -> None:
        """Note that ``tokens`` of the answer are computed: may release window KV, every N tokens."""
        assert lease.state == "admitted"
        self.device.operation += 1
        self._boundaries.decoded(lease, lease.prompt_tokens + tokens)

    def close(self, lease: Lease, blocks: bytes, tokens: int, now_s: float) -> None:
        """End an admitted request that succeeded.

        ``blocks`` are the full blocks that it computed, prompt and answer, and begin with those of the
        prompt; ``tokens`` counts all computed tokens but the last sampled one.
        """
        lease.blocks = blocks
        self._insert(lease, tokens, now_s, final=True)
        self._boundaries.closed(lease)
        if self._tiers is not None and self.rules.state_slots:
            assert lease.node is not None
            self._tiers.stored(lease, lease.node, now_s)
        self._end(lease, now_s)

    def abort(self, lease: Lease, now_s: float) -> None:
        """A request is given up, in any state; its computed and stored blocks stay. Idempotent."""
        if lease.state != "ended":
            self._end(lease, now_s)

    def clear(self) -> bool:
        """Evict everything that is not in use; True if nothing is left."""
        device = self.device
        if self._tiers is not None:
            self._tiers.clear()
        device.clear()
        empty = device.full.used == 0 and not self.tree.root.children
        if empty:
            self._listener.cleared()
        return empty

    def _find(self, blocks: bytes, prompt_tokens: int) -> tuple[list[Node], int]:
        """The path of a prompt as far as it may be reused, and its length; it may end inside a node."""
        path, partial, matched = self.tree.walk(self.tree.root, blocks, (prompt_tokens - 1) // self._size)
        if partial is not None:
            path.append(partial)
        return path, matched

    def _insert(self, lease: Lease, tokens: int, now_s: float, *, final: bool) -> None:
        """Put full blocks of the first ``tokens`` of the lease's sequence into the tree."""
        assert lease.state == "admitted"
        assert lease.node is not None
        device, tree, start = self.device, self.tree, lease.end
        end = min(len(lease.blocks) // HASH_BYTES, self._boundaries.insertable(lease, tokens, final=final))
        lease.computed_tokens = tokens
        if end <= start:
            return
        added = (end - start) * self._size
        assert added <= lease.reserved
        device.operation += 1
        path, partial, position = tree.walk(lease.node, lease.blocks, end)
        if partial is not None:
            path.append(tree.split(partial, position) if position < partial.end else partial)
        # Blocks that another request has stored meanwhile are shared, and the copy of them is freed.
        fresh = [node for node in path if not node.device]
        node = path[-1] if path else lease.node
        if position < end:
            node = tree.attach(node, lease.blocks[position * HASH_BYTES : end * HASH_BYTES])
            fresh.append(node)
        device.full.reserved -= added
        lease.reserved -= added
        lease.end = end
        device.lock(node)
        for found in fresh:
            device.hold(found)
            self._listener.stored(lease, found.start, found.end, "full")
        self._boundaries.inserted(lease, node, start, tokens)
        device.unlock(lease.node)
        lease.node = node
        if self._tiers is not None and tokens >= lease.prompt_tokens:
            self._tiers.stored(lease, node, now_s)

    def _end(self, lease: Lease, now_s: float) -> None:
        device = self.device
        if lease.state == "admitted":
            assert lease.node is not None
            device.operation += 1
            device.full.reserved -= lease.reserved
            device.swa.committed -= lease.swa_committed
            lease.reserved = lease.swa_committed = 0
            self._boundaries.ended(lease)
            device.unlock(lease.node)
            device.touch(lease.node)
            self._join(lease.node)
            device.make_room()
            lease.node = None
        lease.state = "ended"
        if self._tiers is not None:
            self._tiers.ended(lease, now_s)

    def _join(self, node: Node) -> None:
        """Join the runs that are equal on the path after the end of a request."""
        while (parent := node.parent) is not None:
            if parent.swa == node.swa and not parent.locks:
                self.tree.merge(node)
                assert node.parent is not None
                parent = node.parent
            node = parent


def _reach(path: list[Node], end: int, has: Callable[[Node], bool]) -> int:
    """Blocks of a path up to the first run that lacks what runs have as far as to some point."""
    first = bisect_left(path, True, key=lambda node: not has(node))  # noqa: FBT003
    return path[first].start if first < len(path) else end


def _on_device(node: Node) -> bool:
    return node.device


def _locked(node: Node) -> bool:
    return node.locks > 0
