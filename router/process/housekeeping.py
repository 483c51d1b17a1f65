"""Housekeeping: a replica's work once a second, beside its requests.

`router.app` starts `Housekeeping.run`, restarts it if it ever fails, and cancels it at the end.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from policies import CONVERTIBLE_LABEL, departures
from router.fleet import Core, normal_url, worker_id_of
from router.gateway import Gateway
from router.settings import Settings

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 1.0


class Housekeeping:
    """The loop; ``settings`` returns the current ones."""

    def __init__(self, core: Core, gateway: Gateway, settings: Callable[[], Settings]) -> None:
        self._fleet, self._registry, self._log = core.fleet, core.registry, core.log
        self._gateway, self._settings = gateway, settings

    async def run(self) -> None:
        """Once a second: forget old entries, and release reservations that leaked (a bug, so an error).

        If a snapshot says that this replica was given up, reserve its requests again (the log announces it by
        itself). Without Redis, give up the other replicas when their heartbeats would have expired, as they
        do this one.
        """
        handled_us = 0
        connected_s = time.monotonic()
        compared = False
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            status = self._log.status()
            if status.ready and not compared:
                compared = True
                self._compare_roles()
            left_us = self._fleet.loads.left_us(self._log.replica)
            if left_us > handled_us:
                handled_us = left_us
                self._gateway.sending.given_up(left_us)
            if status.connected:
                connected_s = time.monotonic()
                self._let_go(status.replicas)
            elif time.monotonic() - connected_s > self._settings().shared.heartbeat_ttl_s:
                for left in self._fleet.cut_off(self._log.replica, self._log.now_us()):
                    self._log.publish(left)
                self._gateway.placing.room.changed()
            expired = self._fleet.collect(self._log.now_us())
            if expired:
                logger.error(
                    "reservations were never released, and expire: please report this defect, with the log",
                    extra={"event": "reservation.expired", "count": expired},
                )

    def _let_go(self, replicas: tuple[str, ...]) -> None:
        """Remove drained workers that were to be removed."""
        for departure in departures(self._fleet, self._log.replica, replicas, self._log.now_us()):
            self._log.publish(departure)
            logger.info(
                "a drained worker left", extra={"event": "worker.left", "worker_id": departure.worker}
            )

    def _compare_roles(self) -> None:
        """Warn if a worker in the settings has another role in the shared state, which wins."""
        for named in self._settings().fleet.workers:
            local = self._registry.get(worker_id_of(normal_url(named.url)))
            if local is None or local.worker.role == named.role:
                continue
            if local.worker.labels.get(CONVERTIBLE_LABEL) != "true":
                logger.warning(
                    "a worker keeps the role that the shared state knows; change it with PUT /workers",
                    extra={
                        "event": "worker.role_kept",
                        "worker_id": local.worker.worker_id,
                        "role": local.worker.role,
                        "role_in_settings": named.role,
                    },
                )
