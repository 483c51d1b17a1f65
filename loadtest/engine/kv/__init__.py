"""The KV stack of an engine as an executable model.

    cache.py    the front door: leases           lease.py     what one request holds
    rules.py    sizes and whose rules apply      stack.py     puts a rank's stack together
    tree.py     runs of blocks, all tiers        listener.py  who hears KV events
    device.py   L1: locks, LRU, eviction         shared.py    the same, with vLLM's one pool
    pools.py    accounts of memory               recency.py   which node is the oldest
    boundaries.py what a reuse needs             windows.py   sliding windows
    matching.py the window-safe length           checkpoints.py states of linear layers
    tiers.py    HiCache: L1, L2, L3              host.py      L2, link.py  the way to it
    l3.py       shared pools of storage          l3_client.py one rank's access to them
    runs.py     what a node stores, ring.py where, pieces.py in which order it comes

Pure: time is an argument, nothing reads a clock or does I/O.
"""
