"""The fleet's figures over the last ten minutes, sampled all the time, since operators look after the fact.

    replicas' totals ──every INTERVAL_S──> differences ──> one sample ──> ring of SAMPLES_MAX

Each look reads all replicas' totals from Redis at once. A restarted replica counts from zero again; one that
is new, or was not seen for a while, counts from the next look on.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean as mean
from typing import NamedTuple

from router.console.plain_words import Troubles
from router.console.ports import Counters, FleetView, ReplicaView, WorkerFacts

INTERVAL_S = 5.0

SAMPLES_MAX = 120
"""Ten minutes."""

LATELY = 12
"""Samples of the last minute, over which errors are averaged: one failed request is no wave of them."""

REFUSED_MIN = 10
"""Refused requests in the last minute from which their share says something."""


class Sample(NamedTuple):
    """The fleet in one interval. Ratios and times are None where nothing was measured.

    Attributes:
        at_unix_s: Its end.
        requests_per_s: Ended requests.
        hit_ratio: Cached share of prompt tokens, as engines report it.
        ttft_p50_s: Median time to first token of streams, interpolated between a histogram's bounds.
        ttft_p90_s: The ninth decile of the same.
        waiting: Waiting requests at its end.
        inflight: Requests in flight at its end.
        rejected_per_s: Rejected requests.
        failed_per_s: Requests that workers failed.
        output_tokens_per_s: Rate of ended answers; None if requests ended and no engine reported its tokens.
        refused_per_s: Requests that workers refused.
    """

    at_unix_s: float
    requests_per_s: float
    hit_ratio: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    waiting: int
    inflight: int
    rejected_per_s: float
    failed_per_s: float
    limited_per_s: float = 0.0
    unavailable_per_s: float = 0.0
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float | None = 0.0
    refused_per_s: float = 0.0


class RateWindow:
    """Samples of ten minutes, the oldest first, with the last look's ``replicas`` and ``troubles``."""

    def __init__(
        self,
        fleet_view: FleetView,
        interval_s: float = INTERVAL_S,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._fleet_view = fleet_view
        self._interval_s = interval_s
        self._now_unix_s = now_unix_s
        self._before: dict[str, Counters] = {}
        self._looked_unix_s = now_unix_s()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.replicas: Sequence[ReplicaView] = ()
        self.troubles = Troubles()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Take a sample."""
        self.replicas = await self._fleet_view.replicas()
        facts = self._fleet_view.facts()
        now_unix_s = self._now_unix_s()
        elapsed_s = max(now_unix_s - self._looked_unix_s, 1e-3)
        self._looked_unix_s = now_unix_s
        totals = {each.replica: each.counters for each in self.replicas if each.counters is not None}
        gained = [gain(self._before[name], now) for name, now in totals.items() if name in self._before]
        self._before = totals
        if gained:
            self.samples.append(self._sample(gained, now_unix_s, elapsed_s, facts))
        self.wrong(facts)

    def wrong(self, facts: Sequence[WorkerFacts]) -> list[dict[str, object]]:
        """Return the current faults."""
        conditions = self._fleet_view.conditions()
        last = list(self.samples)[-LATELY:]
        if last:
            refused_per_s = mean(each.refused_per_s for each in last)
            requests_per_s = mean(each.requests_per_s for each in last)
            enough = refused_per_s * len(last) * self._interval_s >= REFUSED_MIN
            conditions = replace(
                conditions,
                rejected_per_s=mean(each.rejected_per_s for each in last),
                failed_per_s=mean(each.failed_per_s for each in last),
                refused_ratio=refused_per_s / requests_per_s if enough else 0.0,
            )
        return self.troubles.look(conditions, facts, self._now_unix_s())

    def _sample(
        self, gained: Sequence[Counters], now_unix_s: float, elapsed_s: float, facts: Sequence[WorkerFacts]
    ) -> Sample:
        prompt_tokens = sum(each.prompt_tokens for each in gained)
        cached_tokens = sum(each.cached_tokens for each in gained)
        bounds_s, counts = merged([(each.ttft_bounds_s, each.ttft_counts) for each in gained])
        tpot_bounds_s, tpot_counts = merged([(each.tpot_bounds_s, each.tpot_counts) for each in gained])

        ended = any(each.requests for each in gained)

        def per_s(totals: Iterable[int]) -> float:
            return round(sum(totals) / elapsed_s, 3)

        return Sample(
            at_unix_s=round(now_unix_s, 1),
            requests_per_s=per_s(each.requests for each in gained),
            hit_ratio=round(cached_tokens / prompt_tokens, 4) if prompt_tokens else None,
            ttft_p50_s=quantile_s(bounds_s, counts, 0.5),
            ttft_p90_s=quantile_s(bounds_s, counts, 0.9),
            waiting=self._fleet_view.waiting(),
            inflight=sum(load.inflight for load in self._fleet_view.loads(facts)),
            rejected_per_s=per_s(each.rejected for each in gained),
            failed_per_s=per_s(each.failed for each in gained),
            limited_per_s=per_s(each.limited for each in gained),
            unavailable_per_s=per_s(each.unavailable for each in gained),
            tpot_p50_s=quantile_s(tpot_bounds_s, tpot_counts, 0.5),
            tpot_p90_s=quantile_s(tpot_bounds_s, tpot_counts, 0.9),
            prompt_tokens_per_s=per_s(each.all_prompt_tokens for each in gained),
            output_tokens_per_s=per_s(each.output_tokens for each in gained) or (None if ended else 0.0),
            refused_per_s=per_s(each.refused for each in gained),
        )


def gain(before: Counters, now: Counters) -> Counters:
    """Return the counts between two looks; all counts if the replica has restarted."""
    if now.requests < before.requests or now.prompt_tokens < before.prompt_tokens:
        return now
    return Counters(
        requests=now.requests - before.requests,
        failed=now.failed - before.failed,
        rejected=now.rejected - before.rejected,
        prompt_tokens=now.prompt_tokens - before.prompt_tokens,
        cached_tokens=now.cached_tokens - before.cached_tokens,
        ttft_counts=_gained(before.ttft_bounds_s, before.ttft_counts, now.ttft_bounds_s, now.ttft_counts),
        ttft_bounds_s=now.ttft_bounds_s,
        limited=now.limited - before.limited,
        unavailable=now.unavailable - before.unavailable,
        tpot_counts=_gained(before.tpot_bounds_s, before.tpot_counts, now.tpot_bounds_s, now.tpot_counts),
        tpot_bounds_s=now.tpot_bounds_s,
        all_prompt_tokens=now.all_prompt_tokens - before.all_prompt_tokens,
        output_tokens=now.output_tokens - before.output_tokens,
        refused=now.refused - before.refused,
    )


def _gained(
    bounds_before: Sequence[float], before: Sequence[int], bounds: Sequence[float], counts: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the gain of a histogram; all of it if its bounds are others now."""
    if bounds_before != bounds:
        return counts
    return tuple(new - old for new, old in zip(counts, before, strict=True))


def merged(
    histograms: Sequence[tuple[tuple[float, ...], tuple[int, ...]]],
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Sum the counts of all replicas with the first one's bounds; other versions are left out.

    A replica of an older version may have no bounds.
    """
    bounds_s = next((bounds for bounds, _ in histograms if bounds), ())
    same = [counts for bounds, counts in histograms if bounds == bounds_s]
    return bounds_s, tuple(map(sum, zip(*same, strict=True)))


def quantile_s(bounds_s: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated in its bucket as Prometheus does; None if it is empty.

    Values beyond the last bound count as that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below, lower_s = share * total, 0, 0.0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        if count and below + count >= rank:
            return round(lower_s + (bound_s - lower_s) * (rank - below) / count, 4)
        below += count
        lower_s = bound_s
    return bounds_s[-1]
