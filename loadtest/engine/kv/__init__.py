"""The KV stack of an engine as an executable model: pools, the radix tree, tiers.

    rules.py   sizes and whose rules apply        cache.py    the front door: leases of requests
    tree.py    runs of blocks in a radix tree     device.py   what is on the device: locks, LRU, eviction
    pools.py   accounts of memory                 matching.py how much of a match is usable

Pure: time is an argument, nothing reads a clock or does I/O.
"""
