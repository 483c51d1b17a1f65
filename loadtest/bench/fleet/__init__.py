"""A judge on sockets: Cacheway beside cache-aware routers in front of workers with a real block cache.

make bench-fleet       the same as python -m loadtest.bench.fleet

__main__       options, installation, the plan, what the terminal shows
cells          which load meets which fleet, and who takes part
script         what is sent: recorded agents and conversations, as texts
load           the load generator, a child process
worker         the workers, a child process
routers        start and end of every router
runs           one run, from start to outcome
results        outcomes, kept as JSON lines
interval       means with intervals
aims           what cacheway is to reach, judged by what was measured
page           docs/benchmarks/fleet.md
chart          docs/benchmarks/fleet/fleet.png
"""
