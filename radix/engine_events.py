"""What engines say of their KV caches, as values: blocks stored, blocks removed, everything cleared.

The fields are those that vLLM and SGLang publish (vLLM ``distributed/kv_events.py``, SGLang
``mem_cache/events.py``) without what only their wire needs. Handles are the engine's own block hashes and
mean nothing here: unsigned or signed integers, or bytes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

Handle = int | bytes
"""An engine's name for a prefix that ends with a block: the same prefix has the same handle in all groups."""


class BlocksStored(msgspec.Struct, gc=False):
    """An engine can reuse blocks that it could not reuse before, or says again that it can.

    Attributes:
        hashes: Handles of the blocks, shallowest first. A group that keeps only some blocks of a span lists
            fewer than ``token_ids`` has blocks, sometimes none.
        parent: Handle of the block before the span; None at the beginning of a sequence.
        token_ids: Tokens of the span; empty where the engine does not know them (offload tiers).
        block_tokens: Tokens of a block.
        group: Number of the cache group; None where an engine has none.
        kind: What the group's layers are (vLLM's ``kv_cache_spec_kind``); None if that is not said.
        window_tokens: The group's sliding window, tokens.
        medium: Where the blocks are (``GPU``, ``CPU``, ``CPU_PINNED``, ``DISK``, ...).
        lora: Name of the LoRA adapter.
        extra_keys: For each handle what went into it beside tokens: the adapter's name, the salt in a
            first block, media. None if there is nothing.
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
    """An engine can no longer reuse blocks from a medium.

    Attributes:
        hashes: Handles, in any order.
        group: Number of the cache group; None for all.
        medium: Where they were.
    """

    hashes: Sequence[Handle]
    group: int | None = None
    medium: str | None = None


class CacheCleared(msgspec.Struct, gc=False):
    """An engine dropped everything at once."""


EngineEvent = BlocksStored | BlocksRemoved | CacheCleared
