"""What MiMo-V2.5 reports to have gained, and what the same change does here.

Published (arXiv:2607.13095, 4.1, 4.2 and 5.2): routing by affinity raised the L2 hit rate by 25 % and input
throughput per node by 30 %; a queue that puts few uncached tokens first lowered P90 of the time to first
token of long requests by 30.5 % and left short ones as they were; requests in length buckets no longer wait
for chunks and ranks that a much longer one slows down (no figure). Neither its traffic nor its fleet are
public, so only the direction can be compared.
"""

from collections.abc import Callable, Sequence

from loadtest.study.design import OURS
from loadtest.study.results import Row
from loadtest.study.tables import seconds, table

AFFINITY, LOAD_ONLY = "affinity", "least_load"

SHORT_P90, LONG_P90 = "ttft_first_bucket_p90_s", "ttft_other_buckets_p90_s"
"""P90 of the time to first token of prompts up to 64K tokens, and of longer ones. Long is the prompt and not
what is left to compute: a long conversation with few uncached tokens is whom the order helps."""

LONGEST_P90 = "ttft_longest_bucket_p90_s"
"""The same of prompts beyond 256K tokens."""


def table_of(rows: Sequence[Row]) -> str:
    """Published against reproduced."""
    at = {(row.cell.label, row.cell.value): row for row in rows}
    lines = []
    for change, published, before, after, measured, form in _CLAIMS:
        if before in at and after in at:
            old, new = measured(at[before]), measured(at[after])
            change_ratio = new / old - 1
            lines.append([change, published, form(old), form(new), f"{100 * change_ratio:+.0f} %"])
    return table(["claim", "published", "without", "with", "change here"], lines)


def _local_reuse(row: Row) -> float:
    return row.number("hit_device_ratio") + row.number("hit_host_ratio")


def _throughput(row: Row) -> float:
    return row.number("input_tokens") / row.number("makespan_s")


def _figure(name: str) -> Callable[[Row], float]:
    return lambda row: row.number(name)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _thousands(value: float) -> str:
    return f"{value / 1e3:,.0f}K/s"


def _in_seconds(value: float) -> str:
    return f"{seconds(value)} s"


_FCFS, _UNCACHED, _ONE, _BUCKETS = "fcfs", "uncached", "one pool", "buckets"
_ROUTED = ((LOAD_ONLY, _FCFS), (AFFINITY, _FCFS))
_ORDERED = ((AFFINITY, _FCFS), (AFFINITY, _UNCACHED))
_RANKS = ", 8 ranks"
_PARTED = ((OURS, _ONE), (OURS, _BUCKETS))
_PARTED_RANKS = ((OURS, _ONE + _RANKS), (OURS, _BUCKETS + _RANKS))
_PARTED_AFFINITY = ((AFFINITY, _ONE), (AFFINITY, _BUCKETS))
_RANKS_AFFINITY = ((AFFINITY, _ONE + _RANKS), (AFFINITY, _BUCKETS + _RANKS))

_Key = tuple[str, str]
_CLAIMS: tuple[tuple[str, str, _Key, _Key, Callable[[Row], float], Callable[[float], str]], ...] = (
    ("affinity: reused from device and host", "+25 % (L2)", *_ROUTED, _local_reuse, _share),
    ("affinity: prompt tokens per second", "+30 %", *_ROUTED, _throughput, _thousands),
    ("few uncached tokens first: P90 beyond 64K", "-30.5 %", *_ORDERED, _figure(LONG_P90), _in_seconds),
    ("few uncached tokens first: P90 to 64K", "unchanged", *_ORDERED, _figure(SHORT_P90), _in_seconds),
    ("length buckets, two ranks: P90 to 64K", "lower", *_PARTED, _figure(SHORT_P90), _in_seconds),
    ("P90 beyond 64K", "-", *_PARTED, _figure(LONG_P90), _in_seconds),
    ("P90 beyond 256K", "-", *_PARTED, _figure(LONGEST_P90), _in_seconds),
    ("mean of all", "-", *_PARTED, _figure("ttft_mean_s"), _in_seconds),
    ("reused", "-", *_PARTED, _figure("hit_ratio"), _share),
    ("length buckets, eight ranks: P90 to 64K", "lower", *_PARTED_RANKS, _figure(SHORT_P90), _in_seconds),
    ("P90 beyond 64K", "-", *_PARTED_RANKS, _figure(LONG_P90), _in_seconds),
    ("P90 beyond 256K", "-", *_PARTED_RANKS, _figure(LONGEST_P90), _in_seconds),
    ("mean of all", "-", *_PARTED_RANKS, _figure("ttft_mean_s"), _in_seconds),
    (
        "the same by affinity, two ranks: P90 to 64K",
        "lower",
        *_PARTED_AFFINITY,
        _figure(SHORT_P90),
        _in_seconds,
    ),
    ("mean of all", "-", *_PARTED_AFFINITY, _figure("ttft_mean_s"), _in_seconds),
    (
        "the same by affinity, eight ranks: P90 to 64K",
        "lower",
        *_RANKS_AFFINITY,
        _figure(SHORT_P90),
        _in_seconds,
    ),
    ("mean of all", "-", *_RANKS_AFFINITY, _figure("ttft_mean_s"), _in_seconds),
)
