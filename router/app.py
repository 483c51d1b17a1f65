"""Composition root: builds one gateway process from its settings, and owns its tasks.

    uvicorn (sockets, TLS, signals) ── proxied routes ──> Gateway ──> WorkerPool ──> worker
                                    └─ everything else ─> FastAPI (`router.admin`) <── the admin port
    tasks: shared log, health checks, housekeeping, loop lag; each is restarted, loudly, if it ever fails

The process serves at once: what it does not know yet (the shared state, a worker's health) arrives
while it runs. Only the first round of health checks is waited for, briefly, so that the first
request finds a worker.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType

from fastapi import FastAPI

from policies import CONVERTIBLE_LABEL, FleetState, departures
from router.admin import (
    AdminPorts,
    FleetSights,
    LinkPorts,
    Listener,
    OffloadPorts,
    QueuePorts,
    ReplicaSights,
    SettingsPorts,
    admin_tls,
    make_admin_api,
    make_api,
    make_data_api,
    make_metrics_api,
    serve_metrics,
)
from router.console import EventStream, Pulse
from router.discovery import make_discovery, scopes_of
from router.encoding import Encoding
from router.fleet import (
    Asker,
    Core,
    EngineMetrics,
    Health,
    HealthChecks,
    Registry,
    RolePlanner,
    WorkerKey,
    asking_client,
    normal_url,
    worker_id_of,
)
from router.fleet.kv_events import make_kv_events
from router.gateway import Gateway, Plugins, RequestReader, Telemetry, is_proxied, starting
from router.handover import handovers
from router.live_settings import LiveSettings
from router.logs import lines_dropped, log_from, request_log
from router.loop_lag import LoopLag
from router.metrics import Component, Metrics
from router.open_files import UNLIMITED, OpenFiles, probes_max
from router.proxy import (
    ClientLimits,
    ClientQuota,
    Clients,
    Ending,
    GatewayProtocol,
    HeldBytes,
    Refusal,
    WorkerPool,
    make_protocol,
)
from router.request_trace import RequestTrace
from router.rules import (
    client_limits,
    client_quota,
    destinations_of,
    fleet_rules,
    health_rules,
    held_bytes_max,
    planner_rules,
    registry_rules,
    scrape_limits,
    upstream_timeouts,
)
from router.samples import Samples
from router.secret_files import SecretWatch
from router.settings import ObservabilitySettings, Settings
from router.shared import (
    Keys,
    Leases,
    LogClock,
    LogPort,
    NoListener,
    RefusalReason,
    SharedConfig,
    SharedState,
)
from router.sources import Loaded, Origin
from router.tenants import Keyring, KeysWatch, Limiter, TokensWatch
from router.tls import worker_context
from router.tokenizing import opened_tokenizing
from router.tracing import opened_spans
from router.vital_signs import SignPorts, VitalSigns

logger = logging.getLogger(__name__)

FIRST_PROBES_S = 3.0
"""How long the start waits for the first round of health checks."""

RESTART_S = 1.0
HOUSEKEEPING_S = 1.0


class _OpCounts(NoListener):
    """Counts operations and refused snapshots for the metrics, and tells of those that others appended.

    Args:
        changed: Called when some were applied, or a snapshot was merged.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.published_ops = 0
        self.applied_ops = 0
        self.snapshots_refused = 0

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        """Count what this replica appended."""
        self.published_ops += ops

    def applied(self, ops: int, lag_s: float) -> None:
        """Count what others appended; it may let a request go that waits here."""
        self.applied_ops += ops
        self._changed()

    def snapshot_merged(self) -> None:
        """All may be new."""
        self._changed()

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """Count what was of no use; the log line says why."""
        self.snapshots_refused += 1


class GatewayProcess:
    """Everything of one process. Make it inside a running event loop.

    Attributes:
        api: The FastAPI application of the data port; its lifespan starts and stops the tasks.
        protocol: The class for ``uvicorn.Config(http=...)``.
        ending: Tells readiness and all client connections when the process ends.
        pulse: The fleet's figures of the last ten minutes.
        console: Feeds the console's pages.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        multiprocess_dir: str | None = None,
        files: OpenFiles = UNLIMITED,
        admin_listener: socket.socket | None = None,
        origins: Mapping[str, Origin] = MappingProxyType({}),
    ) -> None:
        """Build everything; nothing is connected yet.

        Args:
            settings: The effective settings.
            redis_url: The shared Redis, or the embedded one's address.
            multiprocess_dir: Where the processes of this host gather their metrics, if there are several.
            files: For how many requests and connections there are open files; more are rejected.
            admin_listener: Bound to the port of the admin API; None if it is served on the data port.
            origins: Where each setting came from, for people.
        """
        self.replica = _replica_id(settings)
        self.metrics = Metrics(version("cacheway"), multiprocess_dir=multiprocess_dir)
        keys_file, keyring = settings.tenancy.keys_file, Keyring()
        self._keys = KeysWatch(keys_file, keyring, classes=settings.queue.classes) if keys_file else None
        tokens_file = settings.admin.tokens_file
        self._tokens = TokensWatch(tokens_file) if tokens_file else None
        self.fleet = FleetState(fleet_rules(settings, keyring.weight_of))
        self.clock = LogClock()
        self._ops = _OpCounts(self._heard)
        self.shared = SharedState(
            SharedConfig(
                url=redis_url,
                namespace=settings.shared.namespace,
                replica=self.replica,
                flush_interval_s=settings.shared.flush_interval_ms / 1000,
                buffer_ops_max=settings.shared.buffer_ops_max,
                snapshot_interval_s=settings.shared.snapshot_interval_s,
                heartbeat_ttl_s=settings.shared.heartbeat_ttl_s,
            ),
            self.fleet,
            self.clock,
            self._ops,
            on_given_up=lambda left_us: self.gateway.sending.given_up(left_us),
            vitals=lambda: self.vital_signs.read(),
        )
        worker_key = settings.fleet.worker_api_key
        self._tls = worker_context(settings.upstream)
        self._destinations = destinations_of(settings.fleet)
        self._worker_key = WorkerKey(
            worker_key.get_secret_value() if worker_key else None,
            self._destinations,
            urls=(worker.url for worker in settings.fleet.workers),
            scopes=scopes_of(settings.discovery),
        )
        self._asker = Asker(self._destinations, self._tls, key_at=self._worker_key.shown_at)
        self._client = asking_client(self._asker, timeout_s=settings.fleet.health_check_timeout_s)
        log = LogPort(self.replica, self.shared.publish, self.clock.now_us, lambda: self.shared.status)
        self.registry = Registry(
            self.fleet,
            log,
            registry_rules(settings),
            make_pool=self._worker_pool,
            check_host=self._destinations.check_host,
            check_engine_host=self._destinations.check_engine_host,
            worker_key=self._worker_key,
        )
        core = Core(self.fleet, self.registry, log)
        self.health = HealthChecks(
            self.registry,
            self._asker,
            health_rules(settings),
            lambda local, connect_s: self.gateway.sending.link_watch.connected(local, connect_s),
            replicas=log.replicas,
            places=probes_max(),
        )
        self._engine_metrics = EngineMetrics(
            core,
            self._client,
            interval_s=settings.admission.engine_metrics_interval_s,
            timeout_s=settings.fleet.health_check_timeout_s,
        )
        self._trace = _opened_trace(settings.observability)
        self.leases = Leases(
            redis_url,
            Keys(settings.shared.namespace),
            self.replica,
            now_us=self.clock.now_us,
            replicas=log.replicas,
            ttl_s=settings.shared.heartbeat_ttl_s,
            loop=asyncio.get_running_loop(),
        )
        limiter = None if self._keys is None else Limiter(self.leases, self.metrics.limit_rejected)
        self._handovers = handovers(self._destinations.resolve)
        self._spans = opened_spans(settings.observability, self.replica)
        reader = RequestReader(
            settings,
            cached_as=self.registry.cached_as,
            keys=keyring if keys_file else None,
            traced=self._spans is not None,
        )
        self._tokenizing = opened_tokenizing(
            settings.placement, core, reader.hasher, self._client, self.metrics.tokenizing
        )
        self.gateway = Gateway(
            settings,
            core,
            reader,
            Telemetry(
                metrics=self.metrics,
                request_log=request_log,
                trace_request=None if self._trace is None else self._trace.record,
                spans=self._spans,
            ),
            Plugins(self._handovers, limiter, self._tokenizing),
            loop=asyncio.get_running_loop(),
            requests_max=files.requests_max,
        )
        self.encoding = Encoding(self.gateway)
        self._roles = RolePlanner(
            core,
            self._client,
            decode_fit=self.gateway.placing.feedback.decode_fit,
            rules=planner_rules(settings),
            turned=self.metrics.pairs.role_changed,
        )
        self.discovery = make_discovery(settings, core, self._destinations)
        if self.discovery is not None:
            self._worker_key.discovers = self.discovery.sees
            self.metrics.discovery.sample = self.discovery.sample
        self._kv_events = make_kv_events(
            settings,
            core,
            self._client,
            root_of=reader.hasher.engine_root,
            destinations=self._destinations,
        )
        self.metrics.kv_events.sample = self._kv_events.sample
        self._loop_lag = LoopLag(self.metrics.loop_lag)
        self.vital_signs = VitalSigns(
            SignPorts(
                version=version("cacheway"),
                address=f"{settings.server.host}:{settings.server.port}",
                admin_address=_admin_address(settings),
                status=lambda: self.shared.status,
                wrote_snapshot=lambda: self.shared.wrote_snapshot,
                degraded=self.degraded,
                registry=self.registry,
                inflight=lambda: self.gateway.sending.inflight,
                waiting=lambda: len(self.gateway.placing.room),
                metrics=self.metrics,
                loop_lag=self._loop_lag,
            )
        )
        self.live = LiveSettings(
            Loaded(settings, origins),
            self.fleet.overrides,
            log,
            parts={
                "gateway": self.gateway.use,
                "fleet": lambda new: self.fleet.use(fleet_rules(new, keyring.weight_of)),
                "clients": self._use_of_clients,
                "workers": self._use_of_workers,
                "roles": self._use_of_roles,
                "logs": lambda new: log_from(new.observability.log_level),
            },
        )
        self.metrics.collect_hooks.append(self._report)
        samples = Samples(self.gateway)
        self.metrics.workers = samples.workers
        self.metrics.pairs.links = samples.links
        self.metrics.pairs.plan = samples.plan
        if self._keys is not None:
            self._keys.load()
            self.metrics.tenant_keys_end = self._keys.keys_end
        if self._tokens is not None:
            self._tokens.load()
        server_key, workers_key = settings.server.api_key_file, settings.fleet.worker_api_key_file
        self._secrets = [
            *([SecretWatch(server_key, reader.door.use_admin_key)] if server_key else ()),
            *([SecretWatch(workers_key, self._use_worker_key)] if workers_key else ()),
        ]
        self.ending = Ending()
        self._clients = Clients(
            client_quota(settings.server, files.requests_max), time.monotonic, self.metrics.client_refused
        )
        self._held = HeldBytes(
            held_bytes_max(settings.server), lambda: self._clients.refuse(Refusal.HELD_BYTES)
        )
        self._multiprocess = multiprocess_dir is not None
        queue = QueuePorts(
            replica=self.replica,
            fleet=self.fleet,
            registry=self.registry,
            admission=self.gateway.placing.admission,
            room=self.gateway.placing.room,
            settings=lambda: self.settings.queue,
            refusals=self.gateway.reports.refusals,
            now_us=self.clock.now_us,
        )
        links = LinkPorts(self.fleet.links, samples.link_state, self.clock.now_us)
        sights = FleetSights(
            version=version("cacheway"),
            recent=self.gateway.reports.decisions,
            offloading=self.gateway.placing.decider.offloading,
            queue=queue,
            links=links,
            log_status=lambda: self.shared.status,
            seen=ReplicaSights(self.shared.replicas_vitals),
            settings=lambda: self.settings,
            keys=self._keys,
            limits=lambda: self.leases.degraded_reason,
            ending=lambda: self.ending.begun,
            refused_settings=lambda: self.live.refused,
        )
        self.pulse = Pulse(sights)
        self.console = EventStream(sights, self.pulse, lambda: self.ending.begun)
        ports = AdminPorts(
            version=version("cacheway"),
            replica=self.replica,
            fleet=self.fleet,
            registry=self.registry,
            publish=self.shared.publish,
            now_us=self.clock.now_us,
            log_status=lambda: self.shared.status,
            request_id_of=reader.request_id_of,
            door=reader.door,
            keys=self._keys,
            limiter=limiter,
            tokens=self._tokens,
            replicas_vitals=self.shared.replicas_vitals,
            degraded=self.degraded,
            hits=self.gateway.placing.feedback.hits,
            metrics=self.metrics,
            client=self._client,
            shutting_down=lambda: self.ending.begun,
            queue=queue,
            links=links,
            offload=OffloadPorts(
                self.gateway.placing.decider.offloading,
                lambda: self.settings.offload,
                tuple(self.fleet.rules.links),
                self.clock.now_us,
            ),
            roles=self._roles,
            gateway=self.gateway,
            body_bytes_max=settings.server.body_bytes_max,
            discovery=self.discovery,
            kv_events=self._kv_events,
            settings=SettingsPorts(self.replica, self.live, lambda: self.shared.status),
            console=self.console,
        )
        self._admin_socket, self._files = admin_listener, files
        self._admin = self._metrics_listener = None
        if admin_listener is None:
            self.api = make_api(ports, self._lifespan)
        else:
            self.api = make_data_api(ports, self._lifespan)
            self._admin = self._listener(make_admin_api(ports), client_limits(settings.server))
            self._admin.tls = admin_tls(settings.admin)
        if settings.observability.prometheus_port is not None:
            api = make_metrics_api(self.metrics.exposition)
            self._metrics_listener = self._listener(api, scrape_limits(settings.server))
        self.protocol: type[GatewayProtocol] = make_protocol(
            starting(self.gateway, self.encoding),
            is_proxied,
            client_limits(settings.server),
            self.ending,
            self._clients,
            None if reader.door.is_open else reader.judge,
            self._held,
        )
        _warn_of_unpriced_links(settings)
        for worker in settings.fleet.workers:
            self.registry.add(worker.url, role=worker.role, labels=dict(worker.labels), static=True)

    @property
    def settings(self) -> Settings:
        """The settings as they are now."""
        return self.live.current

    def _listener(self, api: FastAPI, limits: ClientLimits) -> Listener:
        """A listener beside the data port."""
        server = self.settings.server
        quota = ClientQuota(self._files.listener_connections_max, trusted_proxies=server.trusted_proxies)
        clients = Clients(quota, time.monotonic, self.metrics.client_refused)
        return Listener(api, clients, limits, server.keepalive_s)

    def _heard(self) -> None:
        """Others said something."""
        self.live.follow()
        self.gateway.placing.room.changed()
        self.encoding.heard()

    def _use_of_clients(self, new: Settings) -> None:
        """What clients may ask and have, by new settings."""
        self._clients.use(client_quota(new.server, self._files.requests_max))
        self._held.use(held_bytes_max(new.server))
        self.protocol.limits = client_limits(new.server)
        if self._admin is not None:
            self._admin.use(self.protocol.limits)
        if self._metrics_listener is not None:
            self._metrics_listener.use(scrape_limits(new.server))
        self.protocol.watches_requests = self._clients.watches_requests

    def _use_of_workers(self, new: Settings) -> None:
        """How workers are looked after, by new settings."""
        fleet = new.fleet
        self.registry.use(registry_rules(new))
        self.health.use(health_rules(new))
        self._engine_metrics.use(new.admission.engine_metrics_interval_s, fleet.health_check_timeout_s)
        timeouts = upstream_timeouts(new)
        for local in self.registry.all():
            local.pool.use(timeouts, new.upstream.keepalive_s)

    def _use_of_roles(self, new: Settings) -> None:
        """How roles are planned, by new settings."""
        self._roles.use(planner_rules(new))

    def _use_worker_key(self, key: bytes) -> None:
        """Show workers another key."""
        self._worker_key.use(key.decode())
        self.registry.key_changed()

    def _worker_pool(self, url: str) -> WorkerPool:
        """The connections to a worker."""
        upstream = self.settings.upstream
        pool = WorkerPool(
            url,
            connections_max=upstream.connections_max,
            # A burst of new streams waits while its connections are made.
            waiting_max=upstream.connections_max,
            idle_s_max=upstream.keepalive_s,
            timeouts=upstream_timeouts(self.settings),
            ssl=self._tls,
            resolve=self._destinations.resolve,
            answer_headers=[name.encode() for name in upstream.answer_headers],
        )
        pool.may_resend = self.gateway.sending.may_resend
        return pool

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the tasks while the application serves."""
        loops: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("health checks", self.health.run),
            ("housekeeping", self._housekeeping),
            ("loop lag", self._loop_lag.run),
            ("roles", self._roles.run),
            ("pulse", self.pulse.run),
            ("engine metrics", self._engine_metrics.run),
            ("kv events", self._kv_events.run),
        ]
        if self._keys is not None:
            loops.append(("keys", self._keys.run))
            loops.append(("limits", self.leases.run))
        if self._tokens is not None:
            loops.append(("tokens", self._tokens.run))
        loops += [("secrets", watch.run) for watch in self._secrets]
        if self.settings.fleet.links:
            loops.append(("links", self.gateway.sending.link_watch.run))
        if self._multiprocess:
            loops.append(("metrics", self.metrics.run))
        if self._metrics_listener is not None:
            loops.append(("metrics listener", self._serve_metrics))
        if self._admin is not None:
            loops.append(("admin listener", self._serve_admin))
        async with self._client:
            shared = asyncio.create_task(_forever("shared log", self.shared.run), name="shared log")
            tasks = []
            if self.discovery is not None:
                tasks.append(asyncio.create_task(_forever("discovery", self.discovery.run), name="discovery"))
            tasks += [asyncio.create_task(_forever(name, run), name=name) for name, run in loops]
            await self._first_probes()
            logger.info(
                "serving",
                extra={
                    "event": "gateway.started",
                    "replica": self.replica,
                    "workers": len(self.registry.all()),
                },
            )
            try:
                yield
            finally:
                await self.console.close()
                await _ended(*tasks)
                self.registry.close()
                # Last, so that the last releases still reach the log.
                await _ended(shared)
                if self._tokenizing is not None:
                    self._tokenizing.close()
                if self._trace is not None:
                    self._trace.close()
                if self._spans is not None:
                    self._spans.close()
                logger.info("stopped", extra={"event": "gateway.stopped", "replica": self.replica})

    async def _first_probes(self) -> None:
        """Wait until each worker was probed once, but not for long; nothing ends because this does."""
        try:
            async with asyncio.timeout(FIRST_PROBES_S):
                if self.discovery is not None:
                    await self.discovery.first_settled.wait()
                await self.health.all_probed()
        except TimeoutError:
            pass
        unwell = [w.worker.worker_id for w in self.registry.all() if w.health is not Health.HEALTHY]
        if unwell:
            logger.warning(
                "some workers are not healthy yet",
                extra={"event": "worker.missing", "worker_ids": unwell[:20], "count": len(unwell)},
            )

    async def _housekeeping(self) -> None:
        """Once a second: forget what is too old, release what nobody finished (a bug, so an error).

        See whether a snapshot says that this replica was given up: the log says so by itself. And without
        Redis give up the others, as they do this one, when their heartbeats would have expired.
        """
        known_us = 0
        heard_s = time.monotonic()
        compared = False
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            if self.shared.status.ready and not compared:
                compared = True
                self._compare_roles()
            left_us = self.fleet.loads.left_us(self.replica)
            if left_us > known_us:
                known_us = left_us
                self.gateway.sending.given_up(left_us)
            if self.shared.status.connected:
                heard_s = time.monotonic()
                self._let_go()
            elif time.monotonic() - heard_s > self.settings.shared.heartbeat_ttl_s:
                for left in self.fleet.cut_off(self.replica, self.clock.now_us()):
                    self.shared.publish(left)
                self.gateway.placing.room.changed()
            self.gateway.reports.decisions.fold()
            expired = self.fleet.collect(self.clock.now_us())
            if expired:
                logger.error(
                    "reservations were never released",
                    extra={"event": "reservation.expired", "count": expired},
                )

    def _let_go(self) -> None:
        """Remove workers that were to go when they had drained."""
        replicas = self.shared.status.replicas
        for gone in departures(self.fleet, self.replica, replicas, self.clock.now_us()):
            self.shared.publish(gone)
            logger.info("a drained worker left", extra={"event": "worker.left", "worker_id": gone.worker})

    def _compare_roles(self) -> None:
        """Say it if a worker that the settings name has another role in the shared state, which wins."""
        for named in self.settings.fleet.workers:
            local = self.registry.get(worker_id_of(normal_url(named.url)))
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

    async def _serve_metrics(self) -> None:
        observability = self.settings.observability
        assert observability.prometheus_port is not None
        assert self._metrics_listener is not None
        await serve_metrics(
            self._metrics_listener,
            observability.prometheus_host,
            observability.prometheus_port,
            alone=self.settings.server.workers == 1,
        )

    async def _serve_admin(self) -> None:
        assert self._admin is not None
        assert self._admin_socket is not None
        # A copy, so that there is a port to start again with if it ever fails.
        await self._admin.serve(self._admin_socket.dup())

    def degraded(self) -> tuple[str, ...]:
        """What does not work, a sentence each."""
        status, found = self.shared.status, []
        if status.degraded_reason is not None:
            found.append(f"the shared log: {status.degraded_reason}")
        workers = self.registry.all()
        unwell = sum(local.health is not Health.HEALTHY for local in workers)
        if unwell:
            found.append(f"{unwell} of {len(workers)} workers are not healthy")
        files = (("keys", self._keys), ("tokens", self._tokens))
        found += [
            f"the file of {noun} cannot be used; what it said before holds, and the log says why"
            for noun, watch in files
            if watch is not None and watch.problem is not None
        ]
        if self.discovery is not None and self.discovery.problem is not None:
            found.append(f"discovery of pods: {self.discovery.problem}; known workers stay")
        if self.leases.degraded_reason is not None:
            found.append(f"limits of tenants: {self.leases.degraded_reason}")
        return tuple(found)

    def _report(self) -> None:
        """Tell the metrics what is read rather than counted."""
        status = self.shared.status
        self.metrics.inflight(self.gateway.sending.inflight)
        self.metrics.client_connections(self._clients.connections)
        self.metrics.held_bytes(self._held.count)
        self.metrics.spared(len(self.registry.circuits.spared))
        inversions = self.fleet.tickets.inversions
        self.metrics.queue(
            self.gateway.placing.waiting(self.gateway.reader.priorities.names),
            drain_s=self.gateway.placing.room.longest_drain_s(),
            inversions=inversions.count,
            inversion_s_max=inversions.us_max / 1e6,
            rooms_overdue=self.gateway.placing.room.overdue,
        )
        self.metrics.degraded(Component.REDIS, on=status.degraded_reason is not None)
        workers = self.registry.all()
        self.metrics.degraded(
            Component.WORKERS, on=not all(local.health is Health.HEALTHY for local in workers)
        )
        refused = len(self.live.refused)
        self.metrics.degraded(Component.SETTINGS, on=refused > 0)
        self.metrics.settings_overridden(used=len(self.fleet.overrides.values()) - refused, refused=refused)
        self.metrics.shared_log(
            lag_s=status.lag_s,
            snapshot_age_s=status.snapshot_age_s,
            buffered_ops=status.buffered_ops,
            published_ops=self._ops.published_ops,
            applied_ops=self._ops.applied_ops,
            dropped_ops=status.dropped_ops,
            skipped_ops=status.skipped_ops,
            snapshots_refused=self._ops.snapshots_refused,
        )
        if self.discovery is not None:
            self.metrics.degraded(Component.KUBERNETES, on=self.discovery.problem is not None)
            self.metrics.discovery.report()
        self.metrics.kv_events.report()
        if self._keys is not None:
            self.metrics.degraded(Component.KEYS, on=self._keys.problem is not None)
            self.metrics.keys_read(loaded=self._keys.loaded_count, refused=self._keys.refused_count)
            self.metrics.degraded(Component.LIMITS, on=self.leases.degraded_reason is not None)
            self.metrics.limits(rounds=self.leases.rounds, shares=self.leases.alone)
        for name, handover in self._handovers.items():
            self.metrics.pairs.handover_events(name, handover.counts)
        self.metrics.pairs.offload_decided(self.gateway.placing.decider.offloading.counts)
        self.metrics.tree(blocks=self.fleet.tree.blocks, nodes=self.fleet.tree.nodes)
        self.metrics.engine_reports(
            reports=self._engine_metrics.reports, failures=self._engine_metrics.failures
        )
        self.metrics.probes_rebuilt(self.health.rebuilt)
        self.metrics.log_lines_dropped(lines_dropped())
        if self._trace is not None:
            self.metrics.trace_lines_dropped(self._trace.dropped)


def _admin_address(settings: Settings) -> str:
    server, admin = settings.server, settings.admin
    return f"{admin.host}:{admin.port}" if admin.port else f"{server.host}:{server.port}"


async def _forever(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a loop that must not end; if it does, say so and start it again."""
    while True:
        try:
            await run()
            logger.error("task ended", extra={"event": "task.ended", "task": name})
        except Exception:
            logger.exception("task failed", extra={"event": "task.failed", "task": name})
        await asyncio.sleep(RESTART_S)


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _replica_id(settings: Settings) -> str:
    if settings.shared.replica_id:
        several = settings.server.workers > 1
        return f"{settings.shared.replica_id}-{os.getpid()}" if several else settings.shared.replica_id
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"


def _opened_trace(observability: ObservabilitySettings) -> RequestTrace | None:
    if not observability.request_trace:
        return None
    return RequestTrace(observability.request_trace, observability.request_trace_bytes_max)


def _warn_of_unpriced_links(settings: Settings) -> None:
    """Say it if prompts could be prefilled in another site and never will be."""
    weighed = any(
        model.kv_bytes_per_token or model.window_bytes_per_token or model.state_bytes
        for model in settings.placement.models.values()
    )
    if settings.fleet.links and not weighed:
        logger.warning(
            "nothing is prefilled in another site: placement.models does not say what any model's KV weighs",
            extra={"event": "links.unpriced"},
        )
