"""Requests in flight: their limits, retries, and slow ones.

Inflight ── timeouts       PrefillEnds ── predicted ends       RetryBudget ── price of retries
"""

import asyncio
import sys
from collections.abc import Callable

from policies import RetryBudget
from router.errors import RequestRejected, RouterError
from router.fleet import Core
from router.gateway.inflight import Inflight, Timed
from router.gateway.placing import Placing
from router.gateway.prefill_ends import PrefillEnds
from router.metric_families import REDISPATCHES
from router.metrics import Metrics
from router.settings import Settings

RENEWED_AT_ONCE = 200
"""Reservations renewed in one turn of the loop, a few milliseconds."""


class Sending:
    """The requests of one replica that have begun and not ended; files are open for ``requests_max``."""

    def __init__(
        self,
        settings: Settings,
        core: Core,
        placing: Placing,
        metrics: Metrics,
        *,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float],
        requests_max: int = sys.maxsize,
    ) -> None:
        self._loop, self._now_s, self._metrics = loop, now_s, metrics
        self._admission = placing.admission
        self._now_us = core.log.now_us
        self.exchanges = Inflight(loop, now_s, settings.server.request_timeout_s)
        self.prefill_ends = PrefillEnds(loop, now_s)
        self.retry_budget = RetryBudget(settings.reliability)
        self.requests_max = requests_max
        self.at_workers = 0
        """Requests at workers; call `limit` when ``at_workers_max`` may be reached, or was: ``full``."""
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply new settings; requests in flight keep their worker."""
        self.exchanges.timeout_s = settings.server.request_timeout_s
        self.retry_budget.rules = settings.reliability
        most = settings.server.max_concurrent_requests
        self.at_workers_max = most if most > 0 else sys.maxsize
        self._queues = not settings.queue.disable_queue
        self.limit()

    @property
    def inflight(self) -> int:
        """Exchanges that have not ended."""
        return len(self.exchanges)

    def limit(self) -> None:
        """Find out whether any worker may get a request more."""
        self.full = self._admission.closed = self.at_workers >= self.at_workers_max

    def admit(self, refusal: RouterError | None = None) -> None:
        """Check the limits of concurrent requests for one that has just begun; raise the refusal of its body.

        Raises `RequestRejected` if no more files are open, or too many requests are sent and none may wait.
        """
        if refusal is not None:
            raise refusal
        if (self.full and not self._queues) or len(self.exchanges) > self.requests_max:
            raise RequestRejected(
                f"{self.inflight - 1} requests are in flight already.",
                retry_after_s=1.0,
                code="too_many_requests",
            )

    def may_resend(self) -> bool:
        """Pay for sending a request again that met a stale connection; False if it may not be."""
        budget = self.retry_budget
        if budget.rules.retries_max == 0 or not budget.withdraw(self._now_s()):
            return False
        self._metrics.counts[REDISPATCHES].add(("stale_connection",))
        return True

    def given_up(self, left_us: int) -> None:
        """Reserve again what is in flight: the others gave this replica up although it lives.

        They dropped its placements up to log time ``left_us`` (`policies.Left`).
        """
        self._renew(list(self.exchanges), left_us)

    def _renew(self, exchanges: list[Timed], left_us: int) -> None:
        """Renew some reservations now and the rest a moment later, so that no request waits for all."""
        for exchange in exchanges[:RENEWED_AT_ONCE]:
            exchange.renew(left_us, max(self._now_us(), left_us + 1))
        if len(exchanges) > RENEWED_AT_ONCE:
            self._loop.call_later(0, self._renew, exchanges[RENEWED_AT_ONCE:], left_us)
