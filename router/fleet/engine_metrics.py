"""Reads the workers' ``/metrics`` and publishes their load. One loop per replica, started by `router.app`.

A worker is due when its newest report, of any replica, is an interval old; the replica in turn
(`policies.turn_of`) reads, the next in turn two intervals later, and so on. Only workers with requests in
flight are read, and those without a report: any other worker may be given requests
(`policies.fleet.admission`).

A page may be seconds old: requests that ended since would look foreign, and a free worker full. So a report
carries the most that was in flight at this look and the one before; the excess is foreign work. A
missing or silent page, or an unexpected error, is counted, and the worker is left alone for a while.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from policies import AdmissionRules, Reported, Worker
from radix import TOKENS_MAX, whole
from router.fleet.core import Core
from router.fleet.engine_load import EngineLoad, engine_load, rank_loads
from router.fleet.local_worker import Health, LocalWorker

logger = logging.getLogger(__name__)

LOOKS_PER_S_MAX = 50
"""Pages that one replica reads in a second, a millisecond of work each."""

AT_ONCE = 16
"""Pages that are read at the same time."""

TURN_INTERVALS = 2
"""Intervals after which the next replica in turn reads."""

LEFT_ALONE_INTERVALS = 10
"""Intervals for which a worker with a missing or silent page is left alone."""

TICKS = 5
TICK_S_MAX = 5.0
"""Looks for due workers: `TICKS` in an interval, at most this many seconds apart."""

OFF_S = 1.0
"""Seconds between two checks if it is still off."""


class EngineMetrics:
    """The loop. `reports` counts pages with a load, `failures` those without, or later than `timeout_s`.

    ``read`` returns the page at a URL, None on any failure or after some seconds.
    """

    def __init__(
        self,
        core: Core,
        read: Callable[[str, float], Awaitable[bytes | None]],
        rules: AdmissionRules,
        timeout_s: float,
    ) -> None:
        self.rules, self.timeout_s = rules, timeout_s
        self._core = core
        self._read_page = read
        self._reading: set[str] = set()
        self._inflight: dict[str, tuple[int, int]] = {}
        """Requests and tokens in flight at the last look."""
        self._not_before_us: dict[str, int] = {}
        self.reports = 0
        self.failures = 0

    @property
    def _interval_us(self) -> int:
        """Time between two looks at a worker; 0: never."""
        return round(self.rules.engine_metrics_interval_s * 1e6)

    async def run(self) -> None:
        """Read until cancelled."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                interval_us = self._interval_us
                if not interval_us:
                    await asyncio.sleep(OFF_S)
                    continue
                tick_s = min(interval_us / 1e6 / TICKS, TICK_S_MAX)
                looks_max = max(1, round(LOOKS_PER_S_MAX * tick_s))
                for local in self.due(self._core.log.now_us())[:looks_max]:
                    self._reading.add(local.worker.worker_id)
                    group.create_task(self._read(local, limit), name=f"look {local.worker.worker_id}")
                await asyncio.sleep(tick_s)

    async def look(self, local: LocalWorker) -> None:
        """Read one worker's page, and publish."""
        worker, places = local.worker, local.places
        asked_us = self._core.log.now_us()
        most = [self._most_inflight(place) for place in places]
        try:
            text = await self._read_page(worker.url + "/metrics", self.timeout_s)
            load = None if text is None else _loads(text, places)
            for place, each, inflight in zip(places, load or (), most, strict=load is not None):
                self._tell(local, place, each, asked_us, inflight)
        except Exception:
            logger.exception(
                "a look at a worker's metrics failed inside the gateway",
                extra={"event": "metrics.crashed", "worker_id": worker.worker_id},
            )
            load = None
        if load is None:
            self.failures += 1
            self._not_before_us[worker.worker_id] = asked_us + LEFT_ALONE_INTERVALS * self._interval_us
            return
        self.reports += 1

    def _most_inflight(self, place: Worker) -> tuple[int, int]:
        """Return the most requests and tokens in flight at this look and the one before."""
        loads = self._core.fleet.loads
        now = int(loads.inflight_requests[place.slot]), int(loads.inflight_tokens[place.slot])
        before = self._inflight.get(place.worker_id, now)
        self._inflight[place.worker_id] = now
        return max(now[0], before[0]), max(now[1], before[1])

    def _tell(
        self, local: LocalWorker, place: Worker, load: EngineLoad, asked_us: int, inflight: tuple[int, int]
    ) -> None:
        count = len(local.places)
        capacity_tokens = place.capacity_tokens or self._core.fleet.rules.capacity_tokens // count
        reports_kv = load.kv_ratio >= 0 and capacity_tokens > 0
        self._core.log.publish(
            Reported(
                place.worker_id,
                asked_us,
                self._core.log.replica,
                load.running,
                load.waiting,
                whole(load.kv_ratio * capacity_tokens, TOKENS_MAX) if reports_kv else -1,
                -(-local.running_max // count),
                *inflight,
            )
        )

    async def _read(self, local: LocalWorker, limit: asyncio.Semaphore) -> None:
        try:
            async with limit:
                await self.look(local)
        finally:
            self._reading.discard(local.worker.worker_id)

    def due(self, now_us: int) -> list[LocalWorker]:
        """Workers that this replica is to read now, the longest overdue first."""
        workers = self._core.registry.all()
        self._forget_others(workers)
        due: list[tuple[int, str, LocalWorker]] = []
        for local in workers:
            worker_id = local.worker.worker_id
            from_us = self._due_us(local, now_us)
            if from_us is not None and from_us <= now_us:
                due.append((from_us, worker_id, local))
        return [local for _, _, local in sorted(due, key=lambda each: each[:2])]

    def _due_us(self, local: LocalWorker, now_us: int) -> int | None:
        worker_id = local.worker.worker_id
        if local.health is not Health.HEALTHY or worker_id in self._reading:
            return None
        interval_us, report = self._interval_us, self._core.fleet.reports.get(local.places[0].worker_id)
        if report is not None and (
            report.at_us + interval_us > now_us
            or not self._core.fleet.loads.inflight_requests[local.slots].any()
        ):
            return None
        # Without a report, the worker's time runs from when this replica first saw it due.
        first_us = self._not_before_us.setdefault(worker_id, now_us)
        wait_us = TURN_INTERVALS * self._core.turn(worker_id) * interval_us
        return first_us + wait_us if report is None else max(first_us, report.at_us + interval_us + wait_us)

    def _forget_others(self, workers: Sequence[LocalWorker]) -> None:
        if len(self._not_before_us) > len(workers):
            for worker_id in self._not_before_us.keys() - {local.worker.worker_id for local in workers}:
                del self._not_before_us[worker_id]
            kept = {place.worker_id for local in workers for place in local.places}
            self._inflight = {key: self._inflight[key] for key in self._inflight.keys() & kept}


def _loads(text: bytes, places: Sequence[Worker]) -> list[EngineLoad] | None:
    """Read the load of each place of a worker; None if the page has none."""
    if len(places) > 1:
        return rank_loads(text, len(places))
    load = engine_load(text)
    return None if load is None else [load]
