"""Bounds of reuse by caches, for one order of requests.

Both ignore service time: a request's blocks are there as soon as it arrives.

* *Infinite*: one cache that all requests see and nothing leaves. No fleet can reuse more.
* *Pooled LRU*: the memory of all workers as one cache, least recently used blocks first, tails before heads.
  No placement is likely to reuse more with the same memory: it would have to keep everything once only, where
  its next request goes, and never be forced elsewhere by load.

Both count whole blocks and leave the last token of a prompt to be computed, as engines do
(`vllm/v1/core/kv_cache_manager.py`, ``max_cache_hit_length``).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, SimRequest
from radix import PrefixTree

_BLOCKS_MAX = 1 << 40
"""No bound on the tree as a whole: memory is the caller's worry."""


def infinite_hit_tokens(
    requests: Iterable[SimRequest], *, answers: bool = True, block_tokens: int = ENGINE_BLOCK_TOKENS
) -> NDArray[np.int64]:
    """Tokens of each prompt, in order of arrival, that an infinite cache would reuse.

    With ``answers`` generated tokens enter the cache, as in engines; publishers of traces count without.
    """
    return _hit_tokens(PrefixTree(_BLOCKS_MAX, block_tokens), requests, answers=answers)


def pooled_lru_hit_tokens(
    requests: Iterable[SimRequest],
    capacity_tokens: int,
    *,
    answers: bool = True,
    block_tokens: int = ENGINE_BLOCK_TOKENS,
) -> NDArray[np.int64]:
    """The same for one cache of ``capacity_tokens`` >= 0; a prompt that does not fit leaves its head."""
    tree = PrefixTree(_BLOCKS_MAX, block_tokens)
    tree.set_capacity(0, capacity_tokens // block_tokens)
    return _hit_tokens(tree, requests, answers=answers)


def hit_ratio(requests: Sequence[SimRequest], hit_tokens: NDArray[np.int64]) -> float:
    """Share of all prompt tokens that was reused, 0 to 1; 0 without requests."""
    prompt_tokens = sum(request.tokens for request in requests)
    return int(hit_tokens.sum()) / prompt_tokens if prompt_tokens else 0.0


def hit_curve(
    requests: Sequence[SimRequest],
    capacities_tokens: Iterable[int],
    *,
    answers: bool = True,
    block_tokens: int = ENGINE_BLOCK_TOKENS,
) -> list[float]:
    """Hit ratio of one LRU cache against its size, one pass per size (`pooled_lru_hit_tokens`)."""
    return [
        hit_ratio(requests, pooled_lru_hit_tokens(requests, size, answers=answers, block_tokens=block_tokens))
        for size in capacities_tokens
    ]


def _hit_tokens(tree: PrefixTree, requests: Iterable[SimRequest], *, answers: bool) -> NDArray[np.int64]:
    hits: list[int] = []
    for at_us, request in enumerate(requests, start=1):
        whole_blocks = (request.tokens - 1) // tree.block_tokens
        hits.append(min(tree.match(request.blocks).matched_at(0), whole_blocks) * tree.block_tokens)
        tree.insert(0, request.held if answers else request.blocks, at_us, end=False)
    return np.array(hits, dtype=np.int64)
