"""KV events of engines as values: blocks stored, blocks removed, everything cleared.

The fields are those that vLLM and SGLang publish (vLLM ``distributed/kv_events.py``, SGLang
``mem_cache/events.py``) without those that only their wire needs. Handles are the engine's own block hashes:
signed or unsigned integers or bytes, without a meaning here.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

Handle = int | bytes
"""An engine's name for a prefix that ends with a block: the same prefix has the same handle in all groups."""


class BlocksStored(msgspec.Struct, gc=False):
    """An engine can reuse these blocks from now on, or repeats that it can.

    Attributes:
        hashes: Handles of the blocks, shallowest first. A group that keeps only some blocks of a span lists
            fewer than ``token_ids`` has blocks, sometimes none.
        parent: Handle of the block before the span; None at the beginning of a sequence.
        token_ids: Tokens of the span; empty where the engine does not know them (offload tiers).
        group: Number of the cache group; None if the engine has none.
        kind: Kind of the group's layers (vLLM's ``kv_cache_spec_kind``), if reported.
        window_tokens: Sliding window of the group.
        medium: ``GPU``, ``CPU``, ``CPU_PINNED``, ``DISK``, ...
        lora: Name of the LoRA adapter.
        extra_keys: Per handle its hashed content beside tokens: adapter, salt of a first block, media.
        salt: The ``cache_salt`` where it has a field of its own (SGLang).
    """

    hashes: Sequence[Handle]
    parent: Handle | None
    token_ids: Sequence[int]
    block_tokens: int
    group: int | None = None
    kind: str | None = None
    window_tokens: int | None = None
    medium: str | None = None
    lora: str | None = None
    extra_keys: Sequence[Sequence[Any] | None] | None = None
    salt: str | None = None


class BlocksRemoved(msgspec.Struct, gc=False):
    """An engine can no longer reuse these blocks from a medium; ``group`` None means all groups."""

    hashes: Sequence[Handle]
    group: int | None = None
    medium: str | None = None


class CacheCleared(msgspec.Struct, gc=False):
    """An engine dropped its whole cache."""


EngineEvent = BlocksStored | BlocksRemoved | CacheCleared
