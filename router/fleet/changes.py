"""Changes of workers, repeated if another replica replaced the entry without them.

A worker's entry in the log is replaced whole, and names the changes in it (`WorkerPut.knows`). If the newer
of two entries lacks the older change, the author of the older one applies it again.

    one    drains: {one: 2} ────────────────────> drains, role: {one: 4, two: 3}
    two                  role: {two: 3}
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policies import OpRefused, Worker, WorkerPut
from router.fleet.discovered import kept
from router.shared import LogPort

logger = logging.getLogger(__name__)

INSIST_US = 600_000_000
"""Time after a change in which an entry without it may come: as long as Redis may be gone."""


@dataclass(frozen=True, slots=True)
class Change:
    """New properties; None leaves one as it is. `leaving` removes a draining worker when it has drained."""

    role: str | None = None
    draining: bool | None = None
    capacity_tokens: int | None = None
    labels: Mapping[str, str] | None = None
    leaving: bool | None = None


@dataclass(frozen=True, slots=True)
class _LastChange:
    change: Change
    at_us: int
    before: Mapping[str, str]
    """Its labels before the change."""


class Changes:
    """This replica's changes of workers."""

    def __init__(self, log: LogPort) -> None:
        self._publish = log.publish
        self._now_us = log.now_us
        self._replica = log.replica
        self._last: dict[str, _LastChange] = {}
        """The last change of each worker."""

    def say(self, worker: Worker, change: Change) -> None:
        """Change a worker for all replicas; after `OpRefused` the change is neither made nor repeated."""
        put = self._put(worker, change)
        last = self._last.get(worker.worker_id)
        before: Mapping[str, str] = worker.labels
        if last is not None and last.at_us == worker.version[0]:
            change, before = _both(last.change, change), last.before
        self._publish(put)
        self._last[worker.worker_id] = _LastChange(change, put.at_us, before)

    def insist(self, workers: Iterable[Worker]) -> None:
        """Repeat changes of workers whose entries were replaced without them."""
        if not self._last:
            return
        since_us = self._now_us() - INSIST_US
        self._last = {worker_id: last for worker_id, last in self._last.items() if last.at_us > since_us}
        for worker in workers:
            last = self._last.get(worker.worker_id)
            if last is None or last.at_us <= max(worker.knows.get(self._replica, 0), worker.knows.get("", 0)):
                continue
            change = _on(worker, last)
            put = self._put(worker, change)
            if _content(put) == _content(worker):
                del self._last[worker.worker_id]
                continue
            before = worker.labels
            try:
                self._publish(put)
            except OpRefused as error:  # together with the other change it exceeds a bound, as of labels
                del self._last[worker.worker_id]
                logger.warning(
                    "a change of a worker is dropped: it cannot be made beside another replica's change",
                    extra={
                        "event": "worker.change_dropped",
                        "worker_id": worker.worker_id,
                        "reason": str(error),
                    },
                )
                continue
            self._last[worker.worker_id] = _LastChange(change, put.at_us, before)
            logger.info(
                "a change of a worker is said again: another replica did not know of it",
                extra={"event": "worker.change_repeated", "worker_id": worker.worker_id},
            )

    def _put(self, worker: Worker, change: Change) -> WorkerPut:
        at_us = max(self._now_us(), worker.version[0] + 1)
        drains = worker.draining if change.draining is None else change.draining
        labels = worker.labels if change.labels is None else change.labels
        # Older changes are not repeated.
        knows = {name: known_us for name, known_us in worker.knows.items() if known_us > at_us - INSIST_US}
        return WorkerPut(
            worker.worker_id,
            at_us,
            self._replica,
            worker.url,
            worker.role if change.role is None else change.role,
            drains,
            worker.capacity_tokens if change.capacity_tokens is None else change.capacity_tokens,
            kept(worker.labels, labels, drain_said=change.draining is not None),
            (worker.drain_us or at_us) if drains else 0,
            drains and (worker.leaving if change.leaving is None else change.leaving),
            {**knows, self._replica: at_us},
        )


def _content(entry: Worker | WorkerPut) -> tuple[object, ...]:
    return entry.role, entry.draining, entry.capacity_tokens, entry.labels, entry.leaving


def _both(first: Change, second: Change) -> Change:
    return Change(
        first.role if second.role is None else second.role,
        first.draining if second.draining is None else second.draining,
        first.capacity_tokens if second.capacity_tokens is None else second.capacity_tokens,
        first.labels if second.labels is None else second.labels,
        first.leaving if second.leaving is None else second.leaving,
    )


def _on(worker: Worker, last: _LastChange) -> Change:
    """Rebase a change of labels onto the labels that others changed meanwhile."""
    change = last.change
    if change.labels is None:
        return change
    labels = {
        name: value
        for name, value in worker.labels.items()
        if name in change.labels or last.before.get(name) != value
    }
    labels |= {name: value for name, value in change.labels.items() if last.before.get(name) != value}
    return Change(change.role, change.draining, change.capacity_tokens, labels, change.leaving)
