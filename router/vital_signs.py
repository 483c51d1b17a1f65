"""Takes this process's vitals: what its parts know anyway, put together about once a second.

Counters come from the metrics' own (`router.metrics.Metrics.totals`), so they cost requests nothing. The
heartbeat asks several times a second and gets the same answer until it is `TAKEN_EVERY_S` old.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize

from router.fleet import Health, Registry
from router.loop_lag import LoopLag
from router.metrics import Metrics
from router.shared import LogStatus, Vitals

TAKEN_EVERY_S = 0.9
"""Shorter than a second, so that who reads once a second finds new ones each time."""

_MEMORY = Path("/proc/self/statm")

REJECTIONS = frozenset(
    ("rejected", "request_expired", "request_displaced", "queue_full", "no_worker_available", "shutting_down")
)
"""Outcomes of requests that we sent away."""


@dataclass(frozen=True, slots=True)
class SignPorts:
    """Where the signs come from.

    Attributes:
        version: Of the gateway.
        address: Where clients reach this process.
        admin_address: Where operators do.
        status: Of the shared log.
        wrote_snapshot: Whether the newest snapshot is ours.
        degraded: What does not work, a sentence each.
        registry: The workers.
        inflight: Requests that this process serves.
        waiting: Those of them that wait.
        metrics: What it has counted.
        loop_lag: How late its event loop is.
    """

    version: str
    address: str
    admin_address: str
    status: Callable[[], LogStatus]
    wrote_snapshot: Callable[[], bool]
    degraded: Callable[[], tuple[str, ...]]
    registry: Registry
    inflight: Callable[[], int]
    waiting: Callable[[], int]
    metrics: Metrics
    loop_lag: LoopLag


class VitalSigns:
    """Takes them.

    Args:
        ports: Where they come from.
        monotonic_s: The local clock.
        unix_s: Wall clock.
    """

    def __init__(
        self,
        ports: SignPorts,
        monotonic_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._ports = ports
        self._monotonic_s = monotonic_s
        self._unix_s = unix_s
        self._started_unix_s = round(unix_s(), 3)
        self._taken: Vitals | None = None
        self._taken_s = 0.0

    def read(self) -> Vitals:
        """The vitals, at most `TAKEN_EVERY_S` old."""
        now_s = self._monotonic_s()
        if self._taken is None or now_s - self._taken_s >= TAKEN_EVERY_S:
            self._taken, self._taken_s = self._take(), now_s
        return self._taken

    def _take(self) -> Vitals:
        ports = self._ports
        status, totals, workers = ports.status(), ports.metrics.totals(), ports.registry.all()
        healthy = sum(local.health is Health.HEALTHY and not local.worker.draining for local in workers)
        return Vitals(
            version=ports.version,
            address=ports.address,
            admin_address=ports.admin_address,
            started_unix_s=self._started_unix_s,
            at_unix_s=round(self._unix_s(), 3),
            ready=status.ready,
            lag_s=status.lag_s,
            snapshot_age_s=status.snapshot_age_s,
            holds_snapshot_lease=ports.wrote_snapshot(),
            buffered_ops=status.buffered_ops,
            dropped_ops=status.dropped_ops,
            skipped_ops=sum(status.skipped_ops.values()),
            degraded=ports.degraded(),
            workers=len(workers),
            workers_healthy=healthy,
            inflight=ports.inflight(),
            waiting=ports.waiting(),
            rss_bytes=_rss_bytes(),
            cpu_s=round(time.process_time(), 3),
            loop_lag_s=round(ports.loop_lag.worst_s(), 6),
            requests=totals.requests,
            rejected=sum(count for outcome, count in totals.requests.items() if outcome in REJECTIONS),
            prompt_tokens=totals.prompt_tokens,
            output_tokens=totals.output_tokens,
            reported_prompt_tokens=totals.reported_prompt_tokens,
            cached_tokens=totals.cached_tokens,
            predicted_tokens=totals.predicted_tokens,
            ttft_bounds_s=totals.ttft_bounds_s,
            ttft_counts=totals.ttft_counts,
            ttft_sum_s=round(totals.ttft_sum_s, 6),
        )


def _rss_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        return int(_MEMORY.read_text().split()[1]) * getpagesize()
    except OSError:
        return 0
