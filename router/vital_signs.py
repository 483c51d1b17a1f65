"""Vitals of this process, gathered from its parts about once a second.

Counts come from the metrics (`router.metrics.Metrics.totals`), so they cost requests nothing. The heartbeat
asks several times a second and gets the same answer until it is `TAKEN_EVERY_S` old.
"""

import time
from collections.abc import Callable
from pathlib import Path
from resource import getpagesize

from router.fleet import Health
from router.gateway import Gateway
from router.loop_lag import LoopLag
from router.settings import Settings
from router.shared import Vitals

TAKEN_EVERY_S = 0.9
"""Below a second, so that a reader of once a second finds new ones each time."""

_MEMORY = Path("/proc/self/statm")

REJECTIONS = frozenset(
    ("rejected", "request_expired", "request_displaced", "queue_full", "no_worker_available", "shutting_down")
)
"""Outcomes of requests that the gateway rejected."""


class VitalSigns:
    """Reader of the vitals.

    Args:
        version: Version of the gateway.
        settings: Addresses of this process for clients and operators.
        gateway: Source of the log's, workers' and requests' figures.
        loop_lag: Lag of the event loop.
        degraded: Returns a sentence for each part that does not work.
        wrote_snapshot: True if the newest snapshot is ours.
        monotonic_s: The local clock.
        unix_s: Wall clock.
    """

    def __init__(
        self,
        version: str,
        settings: Settings,
        gateway: Gateway,
        loop_lag: LoopLag,
        degraded: Callable[[], tuple[str, ...]],
        wrote_snapshot: Callable[[], bool],
        monotonic_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        server, admin = settings.server, settings.admin
        self._version, self._gateway, self._loop_lag = version, gateway, loop_lag
        self._address = f"{server.host}:{server.port}"
        self._admin_address = f"{admin.host}:{admin.port}" if admin.port else self._address
        self._degraded, self._wrote_snapshot = degraded, wrote_snapshot
        self._monotonic_s, self._unix_s = monotonic_s, unix_s
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
        gateway = self._gateway
        status, totals, workers = gateway.log.status(), gateway.metrics.totals(), gateway.registry.all()
        healthy = sum(local.health is Health.HEALTHY and not local.worker.draining for local in workers)
        return Vitals(
            version=self._version,
            address=self._address,
            admin_address=self._admin_address,
            started_unix_s=self._started_unix_s,
            at_unix_s=round(self._unix_s(), 3),
            ready=status.ready,
            lag_s=status.lag_s,
            snapshot_age_s=status.snapshot_age_s,
            holds_snapshot_lease=self._wrote_snapshot(),
            buffered_ops=status.buffered_ops,
            dropped_ops=status.dropped_ops,
            skipped_ops=sum(status.skipped_ops.values()),
            degraded=self._degraded(),
            workers=len(workers),
            workers_healthy=healthy,
            inflight=gateway.sending.inflight,
            waiting=len(gateway.placing.room),
            rss_bytes=_rss_bytes(),
            cpu_s=round(time.process_time(), 3),
            loop_lag_s=round(self._loop_lag.worst_s(), 6),
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
            tpot_bounds_s=totals.tpot_bounds_s,
            tpot_counts=totals.tpot_counts,
        )


def _rss_bytes() -> int:
    """Return the memory of this process; 0 where the system does not tell."""
    try:
        return int(_MEMORY.read_text().split()[1]) * getpagesize()
    except OSError:
        return 0
