"""This replica's own view of the workers: health, models, connections.

Which workers exist, and their circuits, are shared state (`policies.FleetState`,
`router.fleet.circuits`): what fails one replica's requests fails everybody's. Whether a worker can be
reached is seen from here, since a partition may separate it from one replica only.

    starting ──probe ok──> healthy ──N failures──> unhealthy ──M successes──> healthy
                            (drain and circuit are shared state)

A worker that restarts has lost its cache, and everybody must forget it at once, but once, although
several replicas notice. Its process says when it started, and `policies.Started` in the log says what is
known. Of those who hear of another start time, the replica whose turn it is says so at once, the others only
if nobody has when they ask again. A refused, reset or unexpectedly closed connection is a reason to ask
at once. Of an engine that does not say when it started, a refused connection is the only sign: when it
is back it has lost its cache, unless a sibling has said so since.

A worker that returns, to this replica's eyes or everybody's, takes a growing share
(`policies.pricing.slow_start`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from policies import (
    ANY_BUCKET,
    BOOTSTRAP_HOST_LABEL,
    BreakerRules,
    FleetState,
    Forget,
    Pairing,
    Started,
    Worker,
    WorkerGone,
    WorkerPut,
    admitted,
    shares,
    turn_of,
)
from router.errors import StreamBroken, UpstreamError, WorkerRefused, WorkerUnreachable
from router.fleet.address import normal_url, worker_id_of
from router.fleet.changes import Change
from router.fleet.circuits import Circuits
from router.fleet.engine_info import ServedModel, cached_as
from router.fleet.kv_sources import check_labels
from router.fleet.local_worker import Health, HealthRules, LocalWorker
from router.fleet.pairs import Kind, Pairs
from router.fleet.worker_key import WorkerKey
from router.proxy import WorkerPool
from router.shared import LogPort

Slots = NDArray[np.intp]


NAMES_MAX = 1000
"""Model names whose answers are kept at a time; names come from clients."""

NAME_LENGTH_MAX = 256
"""A longer name is looked up each time."""

START_SLACK_MS = 1000
"""How far two start times of one process may be apart: some exporters derive it again and again from a boot
time in whole seconds."""

SUSPICIOUS = frozenset((WorkerUnreachable.code, StreamBroken.code))
"""Failures that a process that ends causes: connections refused, reset or closed; no timeouts."""


class Registry:
    """The workers this replica may use.

    Attributes:
        rules: When a worker is well; others take their place when settings change.
    """

    def __init__(
        self,
        fleet: FleetState,
        log: LogPort,
        rules: HealthRules,
        breaker: BreakerRules,
        *,
        make_pool: Callable[[str], WorkerPool],
        check_host: Callable[[str], None] = lambda _: None,
        check_engine_host: Callable[[str], None] = lambda _: None,
        worker_key: WorkerKey | None = None,
    ) -> None:
        """Know no worker yet.

        Args:
            fleet: The shared state.
            log: Where changes are published.
            rules: When a worker is well.
            breaker: When circuits open and close.
            make_pool: Makes the connections to a base URL.
            check_host: Raises `ClientError` if no worker may be at a host (`router.destinations`). What the
                settings name is not asked about.
            check_engine_host: Likewise for a host that only engines connect to.
            worker_key: Knows which workers are shown the fleet's key; None if there is none.
        """
        self.rules = rules
        self._fleet = fleet
        self._publish = log.publish
        self.now_us = log.now_us
        self._replica = log.replica
        self._make_pool = make_pool
        self._replicas = log.replicas
        self._check_host = check_host
        self._check_engine_host = check_engine_host
        self._worker_key = worker_key
        self.circuits = Circuits(fleet, log, breaker)
        self._pairs = Pairs(self.circuits, self._ready)
        self._roles_changed = False
        """Whether what follows from the workers' roles is to be found anew when somebody asks."""
        self._local: dict[str, LocalWorker] = {}
        self._by_slot: dict[int, LocalWorker] = {}
        self._revision = -1
        self._eligible: dict[tuple[str | None, int], Slots] = {}
        self._limits: dict[str | None, tuple[int, ...]] = {}
        self._encoders: Slots | None = None
        self._has_encoders = False
        self._of_engines: dict[frozenset[str], Slots] = {}
        self._known: dict[str, bool] = {}
        self._cached_as: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when a worker is new or suspect and should be probed soon."""

    # What dispatch asks.

    def eligible(self, model: str | None, now_us: int, bucket: int = ANY_BUCKET) -> Slots:
        """Slots of the workers that may begin a request for a model now, in rising order.

        Of the roles, see `router.fleet.pairs`. The list is kept until a worker changes; circuits that are
        not closed are asked each time.

        Args:
            model: What the request asks for; None if it does not say.
            now_us: Log time.
            bucket: Length bucket of the request (`policies.BucketMembers.of_length`). Workers of other
                buckets are among them, if they can hold what this one takes: placement prices them.
        """
        if self._fleet.revision != self._revision:
            self._sync()
        slots = self._eligible.get((model, bucket))
        if slots is None:
            if len(self._eligible) > NAMES_MAX:
                self._eligible.clear()
            slots = self.pairs.beginners((model, bucket))
            if model is None or len(model) <= NAME_LENGTH_MAX:
                self._eligible[model, bucket] = slots
        if not self._fleet.circuits.tripped:
            return slots
        slots = self.circuits.allowed(slots, now_us)
        return self.pairs.accompanied(slots, (model, bucket), now_us) if self.pairs.active else slots

    def pairing(
        self, slots: Slots, model: str | None, now_us: int, bucket: int = ANY_BUCKET
    ) -> Pairing | None:
        """Who of those that `eligible` gave needs a partner, and who may be it.

        Args:
            slots: What it gave.
            model: As given there.
            now_us: As given there.
            bucket: As given there.

        Returns:
            None if nobody does. The same value again until a worker or a circuit changes.
        """
        return self.pairs.pairing(slots, (model, bucket), now_us) if self.pairs.active else None

    def encoders(self, now_us: int) -> Slots:
        """Slots of the workers that encode media and may be asked now, in rising order; maybe none."""
        if self._fleet.revision != self._revision:
            self._sync()
        if self._encoders is None:
            found = [local for local in self._well(self._local.values()) if local.worker.role == "encode"]
            self._encoders = np.array(sorted(local.worker.slot for local in found), dtype=np.intp)
        return (
            self.circuits.allowed(self._encoders, now_us) if self._fleet.circuits.tripped else self._encoders
        )

    @property
    def pairs(self) -> Pairs:
        """Who needs a partner, and who may be it."""
        if self._roles_changed:
            self._follow_roles()
        return self._pairs

    @property
    def has_encoders(self) -> bool:
        """Whether some worker, well or not, encodes media."""
        self._sync()
        if self._roles_changed:
            self._follow_roles()
        return self._has_encoders

    def fits(self, model: str | None, bucket: int) -> bool:
        """Whether some worker, well or not, may take requests for a model of this length bucket."""
        self._sync()
        return len(self._fitting(model, bucket)) > 0

    def limits(self, model: str | None) -> tuple[int, ...]:
        """Return what some workers of a model hold and others exceed, in tokens of prompt and answer, rising.

        Empty where all say the same, and while nobody says anything. Who has not said it may hold any length.
        """
        limits = self._limits.get(model)
        if limits is None:
            if len(self._limits) > NAMES_MAX:
                self._limits.clear()
            serving = (local for local in self._local.values() if local.worker.role != "encode")
            said = sorted({local.longest_tokens(model) for local in serving if local.serves(model)})
            limits = tuple(said[1:] if said[:1] == [0] else said[:-1])
            if model is None or len(model) <= NAME_LENGTH_MAX:
                self._limits[model] = limits
        return limits

    def without(self, slots: Slots, engines: frozenset[str]) -> Slots:
        """Of some workers, those whose engine is none of these; one that is not known yet is none of any."""
        left_out = self._of_engines.get(engines)
        if left_out is None:
            left_out = np.array(
                [local.worker.slot for local in self._local.values() if local.engine in engines],
                dtype=np.intp,
            )
            self._of_engines[engines] = left_out
        return slots[~np.isin(slots, left_out)] if len(left_out) else slots

    def ramped(self, slots: Slots, key: int, now_us: int) -> Slots:
        """Of some workers, those that a request may go to: all but those that returned too recently for it.

        Args:
            slots: Not empty.
            key: Of the request.
            now_us: Log time.

        Returns:
            Not empty: if all of them have just returned for it, somebody must take it.
        """
        ramp_us = self.rules.slow_start_s * 1e6
        if now_us - self._fleet.last_return_us >= ramp_us:
            return slots
        elapsed_us = now_us - self._fleet.returned_us[slots]
        mask = admitted(key, self._fleet.columns.hashes(slots), elapsed_us, ramp_us)
        return slots if mask.all() or not mask.any() else slots[mask]

    def share(self, local: LocalWorker, now_us: int) -> float:
        """Share of the requests that a worker may take now: less than 1 while it is starting slowly."""
        ramp_us = self.rules.slow_start_s * 1e6
        if not ramp_us:
            return 1.0
        returned_us = self._fleet.returned_us[local.worker.slot : local.worker.slot + 1]
        return float(shares(now_us - returned_us, ramp_us)[0])

    def at_site(self, site: str) -> list[int]:
        """Slots of all workers that stand in a site."""
        return [local.worker.slot for local in self._local.values() if local.worker.site == site]

    def at_slot(self, slot: int) -> LocalWorker:
        """The local view of the worker in a slot of `eligible`."""
        return self._by_slot[slot]

    def step_tokens(self, slot: int) -> int:
        """What one step of the worker in a slot of `eligible` prefills at most (see `LocalWorker`)."""
        return self._by_slot[slot].step_tokens

    def found(self, slot: int) -> LocalWorker | None:
        """The local view of the worker that is in a slot now, if there is one."""
        return self._by_slot.get(slot)

    def knows(self, model: str) -> bool:
        """Whether some worker serves the model, well or not; True while a worker has not said yet."""
        self._sync()
        known = self._known.get(model)
        if known is None:
            if len(self._known) > NAMES_MAX:
                self._known.clear()
            known = not self._local or any(local.serves(model) for local in self._local.values())
            if len(model) <= NAME_LENGTH_MAX:
                self._known[model] = known
        return known

    def cached_as(self, model: str) -> str:
        """Under which name engines cache what requests call a model (`router.fleet.engine_info.cached_as`).

        Workers that give their models several names should give them in the same order.
        """
        self._sync()
        name = self._cached_as.get(model)
        if name is None:
            if len(self._cached_as) > NAMES_MAX:
                self._cached_as.clear()
            names = (cached_as(self._local[key].models or (), model) for key in sorted(self._local))
            name = next((name for name in names if name is not None), model)
            if len(model) <= NAME_LENGTH_MAX:
                self._cached_as[model] = name
        return name

    def noticed(self, local: LocalWorker, error: UpstreamError, now_us: int) -> None:
        """Take note of a failure that may show that a worker's process has ended.

        Whether it counts in the worker's circuit is for `router.gateway.blame` to say.
        """
        if isinstance(error, WorkerRefused):
            local.refused_us = now_us
            local.successes = 0
        if error.code in SUSPICIOUS:
            self.suspect(local)

    def suspect(self, local: LocalWorker) -> None:
        """A worker may have restarted: ask it soon."""
        local.suspected_us = self.now_us()
        self.on_change()

    def withholds_key(self, worker_id: str) -> bool:
        """Whether the fleet has a key that a worker is not shown (`router.fleet.worker_key`)."""
        return self._worker_key is not None and self._worker_key.is_withheld(worker_id)

    def key_changed(self) -> None:
        """Show workers the key that is theirs now."""
        for local in self.all():
            self._show_key(local)

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
            ClientError: If the URL is not one, or leads where no worker may be.
        """
        url = normal_url(url)
        if not static:
            self._check_host(urlsplit(url).hostname or "")
            self._check_labels(labels or {})
        worker_id = worker_id_of(url)
        at_us, by = (1, "static") if static else (self.now_us(), self._replica)
        put = WorkerPut(worker_id, at_us, by, url, role, False, capacity_tokens, labels or {})  # noqa: FBT003
        self._say(worker_id, lambda: self._publish(put))
        return worker_id

    def remove(self, worker_id: str) -> bool:
        """Remove a worker for all replicas; requests in flight there finish. False if unknown."""
        local = self.get(worker_id)
        if local is None:
            return False
        # Newer than the newest change that is known: its author's clock may be some milliseconds ahead.
        gone = WorkerGone(worker_id, max(self.now_us(), local.worker.version[0] + 1), self._replica)
        self._say(worker_id, lambda: self._publish(gone))
        return True

    def change(
        self,
        worker_id: str,
        *,
        role: str | None = None,
        draining: bool | None = None,
        capacity_tokens: int | None = None,
        labels: dict[str, str] | None = None,
        leaving: bool | None = None,
    ) -> bool:
        """Change a worker for all replicas; None leaves a property as it is. False if unknown.

        Another replica may change the worker at the same moment (`router.fleet.changes`).
        Only a worker that drains can be leaving: to be removed when it has drained
        (`policies.fleet.departures`).

        Raises:
            ClientError: If a label names a host where no worker may be.
        """
        local = self.get(worker_id)
        if local is None:
            return False
        if labels is not None:
            self._check_labels(labels)
        change = Change(role, draining, capacity_tokens, labels, leaving)
        self._say(worker_id, lambda: self._publish(change.of(local.worker, self.now_us(), self._replica)))
        return True

    # What probes tell.

    def probed(
        self, local: LocalWorker, *, ok: bool, refused: bool, detail: str, asked_us: int | None = None
    ) -> bool:
        """Take in a probe's outcome.

        Args:
            local: The worker.
            ok: Whether it is well.
            refused: Whether nobody listens there.
            detail: What it said.
            asked_us: Log time at which it was asked; now, if not given.

        Returns:
            True if the worker's state changed.
        """
        before, now_us = local.health, self.now_us()
        self._show_key(local)  # discovery may have seen its pod since
        local.probes += 1
        local.detail = detail
        if ok:
            local.successes += 1
            local.failures = 0
            needed = 1 if local.health is Health.STARTING else self.rules.health_success_threshold
            if local.health is not Health.HEALTHY and local.successes >= needed:
                local.health = Health.HEALTHY
            if local.health is Health.HEALTHY and not local.heard_us:
                if self._lost_cache(local):
                    self._publish(Forget(local.worker.worker_id, now_us))
                    self.circuits.restarted(local, now_us)
                self._cleared_up(local, now_us if asked_us is None else asked_us)
            if local.health is Health.HEALTHY and before is Health.UNHEALTHY:
                self._fleet.returns(local.worker.slot, now_us)
        else:
            local.failures += 1
            local.successes = 0
            if refused and before is not Health.STARTING:
                local.refused_us = local.suspected_us = now_us
            if refused or local.failures >= self.rules.health_failure_threshold:
                local.health = Health.UNHEALTHY
        if local.health is not before:
            self._lists_changed()
        return local.health is not before

    def described(
        self,
        local: LocalWorker,
        models: tuple[ServedModel, ...] | None,
        engine: str,
        capacity_tokens: int,
        running_max: int = 0,
        step_tokens: int = 0,
        bootstrap_port: int = 0,
        engine_role: str = "",
    ) -> None:
        """Take in what the engine says about itself."""
        if models != local.models:
            local.models = models
            self._lists_changed()
        if engine and engine != local.engine:
            local.engine = engine
            self._lists_changed()
        local.running_max = running_max or local.running_max
        local.step_tokens = step_tokens or local.step_tokens
        local.advertised_port = bootstrap_port or local.advertised_port
        if engine_role and engine_role != local.engine_role:
            local.engine_role = engine_role
            self._lists_changed()
        if capacity_tokens and not local.worker.capacity_tokens:
            self.change(local.worker.worker_id, capacity_tokens=capacity_tokens)

    def started(self, local: LocalWorker, started_unix_ms: int, asked_us: int) -> None:
        """Take in when the worker's process says it started.

        Another time is another process if something else speaks for a restart; if nothing does, only one that
        is clearly later: behind one address several processes may answer, one after the other.

        Args:
            local: The worker.
            started_unix_ms: By the worker's own clock.
            asked_us: Log time at which it was asked.
        """
        worker_id = local.worker.worker_id
        known = self._fleet.started(worker_id)
        if known is None:
            cold = self._lost_cache(local)
        elif known.at_us >= asked_us:
            return  # a sibling asked later
        else:
            later_ms = started_unix_ms - known.started_unix_ms
            cold = later_ms != 0 if local.suspected_us else later_ms > START_SLACK_MS
        if cold and not local.heard_us and turn_of(worker_id, self._replica, self._replicas()):
            local.heard_us = local.suspected_us = self.now_us()
            return
        if known is None or cold:
            self._publish(Started(worker_id, asked_us, self._replica, started_unix_ms, cold))
        if cold:
            self.circuits.restarted(local, self.now_us())
        self._cleared_up(local, asked_us)

    def close(self) -> None:
        """Close all connections to workers."""
        for local in self._local.values():
            local.pool.close()

    # Inside.

    def _check_labels(self, labels: Mapping[str, str]) -> None:
        if BOOTSTRAP_HOST_LABEL in labels:
            self._check_engine_host(labels[BOOTSTRAP_HOST_LABEL])
        check_labels(labels, self._check_host)

    def _fitting(self, model: str | None, bucket: int) -> Slots:
        """The workers that serve a model, and requests of a length bucket, in rising order."""
        serving = sorted(
            local.worker.slot
            for local in self._local.values()
            if local.worker.role != "encode" and local.serves(model)
        )
        return self._fleet.buckets.fitting(
            np.array(serving, dtype=np.intp),
            bucket,
            lambda slot: self._by_slot[slot].context_tokens_max(model),
        )

    def _ready(self, kind: Kind) -> list[LocalWorker]:
        """Those of the fitting workers that are well and do not drain."""
        return self._well(self._by_slot[slot] for slot in self._fitting(*kind).tolist())

    @staticmethod
    def _well(workers: Iterable[LocalWorker]) -> list[LocalWorker]:
        return [
            local
            for local in workers
            if local.health is Health.HEALTHY and not local.worker.draining and not local.misnamed
        ]

    def _lost_cache(self, local: LocalWorker) -> bool:
        """Whether nobody listened at a worker, and nobody has said since that it forgot everything."""
        return local.refused_us > 0 and self._fleet.forgot_us(local.worker.slot) <= local.refused_us

    def _cleared_up(self, local: LocalWorker, asked_us: int) -> None:
        """A worker that was asked then is well, and what it lost is known."""
        local.heard_us = 0
        if asked_us >= local.suspected_us:
            local.suspected_us = 0
        if asked_us >= local.refused_us:
            local.refused_us = 0

    def _lists_changed(self) -> None:
        self._eligible.clear()
        self._limits.clear()
        self._encoders = None
        self._of_engines.clear()
        self._known.clear()
        self._cached_as.clear()
        self._roles_changed = True

    def _follow_roles(self) -> None:
        self._roles_changed = False
        self._has_encoders = any(local.worker.role == "encode" for local in self._local.values())
        self._pairs.follow(self._local.values())

    def _say(self, worker_id: str, publish: Callable[[], None]) -> None:
        """Publish something of one worker, and follow that.

        Of a fleet whose workers come one after the other, all need not be looked through for each.
        """
        follows = self._fleet.revision == self._revision
        publish()
        if not follows:
            self._sync()
            return
        self._revision = self._fleet.revision
        worker = self._fleet.worker(worker_id)
        if worker is not None:
            self._take((worker,))
        elif worker_id in self._local:
            self._drop(worker_id)
            self._lists_changed()

    def _sync(self) -> None:
        """Follow the shared list of workers."""
        if self._fleet.revision == self._revision:
            return
        self._revision = self._fleet.revision
        workers = {worker.worker_id: worker for worker in self._fleet.workers()}
        for worker_id in [key for key in self._local if key not in workers]:
            self._drop(worker_id)
        self._take(workers.values())

    def _take(self, workers: Collection[Worker]) -> None:
        """Follow what is said of workers."""
        fresh = False
        for worker in workers:
            worker_id = worker.worker_id
            local = self._local.get(worker_id)
            if local is not None and local.worker.url != worker.url:
                self._drop(worker_id)
                local = None
            if local is None:
                pool = self._make_pool(worker.url)
                local = LocalWorker(worker, pool, self.circuits.breaker(worker_id))
                pool.on_idle_closed = partial(self.suspect, local)
                self._local[worker_id] = local
                self._show_key(local)
                fresh = True
            elif local.worker is not worker:
                self._leave_slot(local)
                local.worker = worker
                self._show_key(local)
            self._by_slot[worker.slot] = local
        self._lists_changed()
        if fresh:
            self.on_change()

    def _drop(self, worker_id: str) -> None:
        """Use a worker no more; what it is sending is still received."""
        local = self._local.pop(worker_id)
        self._leave_slot(local)
        local.removed = True
        local.pool.drain()
        if self._worker_key is not None:
            self._worker_key.forget(local.worker)

    def _show_key(self, local: LocalWorker) -> None:
        """Have requests carry the fleet's key to a worker that may know it."""
        if self._worker_key is not None and not local.removed:
            local.pool.authorization = self._worker_key.line_for(local.worker)

    def _leave_slot(self, local: LocalWorker) -> None:
        if self._by_slot.get(local.worker.slot) is local:
            del self._by_slot[local.worker.slot]
