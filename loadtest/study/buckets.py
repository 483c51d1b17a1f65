"""Length buckets: the same fleet, its workers labelled by the lengths that they are for.

In one pool a short prompt shares steps with long ones: data-parallel ranks wait for the longest of them, and
a chunk that mixes both costs what the long context costs (MiMo-V2.5, arXiv:2607.13095, 5.2). With buckets a
request leaves its bucket when that is sooner at the price of its company (`policies.state.buckets`), and a
conversation that grows out of its bucket stays with its cache as long as that is cheaper.
"""

from dataclasses import replace

from loadtest.simulator.simulation import SimulationConfig
from policies import LengthBuckets

BUCKETS = LengthBuckets()
"""0-64K, 64K-256K and 256K-1M tokens, as published."""

SHARES = (2, 4, 2)
"""Shares of eight workers, by the least prefill work of agentic traffic: 3,800, 7,900, 3,400 s."""


def parted(config: SimulationConfig) -> SimulationConfig:
    """The same fleet with its workers, a multiple of eight, divided into buckets."""
    each = config.workers // sum(SHARES)
    counts = (each * share for share in SHARES)
    return replace(config, bucket_workers=tuple(zip(BUCKETS.tokens_max, counts, strict=True)))
