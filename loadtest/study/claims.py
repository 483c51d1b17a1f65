"""Gains that MiMo-V2.5 reports, and the effect of the same change here, each figure with its seeds.

Published (arXiv:2607.13095, 4.1, 4.2 and 5.2): routing by affinity raised the L2 hit rate by 25 % and input
throughput per node by 30 %; a queue in the router that puts few uncached tokens first lowered P90 of the time
to first token of long requests by 30.5 % and left short ones as they were; requests in length buckets no
longer wait for chunks and ranks of a much longer one (no figure). Traffic, fleet, load and the compared
router are not public, so each claim says what can be compared.

*L2.* With ``write_through`` host memory holds what the device holds and more, so the hit rate of L2 is that
of both together. Cells of the routing and the order have host memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.study.design import OURS
from loadtest.study.results import Row, Seeds
from loadtest.study.tables import percent, seconds, span, table
from loadtest.study.verdict import Interval, interval_of

SHORT_P90, LONG_P90 = "ttft_first_bucket_p90_s", "ttft_other_buckets_p90_s"
"""P90 of the time to first token of prompts up to 64K tokens, and of longer ones.

Long is the prompt and not what is left to compute: the order helps a long conversation with few uncached
tokens.
"""

LONGEST_P90 = "ttft_longest_bucket_p90_s"
"""The same of prompts beyond 256K tokens."""

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its counterpart here.

    Attributes:
        text: The change, and its figure.
        published: By how much, as published.
        without: Label and value of the cells without the change.
        changed: Label and value of those with it.
        figure: Computes the figure of one simulation.
        form: Writes it.
    """

    text: str
    published: str
    without: _Key
    changed: _Key
    figure: Callable[[Row], float]
    form: Callable[[float], str]


def table_of(rows: Sequence[Row]) -> str:
    """Published against reproduced."""
    at: dict[_Key, Seeds] = {}
    for row in sorted(rows, key=lambda row: row.cell.seed):
        key = (row.cell.label, row.cell.value)
        at[key] = (*at.get(key, ()), row)
    lines = [
        _line(claim, at[claim.without], at[claim.changed])
        for claim in _CLAIMS
        if claim.without in at and claim.changed in at
    ]
    head = ["claim", "published", "without", "with", "change here, 95 % interval", "verdict", "answered"]
    return table(head, lines)


def _line(claim: Claim, before: Seeds, after: Seeds) -> list[str]:
    old = {row.cell.seed: claim.figure(row) for row in before}
    new = {row.cell.seed: claim.figure(row) for row in after}
    ratio = interval_of([new[seed] / old[seed] for seed in new if seed in old])
    return [
        claim.text,
        claim.published,
        _mean(list(old.values()), claim.form),
        _mean(list(new.values()), claim.form),
        _change(ratio),
        "not told apart" if ratio.low <= 1.0 <= ratio.high else "lower" if ratio.high < 1.0 else "higher",
        f"{span(before, 'completed_share', percent)}; {span(after, 'completed_share', percent)}",
    ]


def _mean(values: Sequence[float], form: Callable[[float], str]) -> str:
    return form(sum(values) / len(values))


def _change(ratio: Interval) -> str:
    low, middle, high = (f"{100 * (value - 1):+.0f} %" for value in (ratio.low, ratio.middle, ratio.high))
    return middle if ratio.low == 0.0 else f"{middle} ({low} to {high})"


def _local_reuse(row: Row) -> float:
    return row.number("hit_device_ratio") + row.number("hit_host_ratio")


def _throughput(row: Row) -> float:
    return row.number("input_tokens") / row.number("makespan_s")


def _figure(name: str) -> Callable[[Row], float]:
    return lambda row: row.number(name)


def _thousands(value: float) -> str:
    return f"{value / 1e3:,.0f}K/s"


def _in_seconds(value: float) -> str:
    return f"{seconds(value)} s"


def _routing(name: str, without: str, changed: str) -> tuple[Claim, ...]:
    keys = ((without, "routing"), (changed, "routing"))
    return (
        Claim(f"{name}: reused from L2", "+25 %", *keys, _local_reuse, percent),
        Claim(f"{name}: prompt tokens per second", "+30 %", *keys, _throughput, _thousands),
    )


def _buckets(ranks: str, value: str) -> tuple[Claim, ...]:
    keys = ((OURS, f"one pool{value}"), (OURS, f"buckets{value}"))
    return (
        Claim(f"length buckets, {ranks} ranks: P90 to 64K", "lower", *keys, _figure(SHORT_P90), _in_seconds),
        Claim("P90 beyond 64K", "-", *keys, _figure(LONG_P90), _in_seconds),
        Claim("P90 beyond 256K", "-", *keys, _figure(LONGEST_P90), _in_seconds),
        Claim("mean of all", "-", *keys, _figure("ttft_mean_s"), _in_seconds),
        Claim("reused", "-", *keys, _figure("hit_ratio"), percent),
    )


_ORDERED = (("affinity", "fcfs"), ("affinity", "uncached"))

_CLAIMS = (
    *_routing("affinity over least load", "least_load", "affinity"),
    *_routing("affinity over round robin", "round_robin", "affinity"),
    *_routing("the default over least load", "least_load", OURS),
    Claim("few uncached tokens first: P90 beyond 64K", "-30.5 %", *_ORDERED, _figure(LONG_P90), _in_seconds),
    Claim("few uncached tokens first: P90 to 64K", "unchanged", *_ORDERED, _figure(SHORT_P90), _in_seconds),
    *_buckets("two", ""),
    *_buckets("eight", ", 8 ranks"),
)
