"""Cacheway beside other routers, on one machine and in one run.

make bench-peers        the same as python -m loadtest.bench.peers

__main__       options, installation, rounds, what the terminal shows
machine        what a run ran on
field          who takes part, and in which workloads
kit            the benchmark kit: mock engines, load generator, start and end of every router
descendants    nothing of the kit outlives a run that is interrupted
results        what was measured, kept as JSON lines
promises       what cacheway promised, judged by what was measured
report         docs/benchmarks/peers.md
chart          docs/benchmarks/peers.png
"""
