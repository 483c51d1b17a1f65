"""Blames the worker or the request for a failed attempt.

    a worker fails ──no other one is asked──> the worker's: counts in its circuit
                   └─another one is asked───> held back
        held back ──the other one answers well──> the first worker's
                  ├─the other one fails, too────> the request's: counts in no circuit
                  └─the client leaves───────────> counts in no circuit

Otherwise a request that crashes engines, or that every engine answers with a 5xx, would eject them one after
the other. A worker without a connection is at fault at once; so is one whose circuit is not closed: a probe
needs an outcome.
"""

import logging
from typing import NamedTuple

from policies import Circuit
from router.fleet import LocalWorker, Registry

logger = logging.getLogger(__name__)

BROKEN_MAX = 2
"""Workers of one role that a request may break; then no other worker of that role gets it."""


class Failure(NamedTuple):
    """A failed attempt, sent at log time ``sent_us``; ``asked`` if the worker got a part of it."""

    local: LocalWorker
    sent_us: int
    code: str
    asked: bool


class Blame:
    """The failures of one request, made at the first; ``repeated`` if the request is at fault.

    ``broken`` has, by role, the ids of the workers that broke off although they had been sent the request.
    """

    __slots__ = ("_held", "_registry", "_request_id", "broken", "repeated")

    def __init__(self, registry: Registry, request_id: bytes) -> None:
        self._registry = registry
        self._request_id = request_id
        self._held: list[Failure] = []
        self.broken: dict[str, set[str]] = {}
        self.repeated = False

    def broke_off(self, local: LocalWorker) -> bool:
        """Note that a worker broke off; True if no other worker of its role should get the request."""
        broken = self.broken.setdefault(local.worker.role, set())
        broken.add(local.worker.worker_id)
        return len(broken) >= BROKEN_MAX

    def failed(self, failure: Failure, now_us: int, *, last: bool) -> bool:
        """Take in a failure; True, once, if the request is at fault. ``last``: no other attempt follows."""
        if self.repeated:
            return False
        others = [held.local.worker.worker_id for held in self._held if held.local is not failure.local]
        if failure.asked and others:
            self.repeated = True
            self._held.clear()
            logger.warning(
                "two workers failed the same request, which counts against the request",
                extra={
                    "event": "request.at_fault",
                    "request_id": self._request_id.decode("latin-1"),
                    "worker_ids": [*others, failure.local.worker.worker_id],
                    "reason": failure.code,
                },
            )
            return True
        closed = self._registry.circuits.state(failure.local) is Circuit.CLOSED
        if failure.asked and closed and not last:
            self._held.append(failure)
        else:
            if last:
                self.answered(now_us)
            self._count(failure, now_us)
        return False

    def answered(self, now_us: int) -> None:
        """Count the failures held back: another worker answered well, or none was asked."""
        for failure in self._held:
            self._count(failure, now_us)
        self._held.clear()

    def _count(self, failure: Failure, now_us: int) -> None:
        self._registry.circuits.failed(failure.local, now_us, failure.sent_us, failure.code)
