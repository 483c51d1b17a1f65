"""This replica's own view of the workers: health, models, circuit, connections.

Which workers exist is shared state (`policies.FleetState`); whether one can be reached is seen
from here, since a partition may separate a worker from one replica only.

    starting ──probe ok──> healthy ──N failures──> unhealthy ──M successes──> healthy
                            (drain is shared state, the circuit is the breaker's)

A worker that refused connections and comes back has lost its cache: the registry says so to
everybody (``Forget``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from policies import Breaker, FleetState, Forget, Op, Worker, WorkerGone, WorkerPut
from router.fleet.address import normal_url, worker_id_of
from router.fleet.engine_info import ServedModel
from router.proxy import WorkerPool

Slots = NDArray[np.intp]


NAMES_MAX = 1000
"""Model names whose answers are kept at a time; names come from clients."""


class Health(StrEnum):
    """What probes say of a worker."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(slots=True)
class LocalWorker:
    """One worker as seen from this replica."""

    worker: Worker
    pool: WorkerPool
    breaker: Breaker
    health: Health = Health.STARTING
    detail: str = "not probed yet"
    models: tuple[ServedModel, ...] | None = None
    engine: str = ""
    failures: int = 0
    successes: int = 0
    probes: int = 0
    lost_cache: bool = field(default=False)

    @property
    def state(self) -> str:
        """One word for people and metrics."""
        return "draining" if self.worker.draining else self.health.value

    def serves(self, model: str | None) -> bool:
        """Whether it serves a model; one that does not list its models may serve any."""
        return model is None or self.models is None or any(served.model_id == model for served in self.models)


class Registry:
    """The workers this replica may use."""

    def __init__(
        self,
        fleet: FleetState,
        *,
        publish: Callable[[Op], None],
        now_us: Callable[[], int],
        replica: str,
        make_pool: Callable[[str], WorkerPool],
        make_breaker: Callable[[], Breaker],
        failure_threshold: int,
        success_threshold: int,
    ) -> None:
        self._fleet = fleet
        self._publish = publish
        self._now_us = now_us
        self._replica = replica
        self._make_pool = make_pool
        self._make_breaker = make_breaker
        self._failure_threshold = failure_threshold
        self._success_threshold = success_threshold
        self._local: dict[str, LocalWorker] = {}
        self._by_slot: dict[int, LocalWorker] = {}
        self._revision = -1
        self._eligible: dict[str | None, Slots] = {}
        self._known: dict[str, bool] = {}
        self._tripped: set[int] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a worker is new or suspect and should be probed soon."""

    # What dispatch asks.

    def eligible(self, model: str | None, now_s: float) -> Slots:
        """Slots of the workers that may take a request for a model now, in rising order.

        The list is kept until a worker changes; circuits that are not closed are asked each time.
        """
        self._sync()
        slots = self._eligible.get(model)
        if slots is None:
            if len(self._eligible) > NAMES_MAX:
                self._eligible.clear()
            slots = np.array(
                sorted(
                    local.worker.slot
                    for local in self._local.values()
                    if local.health is Health.HEALTHY and not local.worker.draining and local.serves(model)
                ),
                dtype=np.intp,
            )
            self._eligible[model] = slots
        if self._tripped:
            refused = [slot for slot in self._tripped if not self._by_slot[slot].breaker.allows(now_s)]
            slots = slots[~np.isin(slots, refused)]
        return slots

    def at_slot(self, slot: int) -> LocalWorker:
        """The local view of the worker in a slot of `eligible`."""
        return self._by_slot[slot]

    def knows(self, model: str) -> bool:
        """Whether some worker serves the model, well or not; True while a worker has not said yet."""
        self._sync()
        known = self._known.get(model)
        if known is None:
            if len(self._known) > NAMES_MAX:
                self._known.clear()
            known = not self._local or any(local.serves(model) for local in self._local.values())
            self._known[model] = known
        return known

    def dispatched(self, local: LocalWorker, now_s: float) -> None:
        """A request is sent to a worker: a half-open circuit must know."""
        if self._tripped:
            local.breaker.on_dispatch(now_s)

    def succeeded(self, local: LocalWorker, now_s: float, sent_s: float = inf) -> None:
        """A worker answered what it was sent at ``sent_s``."""
        local.breaker.on_success(now_s, sent_s)
        if self._tripped:
            self._note_circuit(local)

    def failed(self, local: LocalWorker, now_s: float, sent_s: float = inf, *, refused: bool) -> None:
        """A worker did not answer what it was sent at ``sent_s``, or answered with a server error."""
        local.breaker.on_failure(now_s, sent_s)
        self._note_circuit(local)
        if refused:
            local.lost_cache = True
            local.successes = 0
            self.on_change()

    # What people and discovery ask.

    def all(self) -> list[LocalWorker]:
        """All workers, in order of their ids."""
        self._sync()
        return [self._local[key] for key in sorted(self._local)]

    def get(self, worker_id: str) -> LocalWorker | None:
        """One worker by id."""
        self._sync()
        return self._local.get(worker_id)

    def add(
        self,
        url: str,
        *,
        role: str = "plain",
        capacity_tokens: int = 0,
        labels: dict[str, str] | None = None,
        static: bool = False,
    ) -> str:
        """Add a worker for all replicas.

        Args:
            url: Base URL.
            role: ``plain``, ``prefill`` or ``decode``.
            capacity_tokens: KV capacity, 0 to ask the engine.
            labels: Free labels.
            static: True for workers named in the settings: anything said of the worker through the
                admin API is newer and wins, also over a restart with the same settings.

        Returns:
            The worker's id.

        Raises:
            ClientError: If the URL is not one.
        """
        url = normal_url(url)
        worker_id = worker_id_of(url)
        at_us, by = (1, "static") if static else (self._now_us(), self._replica)
        self._publish(WorkerPut(worker_id, at_us, by, url, role, False, capacity_tokens, labels or {}))  # noqa: FBT003
        self._sync()
        return worker_id

    def remove(self, worker_id: str) -> bool:
        """Remove a worker for all replicas; requests in flight there finish. False if unknown."""
        if self.get(worker_id) is None:
            return False
        self._publish(WorkerGone(worker_id, self._now_us(), self._replica))
        self._sync()
        return True

    def change(
        self,
        worker_id: str,
        *,
        draining: bool | None = None,
        capacity_tokens: int | None = None,
        labels: dict[str, str] | None = None,
    ) -> bool:
        """Change a worker for all replicas; None leaves a property as it is. False if unknown."""
        local = self.get(worker_id)
        if local is None:
            return False
        worker = local.worker
        self._publish(
            WorkerPut(
                worker_id,
                self._now_us(),
                self._replica,
                worker.url,
                worker.role,
                worker.draining if draining is None else draining,
                worker.capacity_tokens if capacity_tokens is None else capacity_tokens,
                worker.labels if labels is None else labels,
            )
        )
        self._sync()
        return True

    # What probes tell.

    def probed(self, local: LocalWorker, *, ok: bool, refused: bool, detail: str) -> bool:
        """Take in a probe's outcome.

        Returns:
            True if the worker's state changed.
        """
        before = local.health
        local.probes += 1
        local.detail = detail
        if ok:
            local.successes += 1
            local.failures = 0
            needed = 1 if local.health is Health.STARTING else self._success_threshold
            if local.health is not Health.HEALTHY and local.successes >= needed:
                local.health = Health.HEALTHY
            if local.lost_cache and local.health is Health.HEALTHY:
                local.lost_cache = False
                self._publish(Forget(local.worker.worker_id, self._now_us()))
        else:
            local.failures += 1
            local.successes = 0
            local.lost_cache = local.lost_cache or (refused and before is not Health.STARTING)
            if refused or local.failures >= self._failure_threshold:
                local.health = Health.UNHEALTHY
        if local.health is not before:
            self._lists_changed()
        return local.health is not before

    def described(
        self, local: LocalWorker, models: tuple[ServedModel, ...] | None, engine: str, capacity_tokens: int
    ) -> None:
        """Take in what the engine says about itself."""
        if models != local.models:
            local.models = models
            self._lists_changed()
        local.engine = engine or local.engine
        if capacity_tokens and not local.worker.capacity_tokens:
            self.change(local.worker.worker_id, capacity_tokens=capacity_tokens)

    def close(self) -> None:
        """Close all connections to workers."""
        for local in self._local.values():
            local.pool.close()

    # Inside.

    def _note_circuit(self, local: LocalWorker) -> None:
        """Remember who is not closed, so that a fleet without trouble pays nothing."""
        slot = local.worker.slot
        if self._by_slot.get(slot) is not local:
            return  # an answer of a worker that was removed meanwhile
        if local.breaker.closed:
            self._tripped.discard(slot)
        else:
            self._tripped.add(slot)

    def _lists_changed(self) -> None:
        self._eligible.clear()
        self._known.clear()

    def _sync(self) -> None:
        """Follow the shared list of workers."""
        if self._fleet.revision == self._revision:
            return
        self._revision = self._fleet.revision
        self._lists_changed()
        fresh = False
        workers = {worker.worker_id: worker for worker in self._fleet.workers()}
        for worker_id in [key for key in self._local if key not in workers]:
            self._local.pop(worker_id).pool.drain()
        for worker_id, worker in workers.items():
            local = self._local.get(worker_id)
            if local is not None and local.worker.url != worker.url:
                self._local.pop(worker_id).pool.drain()
                local = None
            if local is None:
                self._local[worker_id] = LocalWorker(
                    worker, self._make_pool(worker.url), self._make_breaker()
                )
                fresh = True
            else:
                local.worker = worker
        self._by_slot = {local.worker.slot: local for local in self._local.values()}
        self._tripped = {slot for slot, local in self._by_slot.items() if not local.breaker.closed}
        if fresh:
            self.on_change()
