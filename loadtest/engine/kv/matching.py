"""The window-safe length of a match, by SGLang's rule and by vLLM's, and the state-safe one.

A sliding-window layer can go on from a boundary only if the KV of the window before it is there. Nodes
without it are *tombstones*; ``#`` has window KV, ``.`` does not, and blocks are as long as the window:

    blocks   0 1 2 3 4 5                    sglang   vllm
             # # # # # #                    6        6      all there
             # # . # # #                    6        6      the run before the end is a window
             # # . . . .                    2        2      only the head is complete
             # . # . . .                    3        3      an island
             . . . . . .                    0        0      a pseudo-hit

* **SGLang** (``swa_radix_cache.py``, ``_match_prefix_helper``): a boundary p is usable iff no tombstone lies
  on the path to p, or the run of live tokens that ends at p is at least W; the longest usable one is taken.
* **vLLM** (``v1/core/single_type_kv_cache_manager.py``, ``SlidingWindowManager.find_longest_cache_hit``):
  inside the full-attention hit, scan right to left for ``ceil((W - 1) / block)`` live blocks in a row; the
  hit ends behind them. A shorter run from block 0 counts.

In whole blocks both find the longest p whose live run is at least n blocks or begins at block 0; n is the
only difference (`CacheRules.window_blocks`).
"""

from collections.abc import Sequence

from loadtest.engine.kv.tree import Node


def state_blocks(nodes: Sequence[Node], matched: int, *, host: bool = False) -> int:
    """The deepest boundary with a state of linear layers, in blocks; with ``host`` also in host memory."""
    for node in reversed(nodes):
        if node.end <= matched and (node.state is not None or (host and node.host_swa)):
            return node.end
    return 0


def safe_blocks(nodes: Sequence[Node], matched: int, window_blocks: int, *, host: bool = False) -> int:
    """Longest usable boundary of a match, in blocks.

    ``nodes`` is the matched path, root first; the match may end inside the last one. ``window_blocks`` is n
    above; with ``host`` window KV in host memory counts as well.
    """
    boundary = 0
    for node in reversed(nodes):
        if not (node.swa or (host and node.host_swa)):
            boundary = 0
            continue
        boundary = boundary or min(node.end, matched)
        if node.start == 0 or boundary - node.start >= window_blocks:
            return boundary
    return 0
