"""Changes of the cache, the source of KV events.

SGLang (``swa_radix_cache.py``) reports full-attention KV only: a new node is stored with or without window
KV, a tombstone is silent, and only the end of the full KV is a removal. An index fed by these events
overstates reuse. vLLM reports each group of layers.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from loadtest.engine.kv.lease import Lease

Group = Literal["full", "sliding_window", "linear"]


class KvListener:
    """Hears of every change to what can be matched, when it happens; this base class ignores all."""

    def stored(self, lease: "Lease", start_block: int, end_block: int, group: str) -> None:
        """Blocks of a lease's sequence (``lease.blocks``) are on the device now and were not before."""

    def removed(self, blocks: bytes, group: str, medium: str) -> None:
        """Blocks are gone from a medium; packed hashes, deepest first."""

    def cleared(self) -> None:
        """Everything is gone at once."""
