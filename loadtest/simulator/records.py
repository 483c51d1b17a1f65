"""Results of a simulation: one row per request, the fleet over time, and their summary.

Rows are in order of arrival. Times are virtual seconds since the start; NaN never happened. *Lost* tokens are
those that an infinite cache would have reused and the worker did not, each with its first cause:

    placed elsewhere    another worker held it when the request was placed
    not window-safe     a worker held its blocks, but not the window or state that goes with them (pseudo-hit)
    evicted             some worker had computed it, and none holds it now
    in flight           no worker had computed it yet: one was computing it, or it waited there
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from policies import ServiceModel

if TYPE_CHECKING:
    from loadtest.simulator.simulation import SimulationConfig

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

LONG_UNCACHED_TOKENS = 16_384
"""Least length of a long request: tokens that even an infinite cache would leave to compute."""


class Outcome(IntEnum):
    """End of a request."""

    COMPLETED = 0
    REJECTED = 1
    FAILED = 2
    EXPIRED = 3


@dataclass(frozen=True)
class Records:
    """One row per request, in order of arrival.

    Attributes:
        dispatched_s: Sent to its worker.
        started_s: Begin of its prefill.
        first_s: Begin of its answer.
        device_tokens: Reused from the worker's device memory.
        host_tokens: Loaded beyond it from the host's memory.
        pool_tokens: The part of ``host_tokens`` that a prefetch brought from a shared pool.
        ideal_tokens: Reuse of one infinite cache, in this order of arrival.
        floor_ttft_s: Time to first token with infinite caches and no queue.
        worker: -1 if none.
        decode_worker: -1 if the same.
        replica: Which placed it.
        predicted_tokens: Reuse that the gateway predicted, as ``predicted_ttft_s``.
        best_tokens: Reuse of the best worker at dispatch.
        computed_tokens: Prompt tokens computed by some worker by then, held or not.
        unsafe_tokens: The most that a worker held of the blocks at dispatch, window-safe or not.
    """

    arrival_s: Floats
    dispatched_s: Floats
    started_s: Floats
    first_s: Floats
    finished_s: Floats
    prompt_tokens: Whole
    output_tokens: Whole
    device_tokens: Whole
    host_tokens: Whole
    pool_tokens: Whole
    ideal_tokens: Whole
    floor_ttft_s: Floats
    worker: Whole
    decode_worker: Whole
    replica: Whole
    predicted_tokens: Whole
    predicted_ttft_s: Floats
    best_tokens: Whole
    computed_tokens: Whole
    unsafe_tokens: Whole
    outcome: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def reused_tokens(self) -> Whole:
        """Tokens that the worker reused, from all tiers."""
        return self.device_tokens + self.host_tokens

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token."""
        return self.first_s - self.arrival_s

    @property
    def wait_s(self) -> Floats:
        """In the gateway, from arrival to dispatch."""
        return self.dispatched_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Mean time of an output token after the first; NaN for answers of one."""
        more = self.output_tokens - 1
        spent_s = self.finished_s - self.first_s
        tpot_s: Floats = np.divide(spent_s, more, out=np.full(len(self), np.nan), where=more > 0)
        return tpot_s

    def lost_tokens(self) -> dict[str, Whole]:
        """Tokens that an infinite cache would have reused and the worker did not, by cause (see above)."""
        reached = self.reused_tokens.copy()
        lost: dict[str, Whole] = {}
        for cause, limit in (
            ("placed_elsewhere", self.best_tokens),
            ("not_window_safe", self.unsafe_tokens),
            ("evicted", self.computed_tokens),
            ("in_flight", self.ideal_tokens),
        ):
            limit = np.minimum(limit, self.ideal_tokens)
            lost[cause] = np.maximum(limit - reached, 0)
            reached = np.maximum(reached, limit)
        return lost

    def lost_s(self, prices: ServiceModel) -> dict[str, Floats]:
        """The same in seconds of prefill on an engine with these prices."""
        reached = self.reused_tokens
        lost: dict[str, Floats] = {}
        for cause, tokens in self.lost_tokens().items():
            lost[cause] = self._prefill_s(prices, reached) - self._prefill_s(prices, reached + tokens)
            reached = reached + tokens
        return lost

    def _prefill_s(self, prices: ServiceModel, cached_tokens: Whole) -> Floats:
        uncached = (self.prompt_tokens - cached_tokens).astype(np.float64)
        middle = cached_tokens + uncached / 2
        seconds: Floats = prices.a_s + prices.b_s * uncached * (1.0 + middle / prices.c0_tokens)
        return seconds

    def since(self, start_s: float) -> "Records":
        """The rows of requests that arrived at a time or later."""
        rows = self.arrival_s >= start_s
        return Records(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


@dataclass(frozen=True)
class Timeline:
    """The fleet at k moments; one column per worker that takes requests.

    Attributes:
        busy_ratio: Share of prefill in the time since the moment before.
        waiting: Requests in its queue.
        held_tokens: Tokens in its cache.
    """

    time_s: Floats
    busy_ratio: Floats
    waiting: Whole
    held_tokens: Whole


@dataclass(frozen=True)
class Bounds:
    """Bounds that no placement on this fleet can beat, in this order of arrival.

    Attributes:
        infinite_hit_ratio: Reuse of one infinite cache.
        pooled_lru_hit_ratio: Reuse of one LRU cache as large as all workers' together (``pooled_tokens``).
    """

    infinite_hit_ratio: float
    pooled_lru_hit_ratio: float
    pooled_tokens: int


@dataclass(frozen=True)
class Result:
    """One simulation.

    Attributes:
        events: Calls of virtual time.
        decisions_digest: Hash of all choices in their order: equal runs have equal digests.
        time_scale: Prefill time relative to the engines' profile (``SimulationConfig.utilisation``).
        inversions: Requests that went before one with a better key for the same worker
            (`policies.state.waiting.Inversions`), as its replica saw it.
        inversion_s_max: Largest difference of those keys.
        rooms_overdue: Rooms of workers that a replica left unused for too long.
        role_changes: Each worker that took another role: when, who and which.
        egress: Bytes so far on each link between sites, as a line through (seconds, bytes).
        pool: Figures of the shared pool (`Fleet.pool_figures`); empty without one.
    """

    config: "SimulationConfig"
    workload_name: str
    records: Records
    timeline: Timeline
    bounds: Bounds
    cpu_s: float
    events: int
    decisions_digest: str
    time_scale: float = 1.0
    inversions: int = 0
    inversion_s_max: float = 0.0
    rooms_overdue: int = 0
    egress: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)
    pool: Mapping[str, float] = field(default_factory=dict)
    role_changes: tuple[tuple[float, str, str], ...] = ()

    def summary(self) -> dict[str, float | int | str | None]:
        """Figures of the requests behind the warm-up, ready for JSON; None where nothing was measured."""
        records = self.records.since(self.config.warmup_s)
        done = records.outcome == Outcome.COMPLETED
        prompts = max(int(records.prompt_tokens[done].sum()), 1)
        ttft_s = records.ttft_s[done]
        # By a length that no policy changes: misses must not make short requests long.
        long = (records.prompt_tokens - records.ideal_tokens)[done] > LONG_UNCACHED_TOKENS
        hit_ratio = int(records.reused_tokens[done].sum()) / prompts
        pooled_ratio = self.bounds.pooled_lru_hit_ratio
        busy = self._busy_ratio()
        reused = {
            "hit_device_ratio": records.device_tokens,
            "hit_host_ratio": records.host_tokens - records.pool_tokens,
            "hit_pool_ratio": records.pool_tokens,
        }
        figures: dict[str, float | int | str | None] = {
            "workload": self.workload_name,
            "policy": self.config.policy,
            "requests": len(records),
            "completed": int(done.sum()),
            "rejected": int((records.outcome == Outcome.REJECTED).sum()),
            "failed": int((records.outcome == Outcome.FAILED).sum()),
            "expired": int((records.outcome == Outcome.EXPIRED).sum()),
            "completed_share": float(done.mean()) if len(records) else None,
            "hit_ratio": hit_ratio,
            **{name: int(tokens[done].sum()) / prompts for name, tokens in reused.items()},
            "ideal_hit_ratio": self.bounds.infinite_hit_ratio,
            "pooled_hit_ratio": pooled_ratio,
            "share_of_pooled": hit_ratio / pooled_ratio if pooled_ratio else None,
            "ttft_mean_s": _mean(ttft_s),
            **{f"ttft_p{share}_s": _percentile(ttft_s, share) for share in (50, 90, 99)},
            "ttft_long_p90_s": _percentile(ttft_s[long], 90),
            "ttft_short_p90_s": _percentile(ttft_s[~long], 90),
            "floor_ttft_mean_s": _mean(records.floor_ttft_s[done]),
            **{f"wait_p{share}_s": _percentile(records.wait_s[done], share) for share in (50, 90)},
            "wait_max_s": _percentile(records.wait_s[done], 100),
            "inversions": self.inversions,
            "inversion_max_s": self.inversion_s_max,
            "rooms_overdue": self.rooms_overdue,
            "tpot_mean_s": _mean(records.tpot_s[done]),
            "tpot_p90_s": _percentile(records.tpot_s[done], 90),
            "utilisation_mean": float(busy.mean()) if len(busy) else None,
            "utilisation_max": float(busy.max()) if len(busy) else None,
            "imbalance": float(busy.max() / busy.mean()) if len(busy) and busy.mean() > 0 else None,
            "makespan_s": float(np.nanmax(self.records.finished_s)) if done.any() else None,
            "time_scale": self.time_scale,
            "cpu_s": self.cpu_s,
            "events": self.events,
            "decisions_digest": self.decisions_digest,
        }
        for cause, tokens in records.lost_tokens().items():
            figures[f"lost_{cause}_ratio"] = int(tokens[done].sum()) / prompts
        for cause, lost_s in self.lost_s(records).items():
            figures[f"lost_{cause}_s"] = float(lost_s[done].sum())
        return figures | dict(self.pool)

    def lost_s(self, records: Records) -> dict[str, Floats]:
        """Seconds of prefill that these requests lost to a cache that is not infinite, by cause."""
        return records.lost_s(self.config.engine.prefill.faster(1.0 / self.time_scale).model())

    def _busy_ratio(self) -> Floats:
        """Load of each worker over the time in which requests came, behind the warm-up."""
        time_s, busy = self.timeline.time_s, self.timeline.busy_ratio
        steps_s = np.diff(time_s, prepend=0.0)
        last_s = float(self.records.arrival_s[-1]) if len(self.records) else 0.0
        rows = (time_s > self.config.warmup_s) & (time_s <= max(last_s, self.config.warmup_s))
        if not rows.any():
            rows = np.ones(len(time_s), dtype=bool)
        total_s = steps_s[rows].sum()
        if not total_s:
            return np.zeros(0)
        ratio: Floats = (busy[rows] * steps_s[rows, None]).sum(axis=0) / total_s
        return ratio


def _mean(values: Floats) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _percentile(values: Floats, share: float) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.percentile(values, share)) if len(values) else None
