"""Cacheway beside cache-aware routers, on sockets, with workers that have a real block cache.

`cells` says which load meets which fleet, `runs` plays one run, `aims` judges, `page` and `chart` write
docs/benchmarks/fleet.md.
"""
