"""Linear layers: states at exact boundaries, few of them, kept by recency and by saved work.

A linear layer (Mamba, KDA, lightning attention) goes on only from a state saved exactly at the boundary, so a
match ends at the deepest *checkpoint* on its path. States cost the same at any length; which are made and
kept follows Marconi (MLSys 2025, arXiv:2411.19379, sections 4.1 and 4.2):

* *Admission*: at most two per sequence, where the prompt leaves the tree (others will branch there) and at
  the end of the sequence, and the multiples of ``retained_interval_tokens``, where engines keep them.
* *Eviction*: the state with the least ``recency + efficiency`` goes, both scaled to 0..1 over what is held.
  Efficiency is the prefill that a hit saves per byte, ``L * (1 + L / (2 * c0))`` for states of one size.
  Marconi tunes its weight by replays; here it is 1.
* A leaf without its state is dropped, and so are parents without state that become leaves (as in SGLang
  ``mamba_radix_cache.py``).

With host memory a state has a copy there, as a block of window KV has, and is loaded as one.

States live at block boundaries (vLLM ``mamba_cache_mode=align``); running requests copy theirs into slots, so
a state in use needs no lock.
"""

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.kv.boundaries import Boundaries
from loadtest.engine.kv.device import Device
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.matching import state_blocks
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import HASH_BYTES, Node, RadixTree


class Checkpoints(Boundaries):
    """Boundaries by states; the listener hears of them by vLLM's rule."""

    def __init__(self, rules: CacheRules, tree: RadixTree, device: Device, listener: KvListener) -> None:
        super().__init__(rules.block_tokens)
        self._tree = tree
        self._device = device
        self._listener = listener
        self._size = rules.block_tokens
        self._interval = rules.retained_interval_tokens
        self._context_tokens = rules.context_tokens
        self._groups = rules.match_rule == "vllm"
        self._nodes: list[Node | None] = [None] * rules.state_slots
        self._free = list(range(rules.state_slots))[::-1]
        self._used = np.zeros(rules.state_slots)
        self._saved = np.zeros(rules.state_slots)
        device.dropping = self._dropping

    @property
    def held(self) -> int:
        """States in slots."""
        return len(self._nodes) - len(self._free)

    def usable(self, nodes: list[Node], matched: int) -> tuple[int, int]:
        """See `Boundaries`."""
        return state_blocks(nodes, matched), state_blocks(nodes, matched, host=True)

    def commitment(self, lease: Lease) -> int:
        """See `Boundaries`."""
        return 0

    def admitted(self, lease: Lease, matched: int) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        lease.kept_ends = [matched]
        if lease.node.state is not None:
            self._used[lease.node.state] = self._device.operation

    def load(self, lease: Lease) -> int:
        """See `Boundaries`; a state is one block's."""
        node = lease.node
        assert node is not None
        if node.parent is None or node.state is not None:
            return 0
        self._save(lease, node)
        return 1

    def inserted(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """See `Boundaries`."""
        ends = set(lease.kept_ends)
        if self._interval:
            first = start * self._size // self._interval * self._interval
            ends.update(at // self._size for at in range(first, tokens + 1, self._interval))
        walk = node
        for end in sorted(ends, reverse=True):
            if start < end <= lease.end:
                while walk.start >= end:
                    assert walk.parent is not None
                    walk = walk.parent
                if walk.end > end:
                    walk = self._tree.split(walk, end)
                self._save(lease, walk)

    def closed(self, lease: Lease) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        if lease.node.parent is not None:
            self._save(lease, lease.node)

    def _save(self, lease: Lease, node: Node) -> None:
        if node.state is None:
            if not self._free:
                self._evict()
            slot = node.state = self._free.pop()
            self._nodes[slot] = node
            tokens = node.end * self._size
            self._saved[slot] = tokens * (1 + tokens / (2 * self._context_tokens))
            if self._groups:
                self._listener.stored(lease, node.end - 1, node.end, "linear")
        self._used[node.state] = self._device.operation

    def _least(self) -> int:
        """Slot of the state that is worth least; all are taken."""
        return int(np.argmin(_scaled(self._used) + _scaled(self._saved)))

    def _evict(self) -> None:
        """Free the slot of the state that is worth least; all slots are taken."""
        node = self._nodes[self._least()]
        assert node is not None
        self._device.drop_useless(node)
        # A lower tier may have copied it just now.
        self._dropping(node)

    def _dropping(self, node: Node) -> None:
        if node.state is not None:
            self._nodes[node.state] = None
            self._free.append(node.state)
            node.state = None
            if self._groups:
                self._listener.removed(node.key[-HASH_BYTES:], "linear", "GPU")


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low = float(values.min())
    return (values - low) / max(float(values.max()) - low, 1e-9)
