"""Composition root: builds one gateway process from its settings, and owns its tasks.

    uvicorn (sockets, TLS, signals) ── proxied routes ──> exchanges ──> WorkerPool ──> worker
                                    └─ everything else ─> FastAPI (`router.admin`) <── the admin port
    tasks: shared log, health checks, housekeeping, loop lag; each is restarted, loudly, if it ever fails

The parts of a process (`router.process`) are built in the order of their dependencies:

    log ──> workers, tenants ──> gateway ──> roles, discovery, cache events ──> settings ──> admin API

The process serves at once and learns the shared state and its workers' health while it runs. It waits briefly
for the first round of health checks only, so that the first request finds a worker.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from types import MappingProxyType

from fastapi import FastAPI

from policies import FleetState
from policies.observing import Shadow
from router.admin import AdminParts, ProcessFleetView, make_admin_api, make_api, make_data_api
from router.console import EventStream, RateWindow
from router.continuing import StreamKeeper
from router.discovery import make_discovery
from router.encoding import Encoding
from router.fleet import Health
from router.freed_memory import give_back_while_idle
from router.gateway import Gateway, Plugins, Telemetry, starting
from router.handover import handovers
from router.live_settings import LiveSettings
from router.logs import log_from, request_log
from router.loop_lag import LoopLag
from router.metric_families import LOOP_LAG, ROLE_CHANGES
from router.metrics import Metrics
from router.models import ModelReader
from router.open_files import UNLIMITED, OpenFiles
from router.own_policies import OwnPolicies
from router.pairs import PairPlugin, RolePlanner, watch_links
from router.process import report
from router.process.client_side import ClientSide
from router.process.fleet_rules import fleet_rules
from router.process.greeting import greeting
from router.process.housekeeping import Housekeeping
from router.process.kv_events import make_kv_events
from router.process.loops import Loop, Loops
from router.process.model_side import ModelSide
from router.process.picker_side import make_picker, picker_loops
from router.process.starting import (
    first_probes,
    opened_spans,
    opened_trace,
    replica_id,
    secret_watches,
    warn_of_unpriced_links,
)
from router.process.tenant_side import TenantSide
from router.process.worker_side import WorkerSide
from router.proxy import Ending, StartExchange
from router.relaying import Relaying, Routes
from router.samples import Samples
from router.sessions import Sessions
from router.settings import PlacementSettings, Settings
from router.shared import (
    AdapterUses,
    Hooks,
    Keys,
    LogClock,
    LogPort,
    SessionHomes,
    SharedState,
    StoredResponses,
)
from router.sources import Loaded, Origin
from router.tenants import Keyring, quota_samples
from router.tokenizing import opened_tokenizing
from router.vital_signs import VitalSigns

logger = logging.getLogger(__name__)

SEED_WAIT_S = 2.0
"""Time that a start waits for the seed of hashes; without Redis the replica begins with one of its own."""


class GatewayProcess:
    """One gateway process. Make it inside a running event loop.

    Attributes:
        live: The current settings and the changes made to them.
        api: The FastAPI application of the data port; its lifespan starts and stops the tasks.
        protocol: The class for ``uvicorn.Config(http=...)``.
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
        """Build all parts without connecting anything.

        Args:
            settings: The effective settings.
            redis_url: The shared Redis, or the embedded one's address.
            multiprocess_dir: Folder for the metrics of several processes; None for a single process.
            files: Bounds on requests and connections that follow from the limit of open files.
            admin_listener: Bound to the port of the admin API; None if the data port serves it.
            origins: Source of each setting.
        """
        self.replica = replica_id(settings)
        self.metrics = Metrics(version("cacheway"), multiprocess_dir=multiprocess_dir)
        self._multiprocess = multiprocess_dir is not None
        keyring = Keyring()
        self.fleet = FleetState(
            fleet_rules(settings, keyring.weight_of, keyring.cache_share_of), self.replica
        )
        self.clock = LogClock()
        self._ops = report.LogListener(self._heard)
        self.shared = self._shared_state(settings, redis_url)
        shared = self.shared
        log = LogPort(self.replica, shared.publish, self.clock.now_us, lambda: shared.status, shared.replicas)
        self.workers = WorkerSide(
            settings,
            self.fleet,
            log,
            discovers=lambda url: self.discovery is not None and self.discovery.sees(url),
            may_resend=lambda: self.gateway.sending.may_resend(),
            connected=lambda local, connect_s: self.pairs.link_watch.measured(local.worker.site, connect_s),
        )
        core, self.registry = self.workers.core, self.workers.core.registry
        self.tenants = TenantSide(settings, keyring, log, redis_url, self.metrics)
        self.own_policies = OwnPolicies(settings.placement, self._own_policy_off)
        names = Keys(settings.shared.namespace)
        self.session_homes = SessionHomes(
            settings.placement, redis_url, names, self.replica, self.clock.now_us
        )
        self._make_gateway(settings, files)
        uses = AdapterUses(self.clock.now_us, redis_url, names, self.replica)
        self.models = ModelSide(self.gateway, self.workers.client, self._tokenizing, uses)
        self.models.use(settings)
        self.encoding, self.routes = Encoding(self.gateway), Routes(settings)
        self.stream_keeper = StreamKeeper(settings, self.gateway.reader)
        self.responses = StoredResponses(settings.placement, redis_url, names, self.replica)
        self._make_fleet_watches(settings)
        self._loop_lag = LoopLag(
            self.metrics.distributions[LOOP_LAG].observe, lambda: self.gateway.sending.inflight
        )
        self._vital_signs = VitalSigns(
            version("cacheway"),
            settings,
            self.gateway,
            self._loop_lag,
            self.degraded,
            lambda: self.shared.wrote_snapshot,
        )
        self.clients = ClientSide(settings, self.metrics, files)
        self.picker = make_picker(
            settings, self.gateway, self.metrics, self.clients, self.discovery, self.pairs, self.routes
        )
        self.live = self._live_settings(Loaded(settings, origins), log, keyring)
        self._housekeeping = Housekeeping(core, self.gateway, lambda: self.settings)
        self._secrets = secret_watches(settings, self.tenants.door.use_admin_key, self.workers.use_key)
        self._tell_metrics()
        self.api = self._make_api(admin_listener)
        judge = None if self.tenants.door.is_open else self.gateway.reader.judge
        self.protocol = self.clients.protocol(self._starting(), self.routes, judge)
        warn_of_unpriced_links(settings)
        self.workers.add_named()

    def _starting(self) -> StartExchange:
        return starting(
            self.gateway,
            Relaying(self.gateway, self.routes, self.encoding, self.responses, self.pairs.share),
            self.pairs.share,
            others=Relaying.paths,
            maker_of=self.stream_keeper.maker_of,
        )

    def _make_fleet_watches(self, settings: Settings) -> None:
        """Build the parts that change the fleet: roles, discovery and KV events."""
        core, destinations = self.workers.core, self.workers.destinations
        self.roles = RolePlanner(
            core,
            self.workers.client,
            decode_fit=self.gateway.placing.feedback.learn_decodes,
            rules=settings.roles,
            level=settings.admission,
            turned=lambda role: self.metrics.counts[ROLE_CHANGES].add((role,)),
        )
        pair_labels, pool = settings.fleet.pair_labels, settings.picker.pool
        self.discovery = make_discovery(settings.discovery, core, destinations, pair_labels, pool)
        root_of = self.gateway.reader.hasher.engine_root
        self.kv_events = make_kv_events(
            settings, core, self.workers.client, root_of=root_of, destinations=destinations
        )

    @property
    def ending(self) -> Ending:
        """The end of the process: readiness and all client connections follow it."""
        return self.clients.ending

    @property
    def settings(self) -> Settings:
        """The settings as they are now."""
        return self.live.current

    def degraded(self) -> tuple[str, ...]:
        """Return a sentence for each part that does not work."""
        found = report.troubles(self.workers.core, self.tenants, self.discovery)
        return (*found, *self.own_policies.troubles())

    # Parts.

    def _shared_state(self, settings: Settings, redis_url: str) -> SharedState:
        return SharedState(
            settings.shared,
            redis_url,
            self.replica,
            self.fleet,
            self.clock,
            self._ops,
            Hooks(
                on_given_up=lambda left_us: self.gateway.sending.given_up(left_us),
                on_seed=self._use_seed,
                vitals=lambda: self._vital_signs.read(),
                embedded=not settings.shared.redis_url,
            ),
        )

    def _make_gateway(self, settings: Settings, files: OpenFiles) -> None:
        """Build the gateway with its options."""
        core = self.workers.core
        self._trace = opened_trace(settings.observability)
        self._spans = opened_spans(settings.observability, self.replica)
        loop = asyncio.get_running_loop()
        self._handovers = handovers(self.workers.destinations.resolve)
        self.pairs = PairPlugin(settings, core, self._handovers, loop=loop, now_s=time.monotonic)
        reader = ModelReader(
            settings, core, self.metrics, door=self.tenants.door, traced=self._spans is not None
        )
        self._tokenizing = opened_tokenizing(
            settings.placement, core, reader.hasher, self.workers.client, self.metrics
        )
        self.sessions = Sessions(settings.placement, self.fleet, reader.hasher, self.session_homes.tell)
        reader.session_of = lambda parsed, headers: self.sessions.name_of(parsed, headers)[0]
        self.gateway = Gateway(
            settings,
            core,
            reader,
            Telemetry(
                metrics=self.metrics,
                request_log=request_log(),
                trace_request=None if self._trace is None else self._trace.record,
                spans=self._spans,
            ),
            Plugins(
                self.pairs,
                self.tenants.limiter,
                self._tokenizing,
                self._make_shadow,
                self.own_policies.make,
                self.sessions,
            ),
            loop=loop,
            requests_max=files.requests_max,
        )

    def _make_shadow(self, placement: PlacementSettings) -> Shadow | None:
        """Make the observer that asks a second policy; None if that was switched off."""
        name = placement.shadow_policy
        if self.own_policies.is_off(name):
            return None
        policy = self.own_policies.make(name, placement.shadow_policy_options)
        return Shadow(policy, self.fleet, placement.shadow_ratio, partial(self.metrics.shadowed, name))

    def _own_policy_off(self, name: str) -> None:
        """Decide by the fallback from the next turn of the loop on, and ask no shadow policy that failed."""

        def follow() -> None:
            if self.settings.placement.shadow_policy == name:
                self.gateway.placing.decider.shadow = None
            self.gateway.placing.use(self.settings)

        self.gateway.loop.call_soon(follow)

    def _live_settings(self, loaded: Loaded, log: LogPort, keyring: Keyring) -> LiveSettings:
        """Make the settings, with the parts that follow their changes."""
        return LiveSettings(
            loaded,
            self.fleet.overrides,
            log,
            parts={
                "gateway": self.gateway.use,
                "fleet": lambda new: self.fleet.use(
                    fleet_rules(new, keyring.weight_of, keyring.cache_share_of)
                ),
                "clients": self.clients.use,
                "workers": self.workers.use,
                "picker": lambda new: None if self.picker is None else self.picker.use(new),
                "roles": lambda new: self.roles.use(new.roles, new.admission),
                "models": self.models.use,
                "routes": self.routes.use,
                "streams": self.stream_keeper.use,
                "responses": lambda new: self.responses.use(new.placement),
                "sessions": self._use_sessions,
                "logs": lambda new: log_from(new.observability.log_level),
            },
            problems=self.own_policies.problems,
        )

    def _use_sessions(self, settings: Settings) -> None:
        self.sessions.use(settings.placement)
        self.session_homes.use(settings.placement)

    def _make_api(self, admin_listener: socket.socket | None) -> FastAPI:
        """Build the admin API; return the application of the data port."""
        parts = AdminParts(
            version=version("cacheway"),
            gateway=self.gateway,
            live=self.live,
            client=self.workers.client,
            pairs=self.pairs,
            roles=self.roles,
            kv_events=self.kv_events,
            discovery=self.discovery,
            door=self.tenants.door,
            keys=self.tenants.keys,
            tokens=self.tenants.tokens,
            ending=self.ending,
            vitals=self.shared.replicas_vitals,
            degraded=self.degraded,
            own_policies=self.own_policies,
            finish_session=self.sessions.finish,
        )
        fleet_view = ProcessFleetView(parts)
        self.rates = RateWindow(fleet_view)
        self.console = EventStream(fleet_view, self.rates, lambda: self.ending.begun)
        if admin_listener is None:
            return make_api(parts, self.console, self._lifespan)
        self.clients.listen_for_admins(make_admin_api(parts, self.console), admin_listener)
        return make_data_api(parts, self._lifespan)

    def _tell_metrics(self) -> None:
        """Let metrics read at each scrape the values that are not counted."""
        reports = report.reports_of(
            report.report_requests(self.gateway),
            report.report_clients(self.clients),
            report.report_sessions(self.gateway, self.sessions, self.session_homes, self.responses),
            report.report_workers(self.workers),
            report.report_pairs(self.pairs, self._handovers),
            report.report_log(self.workers.core, self._ops),
            report.report_settings(self.live),
            report.report_own_policies(self.own_policies),
            report.report_tenants(self.tenants),
            report.report_discovery(self.discovery),
            report.report_kv_events(self.kv_events),
            report.report_lines(self._trace),
        )
        self.metrics.collect_hooks += [partial(each, self.metrics) for each in reports]
        samples, keys = Samples(self.gateway, self.pairs.offloading), self.tenants.keys
        self.metrics.readers += [samples.workers, samples.links, samples.plan, self.kv_events.samples]
        if self.discovery is not None:
            self.metrics.readers.append(self.discovery.samples)
        if keys is not None:
            self.metrics.readers += [
                keys.samples,
                partial(quota_samples, keys.keyring, self.fleet.quotas),
            ]

    # While it serves.

    def _heard(self) -> None:
        """Follow operations that other replicas published."""
        self.live.follow()
        self.gateway.placing.room.changed()
        self.encoding.heard()

    def _use_seed(self, seed: int) -> None:
        """Hash prompts with the seed that all replicas share."""
        self.gateway.reader.hasher.use_seed(seed)
        self.kv_events.begin_anew()

    def _loops(self) -> list[Loop]:
        """Return the tasks of the process, without the log, which ends last."""
        loops: list[Loop] = [] if self.discovery is None else [("discovery", self.discovery.run)]
        decisions, sending = self.gateway.reports.decisions, self.gateway.sending
        loops += self.workers.loops()
        loops += [
            ("housekeeping", self._housekeeping.run),
            ("loop lag", self._loop_lag.run),
            (
                "freed memory",
                lambda: give_back_while_idle(lambda: decisions.cursor, lambda: sending.inflight),
            ),
            ("roles", self.roles.run),
            ("pulse", self.rates.run),
            ("kv events", self.kv_events.run),
            ("responses", self.responses.run),
            ("sessions", partial(self.session_homes.run, self.sessions.heard)),
        ]
        loops += self.tenants.loops()
        loops += [("secrets", watch.run) for watch in self._secrets]
        if self.settings.fleet.links:
            loops.append(("links", partial(watch_links, self.pairs.link_watch)))
        if self._multiprocess:
            loops.append(("metrics", self.metrics.run))
        return loops + self.clients.loops() + picker_loops(self.settings, self.picker)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the tasks while the application serves."""
        async with self.workers.client:
            shared, tasks = Loops(), Loops()
            shared.start([("shared log", self.shared.run)])
            # First, so that nothing is hashed with a seed of our own that the others do not have.
            self._use_seed(await self.shared.seed(SEED_WAIT_S))
            tasks.start(self._loops())
            await first_probes(self.workers, self.discovery)
            healthy = [local.health is Health.HEALTHY for local in self.registry.all()]
            logger.info("serving", extra=greeting(self.settings, self.replica, len(healthy), sum(healthy)))
            try:
                yield
            finally:
                await self.console.close()
                await tasks.end()
                await self.models.close()
                self.registry.close()
                # Last, so that the last releases still reach the log.
                await shared.end()
                for opened in (self._tokenizing, self._trace, self._spans):
                    if opened is not None:
                        opened.close()
                logger.info("stopped", extra={"event": "gateway.stopped", "replica": self.replica})
