"""Promises about the cost of cacheway, judged by the medians of one run.

The limit of a figure is a number, or a factor times the figure of the best of some peers in the same run;
without any of these peers the promise is not judged.
"""

from dataclasses import dataclass

from loadtest.bench.peers.field import CACHEWAY, WORKLOADS, Figure, Kind, keys
from loadtest.bench.peers.results import Results, Spread

_RUST = (Kind.CACHE_AWARE, Kind.ROUND_ROBIN)


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise.

    Attributes:
        rivals: Kinds of peers whose cheapest sets the limit; empty if the limit is a number.
        rival: The same in words.
        factor: Limit in units of that peer's figure, or the limit itself.
        tail: About the 99th percentile of an added latency, and not the median.
    """

    workload: str
    rivals: tuple[Kind, ...]
    rival: str
    factor: float
    tail: bool = False


PROMISES = (
    Promise("W1", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 1.0),
    Promise("W1P", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 1.0),
    Promise("W2", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 0.8),
    Promise("W3", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 0.4),
    Promise("W4", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 0.75),
    Promise("W5", (Kind.CACHE_AWARE,), "the cheapest cache-aware", 1.0),
    Promise("W5", (Kind.PLAIN,), "nginx", 1.7),
    Promise("W6", (), "P50", 0.6),
    Promise("W6", (), "P99", 3.0, tail=True),
    Promise("W7", _RUST, "the smallest Rust router", 1.0),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of a promise.

    Attributes:
        seen: Cacheway's figure.
        rival: Key of the peer that sets the limit; None if the limit is a number.
        limit: The most that the median may be.
        failed: Failed requests with cacheway in this workload: with any, no promise is kept.
    """

    promise: Promise
    seen: Spread
    rival: str | None
    limit: float
    failed: int

    @property
    def ratio(self) -> float:
        """Cacheway's figure over the rival's, which the promise says is at most its factor."""
        return self.seen.median / self.limit * self.promise.factor

    @property
    def kept(self) -> bool:
        """True if the median is within the limit and nothing failed."""
        return self.seen.median <= self.limit and not self.failed


def judge(results: Results) -> list[Verdict]:
    """Judge every promise for which the run has figures."""
    workloads = {workload.key: workload for workload in WORKLOADS}
    verdicts = []
    for promise in PROMISES:
        workload = workloads[promise.workload]
        if promise.tail:
            assert workload.figure is Figure.ADDED_LATENCY
            seen = results.added(CACHEWAY, workload.key, lambda repetition: repetition.p99_ms)
        else:
            seen = results.figure(CACHEWAY, workload)
        rivals = {
            peer: figure.median
            for peer in keys(*promise.rivals)
            if (figure := results.figure(peer, workload))
        }
        if seen is None or (promise.rivals and not rivals):
            continue
        best = min(rivals, key=rivals.__getitem__) if rivals else None
        limit = promise.factor * (rivals[best] if best else 1.0)
        failed = results.failed(CACHEWAY, workload.fill or workload.key)
        verdicts.append(Verdict(promise, seen, best, limit, failed))
    return verdicts
