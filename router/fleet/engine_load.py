"""An engine's load from its ``/metrics``, without parsing the rest: 100 KB, mostly histograms.

Blocks of running requests are held, unused cached ones free (vLLM v1/core/block_pool.py ``get_usage``; SGLang
scheduler ``_get_token_info``). A metric has a line per data-parallel rank (SGLang ``dp_rank``, vLLM
``engine``), and one per tensor-parallel rank of each, all equal, if SGLang reports for all schedulers. So
requests are summed over ranks, the greatest of each, and shares averaged. A value beyond `radix.bounds`
counts as missing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from radix import COUNT_MAX, TOKENS_MAX, sane_real, whole
from router.engines import DIALECTS
from router.engines.dialect import LoadMetrics

_LOADS = {
    b"\n" + dialect.load.running.partition(b":")[0] + b":": dialect.load for dialect in DIALECTS.values()
}
"""Each engine's metrics, by the beginning of all its names."""

RATIO_MAX = 2.0
"""Greatest share of its capacity that an engine may hold: a rounding or an overcommitted pool beyond 1."""

_RANK = re.compile(rb'[{,](?:dp_rank|engine)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests running and waiting, and share of KV capacity that running ones hold; -1 if missing."""

    running: int = -1
    waiting: int = -1
    kv_ratio: float = -1.0


def engine_load(page: bytes) -> EngineLoad | None:
    """Read the load from a page of metrics; None if it has none."""
    page = b"\n" + page
    for names in _engines(page):
        load = EngineLoad(_total(page, names.running), _total(page, names.waiting), _kv_ratio(page, names))
        if load != EngineLoad():
            return load
    return None


def rank_loads(page: bytes, count: int) -> list[EngineLoad] | None:
    """Read the load of each of ``count`` data-parallel ranks; None if the page does not tell them apart."""
    page = b"\n" + page
    labels = [b"%d" % rank for rank in range(count)]
    for names in _engines(page):
        running = _by_rank(page, names.running, COUNT_MAX)
        if all(label in running for label in labels):
            break
    else:
        return None
    waiting = _by_rank(page, names.waiting, COUNT_MAX)
    shares = next((ranks for name in names.shares if (ranks := _by_rank(page, name, RATIO_MAX))), {})
    return [
        EngineLoad(
            whole(running[label], COUNT_MAX),
            whole(waiting[label], COUNT_MAX) if label in waiting else -1,
            shares.get(label, -1.0),
        )
        for label in labels
    ]


def _engines(page: bytes) -> Iterator[LoadMetrics]:
    """Give the metrics of a page's engine: looking for those of another one takes 10 us each in 100 KB.

    If the page has names of several engines, any may have the load.
    """
    return (load for beginning, load in _LOADS.items() if beginning in page)


def _total(page: bytes, name: bytes) -> int:
    ranks = _by_rank(page, name, COUNT_MAX)
    return whole(sum(ranks.values()), COUNT_MAX) if ranks else -1


def _kv_ratio(page: bytes, names: LoadMetrics) -> float:
    for name in names.shares:
        ranks = _by_rank(page, name, RATIO_MAX)
        if ranks:
            return sum(ranks.values()) / len(ranks)
    if names.used:
        held = _by_rank(page, names.used[0], TOKENS_MAX)
        capacity_tokens = sum(_by_rank(page, names.used[1], TOKENS_MAX).values())
        if held and capacity_tokens > 0:
            return sane_real(sum(held.values()) / capacity_tokens, RATIO_MAX)
    return -1.0


def _by_rank(page: bytes, name: bytes, most: float) -> dict[bytes, float]:
    """Samples of a metric, 0 to ``most``, by data-parallel rank, the greatest of each."""
    ranks: dict[bytes, float] = {}
    start = page.find(b"\n" + name + b"{")
    if start < 0:
        start = page.find(b"\n" + name + b" ")
    while start >= 0 and page.startswith((name + b"{", name + b" "), start + 1):
        end = page.find(b"\n", start + 1)
        line = page[start + 1 : end if end >= 0 else len(page)]
        labels, _, rest = line.rpartition(b"}")
        value = _number((rest if labels else line[len(name) :]).split(), most)
        if value >= 0:
            found = _RANK.search(labels)
            rank = found.group(1) if found is not None else b""
            ranks[rank] = max(value, ranks.get(rank, 0.0))
        start = end
    return ranks


def _number(words: list[bytes], most: float) -> float:
    """Value of a sample, perhaps with a time behind it; -1 if it is out of range or no number."""
    try:
        return sane_real(float(words[0]), most)
    except (ValueError, IndexError):
        return -1.0
