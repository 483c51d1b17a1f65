"""Writing back a decode worker's blocks: answers, for the next turns that other workers prefill.

    prefill worker ──hand-over──> decode worker ──answer ends──> shared pool ──prefetch──> any prefill worker

A decode worker has no host tier and reads nothing (Tair's offload manager; SGLang
``disaggregation/decode_kvcache_offload_manager.py``): it copies a finished sequence to the shared pool, which
keeps what it lacks. Without it the pool knows prompts only, and the next turn's worker computes the answer.
"""

from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import Group
from loadtest.engine.kv.pieces import Span
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import Node, sequence_to


class DecodeOffload:
    """The lower tier of one rank that only decodes; a `TierPolicy` that writes and nothing else."""

    def __init__(self, rules: CacheRules, client: L3Client) -> None:
        self.client = client
        self._rules = rules

    def stored(self, lease: Lease, node: Node, now_s: float) -> None:
        """See `TierPolicy`; a prompt alone is the prefill worker's to write."""
        prompt_end = lease.prompt_tokens // self._rules.block_tokens
        if node.end <= prompt_end:
            return
        first = node.end - self._rules.window_blocks
        windows: list[Span] = []
        walk = node
        while walk.end > first and walk.parent is not None:
            if walk.swa or (walk is node and walk.state is not None):
                windows.insert(0, (max(walk.start, first), walk.end))
            walk = walk.parent
        self.client.store(sequence_to(node), prompt_end, node.end, windows, now_s, lease.session)

    def open(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`; nothing is read."""

    def settle(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""

    def reused(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""

    def load(self, lease: Lease, full_blocks: int, window_blocks: int, now_s: float) -> None:
        """See `TierPolicy`; there is nothing to load from."""

    def leaving(self, node: Node, group: Group) -> None:
        """See `TierPolicy`; it was written when its request ended."""

    def ended(self, lease: Lease, now_s: float) -> None:
        """See `TierPolicy`."""

    def clear(self) -> None:
        """See `TierPolicy`."""

    def split(self, upper: Node, lower: Node) -> None:
        """See `TreeObserver`."""

    def merged(self, gone: Node, into: Node) -> None:
        """See `TreeObserver`."""
