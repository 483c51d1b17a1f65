"""This replica's own view of the workers: health, models, connections.

The list of workers and their circuits are shared state (`policies.FleetState`, `router.fleet.circuits`). A
replica sees health for itself, since a partition may separate a worker from one replica only.

    starting ──probe ok──> healthy ──N failures──> unhealthy ──M successes──> healthy
                            (drain and circuit are shared state)

A restarted worker has lost its cache; all replicas must forget it at once, but once. `policies.Started` in
the log holds the current start time. If replicas see another one, the replica in turn publishes it
at once, the others only if it is still missing when they ask again; a refused, reset or unexpectedly closed
connection is a reason to ask. A refused connection is the only sign for an engine without a start time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import get_args
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from policies import (
    ANY_LENGTH,
    BOOTSTRAP_HOST_LABEL,
    DP_SIZE_LABEL,
    BreakerRules,
    FleetState,
    Forget,
    HostMemory,
    LengthClass,
    Pairing,
    Started,
    Worker,
    WorkerGone,
    WorkerPut,
    admitted,
    rank_of,
    shares,
    turn_of,
)
from radix import PLACES_MAX, Dialect, parsed_whole
from router.engines import Description
from router.errors import StreamBroken, UpstreamError, WorkerRefused, WorkerUnreachable
from router.fleet.address import normal_url, worker_id_of
from router.fleet.changes import Change
from router.fleet.circuits import Circuits
from router.fleet.engine_info import ServedModel, cached_as
from router.fleet.kv_sources import check_labels
from router.fleet.local_worker import Health, HealthRules, LocalWorker
from router.fleet.model_names import UnlistedModels, adapter_of, listed_as
from router.fleet.pairs import Kind, Pairs
from router.fleet.worker_key import WorkerKey
from router.proxy import WorkerPool
from router.shared import LogPort

Slots = NDArray[np.intp]


NAMES_MAX = 1000
"""Model names with cached answers; clients send the names."""

NAME_LENGTH_MAX = 256
"""A longer name is not cached."""

ENGINE_RULE_LABEL = "engine_rule"
"""Label of a worker whose engine keeps windows and states as another one does: ``sglang`` or ``vllm``."""

ENGINE_RULES: dict[str, Dialect] = {name: name for name in get_args(Dialect)}

START_SLACK_MS = 1000
"""Greatest difference of two start times of one process: some exporters derive it from a boot time in
seconds."""

SUSPICIOUS = frozenset((WorkerUnreachable.code, StreamBroken.code))
"""Failures that an ending process causes: connections refused, reset or closed; no timeouts."""


class Registry:
    """The workers that this replica may use."""

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
        """Begin empty.

        `check_host` raises `ClientError` if no worker may be at a host, but is not asked for the settings'
        workers; `check_engine_host` likewise for a host that only engines connect to. `worker_key` None is no
        key.
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
        """True if `pairs` and `has_encoders` are to be computed again when they are used."""
        self.may_pair = False
        """False if no worker needs a partner; True if one may, which `pairing` finds out."""
        self._local: dict[str, LocalWorker] = {}
        self._by_slot: dict[int, LocalWorker] = {}
        self.at_slot: Callable[[int], LocalWorker] = self._by_slot.__getitem__
        """The worker in a slot of `eligible`, or whose rank is in it."""
        self._revision = -1
        self._eligible: dict[Kind, Slots] = {}
        self._limits: dict[str | None, tuple[int, ...]] = {}
        self.may_limit = True
        """False if all workers take the same length; True if they may not, which `limits` finds out."""
        self._encoders: Slots | None = None
        self._has_encoders = False
        self._of_engines: dict[frozenset[str], Slots] = {}
        self._known: dict[str, bool] = {}
        self._cached_as: dict[str, str] = {}
        self._can_serve: bool | None = None
        self._listed_as: dict[str, str | None] = {}
        self._listed: frozenset[str] | None = None
        self._unlisted: UnlistedModels = rules.unlisted_models
        self.withheld: frozenset[tuple[str, str]] = frozenset()
        """Ids of workers with names that they list but get no requests for: adapters on their way out."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a worker is new or suspect and should be probed soon."""

    def places(self) -> list[tuple[LocalWorker, Worker]]:
        """All places, by worker and rank."""
        return [(local, place) for local in self.all() for place in local.places]

    # Dispatch

    def eligible(self, model: str | None, now_us: int, length: LengthClass = ANY_LENGTH) -> Slots:
        """Slots of workers that may begin a request for a model now, rising (roles: `router.fleet.pairs`).

        The list is cached until a worker changes; open circuits are checked each time. Workers of other
        length buckets that hold its length are included, for placement
        to price.
        """
        if self._fleet.revision != self._revision:
            self._sync()
        slots = self._eligible.get((model, length))
        if slots is None:
            if len(self._eligible) > NAMES_MAX:
                self._eligible.clear()
            slots = self.pairs.beginners((model, length))
            if model is None or len(model) <= NAME_LENGTH_MAX:
                self._eligible[model, length] = slots
        if not self._fleet.circuits.tripped:
            return slots
        slots = self.circuits.allowed(slots, now_us)
        return self.pairs.accompanied(slots, (model, length), now_us) if self.pairs.active else slots

    def pairing(
        self, slots: Slots, model: str | None, now_us: int, length: LengthClass = ANY_LENGTH
    ) -> Pairing | None:
        """Return the workers among `slots`, a result of `eligible`, that need a partner; None if none does.

        The value, with the partners, is the same until a worker or a circuit changes.
        """
        return self.pairs.pairing(slots, (model, length), now_us) if self.pairs.active else None

    def encoders(self, now_us: int) -> Slots:
        """Slots of the workers that may encode media now, rising; may be empty."""
        if self._fleet.revision != self._revision:
            self._sync()
        if self._encoders is None:
            found = [local for local in self._well(self._local.values()) if local.worker.role == "encode"]
            self._encoders = np.array(sorted(slot for local in found for slot in local.slots), dtype=np.intp)
        return (
            self.circuits.allowed(self._encoders, now_us) if self._fleet.circuits.tripped else self._encoders
        )

    @property
    def pairs(self) -> Pairs:
        """The pairs that workers can form."""
        if self._roles_changed:
            self._follow_roles()
        return self._pairs

    @property
    def has_encoders(self) -> bool:
        """True if a worker, healthy or not, encodes media."""
        self._sync()
        if self._roles_changed:
            self._follow_roles()
        return self._has_encoders

    @property
    def can_serve(self) -> bool:
        """True if a healthy worker may begin requests: one that needs a partner has one of its protocol."""
        self._sync()
        if self._can_serve is None:
            models = dict.fromkeys(
                served.model_id if served else None
                for local in self._well(self._local.values())
                for served in local.models or (None,)
            )
            self._can_serve = any(len(self.pairs.beginners((model, ANY_LENGTH))) for model in models)
        return self._can_serve

    def fits(self, model: str | None, length: LengthClass) -> bool:
        """Return True if a worker, healthy or not, may take requests for a model of this length class."""
        self._sync()
        return len(self._fitting(model, length)) > 0

    def limits(self, model: str | None) -> tuple[int, ...]:
        """Context lengths, in tokens and rising, that some workers of a model hold and others exceed.

        Empty if all report the same. A worker without a reported length may hold any.
        """
        limits = self._limits.get(model)
        if limits is None:
            if len(self._limits) > NAMES_MAX:
                self._limits.clear()
            serving = (local for local in self._local.values() if local.worker.role != "encode")
            lengths = sorted({local.longest_tokens(model) for local in serving if local.serves(model)})
            limits = tuple(lengths[1:] if lengths[:1] == [0] else lengths[:-1])
            self.may_limit = self._lengths_differ()
            if model is None or len(model) <= NAME_LENGTH_MAX:
                self._limits[model] = limits
        return limits

    def _lengths_differ(self) -> bool:
        """Return True if workers, or the models of one, have different context lengths."""
        lengths = {
            served.max_model_len if served is not None else 0
            for local in self._local.values()
            for served in local.models or (None,)
        }
        return len(lengths) > 1

    def without(self, slots: Slots, engines: frozenset[str]) -> Slots:
        """Return the slots whose engine is not one of `engines`; a worker of unknown engine stays."""
        left_out = self._of_engines.get(engines)
        if left_out is None:
            left_out = np.array(
                [slot for local in self._local.values() if local.engine in engines for slot in local.slots],
                dtype=np.intp,
            )
            self._of_engines[engines] = left_out
        return slots[~np.isin(slots, left_out)] if len(left_out) else slots

    def ramped(self, slots: Slots, key: int, now_us: int) -> Slots:
        """Return the slots that a request with this key may use: not those that returned too recently for it.

        `slots` is not empty, nor is the result: if all have just returned, all stay. If none has,
        all stay, too, which `FleetState.last_return_us` tells sooner.
        """
        ramp_us = self.rules.slow_start_s * 1e6
        if not ramp_us:
            return slots
        elapsed_us = now_us - self._fleet.returned_us[slots]
        mask = admitted(key, self._fleet.columns.hashes(slots), elapsed_us, ramp_us)
        return slots if mask.all() or not mask.any() else slots[mask]

    def share(self, local: LocalWorker, now_us: int) -> float:
        """Share of the requests that a worker may take now: less than 1 while it is starting slowly."""
        ramp_us = self.rules.slow_start_s * 1e6
        if not ramp_us:
            return 1.0
        returned_us = self._fleet.returned_us[local.slots[:1]]
        return float(shares(now_us - returned_us, ramp_us)[0])

    def at_site(self, site: str) -> list[int]:
        """Slots of all workers in a site."""
        return [slot for local in self._local.values() if local.worker.site == site for slot in local.slots]

    def step_tokens(self, slot: int) -> int:
        """Most tokens that one step of the worker in a slot prefills (see `LocalWorker`)."""
        return self._by_slot[slot].step_tokens

    def engine_rule(self, slot: int) -> Dialect | None:
        """Engine whose rule of windows and states a worker follows: by its label, else its own."""
        local = self._by_slot[slot]
        return ENGINE_RULES.get(local.worker.labels.get(ENGINE_RULE_LABEL, local.engine))

    def found(self, slot: int) -> LocalWorker | None:
        """The worker in a slot, if there is one."""
        return self._by_slot.get(slot)

    def knows(self, model: str) -> bool:
        """Return True if a worker, healthy or not, serves the model or has not reported its models."""
        self._sync()
        served = self._known.get(model)
        if served is None:
            if len(self._known) > NAMES_MAX:
                self._known.clear()
            served = not self._local or any(local.serves(model) for local in self._local.values())
            if len(model) <= NAME_LENGTH_MAX:
                self._known[model] = served
        return served

    def lists(self, name: str) -> bool:
        """Return True if a worker lists a model or adapter of this name."""
        self._sync()
        if self._listed is None:
            models = (served for local in self._local.values() for served in local.models or ())
            self._listed = frozenset(served.model_id for served in models)
        return name in self._listed

    def listed_as(self, name: str) -> str | None:
        """Return the listed name of a request's model (`router.fleet.model_names`); ``name`` may be empty."""
        if self._fleet.revision != self._revision:
            self._sync()
        if self.rules.unlisted_models != self._unlisted:
            self._unlisted = self.rules.unlisted_models
            self._listed_as.clear()
            self._cached_as.clear()
        try:
            return self._listed_as[name]
        except KeyError:
            pass
        lists = [self._local[key].models or () for key in sorted(self._local)]
        listed = listed_as(name, lists, self._unlisted)
        if len(self._listed_as) > NAMES_MAX:
            self._listed_as.clear()
        if len(name) <= NAME_LENGTH_MAX:
            self._listed_as[name] = listed
        return listed

    def cached_as(self, model: str) -> str:
        """Name under which engines cache requests for a model; all workers should give names in one order."""
        listed = self.listed_as(model)
        name = self._cached_as.get(model)
        if name is None:
            if len(self._cached_as) > NAMES_MAX:
                self._cached_as.clear()
            known = listed or model
            names = (cached_as(self._local[key].models or (), known) for key in sorted(self._local))
            name = adapter_of(model, listed) or next((name for name in names if name is not None), known)
            if len(model) <= NAME_LENGTH_MAX:
                self._cached_as[model] = name
        return name

    def noticed(self, local: LocalWorker, error: UpstreamError, now_us: int) -> None:
        """Note a sign that a worker's process has ended; `router.gateway.blame` moves its circuit."""
        if isinstance(error, WorkerRefused):
            local.refused_us = now_us
            local.successes = 0
        if error.code in SUSPICIOUS:
            self.suspect(local)

    def suspect(self, local: LocalWorker) -> None:
        """Have a worker probed soon: it may have restarted."""
        local.suspected_us = self.now_us()
        self.on_change()

    def withholds_key(self, worker_id: str) -> bool:
        """Return True if the fleet has a key that this worker is not shown (`router.fleet.worker_key`)."""
        return self._worker_key is not None and self._worker_key.is_withheld(worker_id)

    def key_changed(self) -> None:
        """Show workers the current key."""
        for local in self.all():
            self._show_key(local)

    # Operators and discovery

    def all(self) -> list[LocalWorker]:
        """All workers, by id."""
        self._sync()
        return [self._local[key] for key in sorted(self._local)]

    def get(self, worker_id: str) -> LocalWorker | None:
        """Return one worker by its id, or by that of one of its ranks."""
        self._sync()
        return self._local.get(worker_id) or self._local.get(rank_of(worker_id)[0])

    def add(
        self,
        url: str,
        *,
        role: str = "plain",
        capacity_tokens: int = 0,
        labels: dict[str, str] | None = None,
        static: bool = False,
    ) -> str:
        """Add a worker for all replicas, and return its id; may raise `ClientError`.

        `capacity_tokens` 0 asks the engine. A `static` worker is the settings': a change through the admin
        API is newer and wins, even over a restart with the same settings.
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
        worker_id = local.worker.worker_id
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
        ranks: int | None = None,
    ) -> bool:
        """Change a worker for all replicas; None leaves a property as it is. Return False if unknown.

        Another replica may change the worker at the same moment (`router.fleet.changes`). Only a draining
        worker can be leaving (`policies.fleet.departures`). A label's host may raise `ClientError`.
        """
        local = self.get(worker_id)
        if local is None:
            return False
        if labels is not None:
            self._check_labels(labels)
        change, worker_id = (
            Change(role, draining, capacity_tokens, labels, leaving, ranks),
            local.worker.worker_id,
        )
        self._say(worker_id, lambda: self._publish(change.of(local.worker, self.now_us(), self._replica)))
        return True

    # Probes

    def probed(
        self, local: LocalWorker, *, ok: bool, refused: bool, detail: str, asked_us: int | None = None
    ) -> bool:
        """Apply a probe's outcome; return True if the worker's health changed.

        `refused`: the connection was. `asked_us` is the log time of the question; None for now.
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
        told: Description,
    ) -> None:
        """Apply an engine's own description."""
        if self.withheld and models:
            worker_id = local.worker.worker_id
            models = tuple(each for each in models if (worker_id, each.model_id) not in self.withheld)
        if models != local.models:
            local.models = models
            self._lists_changed()
        if told.engine and told.engine != local.engine:
            local.engine = told.engine
            self._lists_changed()
        local.running_max = told.running_max or local.running_max
        local.step_tokens = told.step_tokens or local.step_tokens
        local.advertised_port = told.bootstrap_port or local.advertised_port
        if told.role and told.role != local.engine_role:
            local.engine_role = told.role
            self._lists_changed()
        worker, ranks = local.worker, self._ranks_of(local, told)
        reparted = ranks >= 0 and ranks != worker.ranks
        # A process with other ranks has another capacity; one that people gave stays.
        outdated = reparted and worker.capacity_tokens == local.told_capacity_tokens
        fresh = told.capacity_tokens > 0 and (outdated or not worker.capacity_tokens)
        local.told_capacity_tokens = told.capacity_tokens or local.told_capacity_tokens
        if reparted or fresh:
            self.change(
                worker.worker_id,
                capacity_tokens=told.capacity_tokens if fresh else None,
                ranks=ranks if reparted else None,
            )

    def _ranks_of(self, local: LocalWorker, told: Description) -> int:
        """Return the ranks of a worker that requests are sent to; -1 if its engine did not tell them.

        A label counts before the engine's number, but only for an engine that can be told a rank.
        """
        if not self.rules.dp_aware:
            return 0
        if not told.ranks:
            return -1
        labelled = parsed_whole(local.worker.labels.get(DP_SIZE_LABEL, ""), PLACES_MAX)
        ranks = labelled or told.ranks
        return ranks if 1 < ranks <= PLACES_MAX else 0

    def host_memory(self, local: LocalWorker, tokens: int) -> None:
        """Apply an engine's report of its host memory, if it is news (`policies.HostMemory`); 0 for none."""
        worker_id = local.worker.worker_id
        known = self._fleet.registers.newest(HostMemory, worker_id)
        if tokens != (0 if known is None else known.tokens):
            self._publish(HostMemory(worker_id, self.now_us(), self._replica, tokens))

    def started(self, local: LocalWorker, started_unix_ms: int, asked_us: int) -> None:
        """Apply a process's start time by its own clock; `asked_us` is the log time of the question.

        Another time means another process if another sign of a restart came, too; without one only if it is
        clearly later: several processes may answer behind one address.
        """
        worker_id = local.worker.worker_id
        current = self._fleet.started(worker_id)
        if current is None:
            cold = self._lost_cache(local)
        elif current.at_us >= asked_us:
            return  # a sibling asked later
        else:
            later_ms = started_unix_ms - current.started_unix_ms
            cold = later_ms != 0 if local.suspected_us else later_ms > START_SLACK_MS
        if cold and not local.heard_us and turn_of(worker_id, self._replica, self._replicas()):
            local.heard_us = local.suspected_us = self.now_us()
            return
        if current is None or cold:
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

    def _fitting(self, model: str | None, length: LengthClass) -> Slots:
        serving = sorted(
            slot
            for local in self._local.values()
            if local.worker.role != "encode" and local.serves(model)
            for slot in local.slots
        )
        return self._fleet.buckets.fitting(
            np.array(serving, dtype=np.intp),
            length,
            lambda slot: self._by_slot[slot].context_tokens_max(model),
        )

    def _ready(self, kind: Kind) -> list[LocalWorker]:
        fitting = [self._by_slot[slot] for slot in self._fitting(*kind).tolist()]
        return self._well({local.worker.worker_id: local for local in fitting}.values())

    @staticmethod
    def _well(workers: Iterable[LocalWorker]) -> list[LocalWorker]:
        return [
            local
            for local in workers
            if local.health is Health.HEALTHY and not local.worker.draining and not local.misnamed
        ]

    def _lost_cache(self, local: LocalWorker) -> bool:
        """True if the connection was refused, and no `Forget` of the worker came since."""
        return local.refused_us > 0 and self._fleet.forgot_us(local.worker.slot) <= local.refused_us

    def _cleared_up(self, local: LocalWorker, asked_us: int) -> None:
        local.heard_us = 0
        if asked_us >= local.suspected_us:
            local.suspected_us = 0
        if asked_us >= local.refused_us:
            local.refused_us = 0

    def _lists_changed(self) -> None:
        self._eligible.clear()
        self._limits.clear()
        self.may_limit = True
        self._encoders = None
        self._of_engines.clear()
        self._known.clear()
        self._cached_as.clear()
        self._listed_as.clear()
        self._listed = None
        self._can_serve = None
        self._roles_changed = self.may_pair = True

    def _follow_roles(self) -> None:
        self._roles_changed = False
        self._has_encoders = any(local.worker.role == "encode" for local in self._local.values())
        self._pairs.follow(self._local.values())
        self.may_pair = self._pairs.active

    def _say(self, worker_id: str, publish: Callable[[], None]) -> None:
        """Publish an operation on one worker, and apply it without reading all other workers."""
        follows = self._fleet.revision == self._revision
        publish()
        if not follows:
            self._sync()
            return
        self._revision = self._fleet.revision
        worker = self._fleet.worker(worker_id)
        if worker is not None and worker.rank < 0:
            self._take((worker,))
        elif worker_id in self._local:
            self._drop(worker_id)
            self._lists_changed()

    def _sync(self) -> None:
        if self._fleet.revision == self._revision:
            return
        self._revision = self._fleet.revision
        workers = {worker.worker_id: worker for worker in self._fleet.workers()}
        for worker_id in [key for key in self._local if key not in workers]:
            self._drop(worker_id)
        self._take(workers.values())

    def _take(self, workers: Collection[Worker]) -> None:
        fresh = False
        for worker in workers:
            worker_id = worker.worker_id
            local = self._local.get(worker_id)
            if local is not None and local.worker.url != worker.url:
                self._drop(worker_id)
                local = None
            if local is None:
                pool = self._make_pool(worker.url)
                breaker, handover = self.circuits.breaker(worker_id), self.rules.assumed_handover
                local = LocalWorker(worker, pool, breaker, assumed_handover=handover)
                pool.on_idle_closed = partial(self.suspect, local)
                self._local[worker_id] = local
                self._show_key(local)
                fresh = True
            elif local.worker is not worker:
                self._leave_slot(local)
                local.worker = worker
                self._show_key(local)
            local.places = tuple(self._fleet.places(worker))
            local.as_written = worker.role != "decode" and local.places[0].rank < 0
            self._by_slot.update(dict.fromkeys(local.slots, local))
        self._lists_changed()
        if fresh:
            self.on_change()

    def _drop(self, worker_id: str) -> None:
        """Stop using a worker; its answers in flight are still received."""
        local = self._local.pop(worker_id)
        self._leave_slot(local)
        local.removed = True
        local.pool.drain()
        if self._worker_key is not None:
            self._worker_key.forget(local.worker)

    def _show_key(self, local: LocalWorker) -> None:
        if self._worker_key is not None and not local.removed:
            local.pool.authorization = self._worker_key.line_for(local.worker)

    def _leave_slot(self, local: LocalWorker) -> None:
        for slot in local.slots:
            if self._by_slot.get(slot) is local:
                del self._by_slot[slot]
