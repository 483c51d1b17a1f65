"""The KV stack of an engine as an executable model; `cache` is the front door, `stack` builds it.

    device.py, shared.py (vLLM), pools.py, recency.py          L1: locks, LRU, eviction, accounts
    tiers.py: HiCache over host.py (L2) and l3.py (shared pool, through l3_client.py and link.py)
    tree.py: runs of blocks on all tiers    boundaries.py, windows.py, checkpoints.py, matching.py: reuse
    runs.py, ring.py, pieces.py: blocks of a storage node

Pure: time is an argument, nothing reads a clock or does I/O.
"""
