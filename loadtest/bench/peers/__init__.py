"""Cacheway beside other routers, on one machine and in one run (``make bench-peers``, see ``__main__``).

`field` lists peers and workloads, `kit` runs them, `promises` judges, `report` and `chart` write
docs/benchmarks/peers.md.
"""
