"""Sizes, attention and rules of the KV cache of one engine.

Memory is counted in tokens of a pool, since every layer of a pool keeps the same tokens. The two pools of a
model with sliding windows are separate (MiMo-V2.5, arXiv:2607.13095, 3.1.1; SGLang
``SWATokenToKVPoolAllocator``); vLLM's hybrid manager takes blocks of all groups from one.
"""

import math
from dataclasses import dataclass
from typing import Literal

from radix import Attention, Dialect

SwaRelease = Literal["window", "pressure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """The rules of one KV cache, that is of one data-parallel rank.

    Attributes:
        full_tokens: Capacity of the pool of the full-attention layers, tokens.
        block_tokens: Tokens of a block, the unit of matching.
        attention: The most demanding kind of layer.
        swa_tokens: Capacity of the pool of the sliding-window layers, tokens; 0 without such layers.
        window_tokens: W, tokens; 0 without such layers.
        chunk_tokens: Longest step of a prefill, tokens: a running request needs window KV for its window and
            one chunk. 0: whole prompts in one step.
        match_rule: Engine whose rules of matching and eviction apply.
        retained_interval_tokens: Windows or states at every multiple of this position are kept when a request
            moves on; 0 keeps none.
        decode_release_tokens: N: window KV is released after every N decoded tokens (SGLang
            ``SGLANG_SWA_EVICTION_INTERVAL``).
        swa_release: Fate of window KV when its request moves on, see `Windows` and `SglangWindows`.
        swa_groups: vLLM: groups of sliding-window layers, each as large as the full-attention one.
        insert_early: Blocks can be matched from the start of the step that computes them (vLLM).
        state_slots: Linear models: states that fit beside those of running requests.
        context_tokens: Linear models: c0 of the prefill time (`estimates.costs`), for the worth of a state.
    """

    full_tokens: int
    block_tokens: int = 64
    attention: Attention = "full"
    swa_tokens: int = 0
    window_tokens: int = 0
    chunk_tokens: int = 0
    match_rule: Dialect = "sglang"
    retained_interval_tokens: int = 0
    decode_release_tokens: int = 128
    swa_release: SwaRelease = "window"
    insert_early: bool = False
    swa_groups: int = 1
    state_slots: int = 0
    context_tokens: float = math.inf

    def __post_init__(self) -> None:
        """Refuse rules that contradict each other, or impossible sizes, with `ValueError`."""
        sliding = self.attention == "sliding_window"
        if self.full_tokens <= 0 or self.block_tokens <= 0 or self.decode_release_tokens <= 0:
            raise ValueError("full_tokens, block_tokens and decode_release_tokens must be positive")
        if (self.window_tokens > 0) != sliding or (self.swa_tokens > 0) != sliding:
            raise ValueError(
                f"window_tokens={self.window_tokens} and swa_tokens={self.swa_tokens} "
                f"do not go with {self.attention}"
            )
        if (self.state_slots > 0) != (self.attention == "linear"):
            raise ValueError(f"state_slots={self.state_slots} does not go with {self.attention}")
        if self.swa_groups <= 0 or self.context_tokens <= 0:
            raise ValueError("swa_groups and context_tokens must be positive")
        if self.chunk_tokens < 0 or self.retained_interval_tokens < 0:
            raise ValueError("chunk_tokens and retained_interval_tokens must not be negative")

    @property
    def window_blocks(self) -> int:
        """Blocks before a boundary that must have window KV, or a state, for a prefill to go on from it.

        A state belongs to its boundary and counts as one block. Of windows SGLang wants W tokens, vLLM the
        W - 1 that the next token looks back on (``single_type_kv_cache_manager.py``), both in whole blocks.
        """
        if self.state_slots:
            return 1
        tokens = self.window_tokens - (self.match_rule == "vllm")
        return -(-tokens // self.block_tokens)
