"""Window-safe length: the part of a prefix match that an engine can really reuse.

Full attention can continue from any held block. A sliding window of W tokens needs the W tokens before the
boundary to be valid in *every* layer, and a linear layer needs its state exactly at the boundary. Engines
free both as a request goes on, so matching blocks without them are pseudo-hits (SGLang ``SWARadixCache``,
vLLM hybrid KV manager; MiMo-V2.5 paper, arXiv:2607.13095, 3.1.3). A score uses the safe length, never the
match.

Believed valid on a worker, for a sequence that ended at ``e``:

* sliding window: the last W tokens, ``[e - W, e]``, so all of a sequence no longer than that. Tails of
  several ends on one path join where they touch.
* linear: the state at ``e``, and nothing else.

Ends on a worker's path (vLLM 0.32, ``v1/core/kv_cache_coordinator.py``, ``replay_boundaries``;
``single_type_kv_cache_manager.py``, ``reachable_block_mask``; measured: docs/window-truth.md):

* the last block boundary *before the last token of a prompt*, which is computed in any case. Not the end of
  the answer: decoded tokens add full-attention blocks and no window;
* the *junction*: where a prompt left the worker's blocks. The engine keeps the window there: the first
  prompt to leave pays, later ones do not;
* every multiple of ``retained_interval_tokens``, if the engine is configured so (vLLM
  ``--prefix-cache-retention-interval``, dense positions of MiMo-V2.5).

Ends are known as whole blocks: a sequence of ``256·d + r`` tokens, r < 256, is an end at block d.

* A request that *continues* the sequence matches d blocks. The engine reuses the r tokens too, so the
  prediction is low by less than one block.
* A request that leaves the sequence inside its last, partial block matches d blocks as well, but its window
  is not valid there if r exceeds the engine's slack of one page. The error is rare (agents append), bounded
  by the end's own length, and shows in the engine's ``cached_tokens``.
* Engines keep up to one page more than W (16 to 128 tokens), and vLLM needs only W - 1. No page is longer
  than a block, so neither moves an end.
* A retained position inside a block counts as the boundary before it.

Between two ends a boundary is valid only if they are at most W apart. On a path whose ends are all at or
above the match the longest safe boundary is therefore the last end itself. The tree looks only at those, so
it undershoots by less than W tokens for a request that leaves between two ends so close, or before the end of
a sequence shorter than its window; once, for then there is a junction.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radix.blocks import BLOCK_TOKENS

Attention = Literal["full", "sliding_window", "linear"]

Dialect = Literal["vllm", "sglang"]
"""Engine whose rule of windows and states applies."""

PAGE_TOKENS = 64
"""Page of an SGLang engine, tokens: ``--page-size`` of its recipes for hybrid models."""

TRACKED_TOKENS = 256
"""SGLang keeps the linear states of an answer at its multiples, tokens: ``--mamba-track-interval``."""


@dataclass(frozen=True, slots=True)
class AttentionProfile:
    """Demands of a model's layers for continuing from a cached prefix.

    Attributes:
        kind: The most demanding kind of layer: ``linear`` before ``sliding_window`` before ``full``.
        window_tokens: W of the widest sliding window; 0 unless ``sliding_window``.
        retained_interval_tokens: The engine keeps windows or states at every multiple of this position; 0 if
            it does not.
        dialect: Engine whose rule applies at all workers; None: each worker's own, vLLM's if that is unknown.
    """

    kind: Attention
    window_tokens: int = 0
    retained_interval_tokens: int = 0
    dialect: Dialect | None = None
    needs_ends: bool = field(init=False, repr=False, compare=False, default=False)
    """True if inserts for this model must report where requests ended (``end=True``)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a window without ``sliding_window``, the reverse, or a negative number."""
        object.__setattr__(self, "needs_ends", self.kind != "full")
        if self.kind not in ("full", "sliding_window", "linear"):
            raise ValueError(f"attention kind {self.kind!r}: use full, sliding_window or linear")
        if (self.window_tokens > 0) != (self.kind == "sliding_window") or self.window_tokens < 0:
            raise ValueError(f"window_tokens={self.window_tokens} does not go with {self.kind} attention")
        if self.retained_interval_tokens < 0:
            raise ValueError(
                f"retained_interval_tokens={self.retained_interval_tokens}: must not be negative"
            )

    def answer_end(self, prompt_tokens: int, total_tokens: int, *, branched: bool) -> int:
        """Depth to go on from after an answer of SGLang, in tokens; 0 if only before the prompt's last chunk.

        Args:
            prompt_tokens: Length of the prompt.
            total_tokens: All that was computed: prompt and answer, but for the last token sampled.
            branched: The prompt left the engine's blocks, behind their last reusable one.
        """
        if self.kind == "sliding_window":
            return total_tokens
        tracked = total_tokens // TRACKED_TOKENS * TRACKED_TOKENS
        if tracked > prompt_tokens:
            return tracked
        return 0 if branched else prompt_tokens


FULL_ATTENTION = AttentionProfile("full")

PROFILES: dict[str, AttentionProfile] = {
    "full": FULL_ATTENTION,
    # MiMo-V2.5 paper, 3.1.3: W = 128, 10 full and 60 SWA layers; V2-Flash: config.json, sliding_window 128.
    "mimo-v2.5-pro": AttentionProfile("sliding_window", window_tokens=128),
    "mimo-v2-flash": AttentionProfile("sliding_window", window_tokens=128),
    # Gemma 3 report, arXiv:2503.19786, section 2: 5 local to 1 global layer, span 1024; the 1B model: 512.
    "gemma-3": AttentionProfile("sliding_window", window_tokens=1024),
    "gemma-3-1b": AttentionProfile("sliding_window", window_tokens=512),
    # gpt-oss model card, arXiv:2508.10925, section 2: banded layers of 128 tokens alternate with full ones.
    "gpt-oss": AttentionProfile("sliding_window", window_tokens=128),
    # Linear to full layers 3:1, 3:1, 3:1, 7:1: PrfaaS, arXiv:2604.15039, table 1 (Qwen3-Next: model card).
    "kimi-linear": AttentionProfile("linear"),
    "qwen3-next": AttentionProfile("linear"),
    "qwen3.5": AttentionProfile("linear"),
    "ring-2.5": AttentionProfile("linear"),
}
"""Profiles of models with published attention, by family."""


def safe_blocks(
    matched: int, ends: Iterable[int], profile: AttentionProfile, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Longest boundary within a match from which one worker can continue, in blocks, 0 to ``matched``.

    ``ends`` are the blocks at which sequences on this path ended on that worker, in any order; those beyond
    the match count where their tail reaches back into it.
    """
    if profile.kind == "full":
        return matched
    safe = int(retained_blocks(np.asarray([matched]), profile, block_tokens)[0])
    if profile.kind == "linear":
        return max([safe, *(end for end in ends if end <= matched)])
    window = profile.window_tokens
    tail_start = tail_end = 0  # Tokens [tail_start, tail_end] are valid; tails are joined where they touch.
    for end in sorted(ends):
        start = max(0, end * block_tokens - window)
        if start > tail_end:
            tail_start = start
        tail_end = end * block_tokens
        boundary = min(end, matched)
        if boundary * block_tokens >= tail_start + (window if tail_start else 0):
            safe = max(safe, boundary)
    return safe


def retained_blocks(
    matched: NDArray[np.integer], profile: AttentionProfile, block_tokens: int
) -> NDArray[np.integer]:
    """Longest boundary within each match that the engine retains by position alone, in blocks."""
    interval = profile.retained_interval_tokens
    if not interval:
        return np.zeros_like(matched)
    return np.asarray(matched.astype(np.int64) * block_tokens // interval * interval // block_tokens)
