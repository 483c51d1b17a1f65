"""Composition root: builds one gateway process from its settings, and owns its tasks.

    uvicorn (sockets, TLS, signals) ── proxied routes ──> Gateway ──> WorkerPool ──> worker
                                    └─ everything else ─> FastAPI (`router.admin`)
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
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from math import inf

import httpx
from fastapi import FastAPI

from policies import (
    CONVERTIBLE_LABEL,
    DECODE,
    NEVER_TOKENS,
    PREFILL,
    PROFILES,
    BreakerRules,
    CachePool,
    FleetRules,
    FleetState,
    KvBytes,
    LengthBuckets,
    LinkRules,
    RoleRules,
    make_policy,
)
from router.admin import (
    AdminPorts,
    LinkPorts,
    OffloadPorts,
    QueuePorts,
    make_api,
    serve_metrics,
)
from router.encoding import Encoding
from router.fleet import (
    BucketPlanner,
    EngineMetrics,
    Health,
    HealthChecks,
    HealthRules,
    LocalWorker,
    Registry,
    RolePlanner,
    normal_url,
    worker_id_of,
)
from router.gateway import Gateway, weights
from router.handover import handovers
from router.logs import lines_dropped, request_log
from router.loop_lag import LoopLag
from router.metrics import Component, Metrics, WorkerSample
from router.pair_metrics import LinkSample, PlanSample
from router.proxy import ClientLimits, Ending, GatewayProtocol, UpstreamTimeouts, WorkerPool, make_protocol
from router.request_trace import RequestTrace
from router.settings import ObservabilitySettings, Settings, UpstreamSettings
from router.shared import Keys, Leases, LogClock, NoListener, RefusalReason, SharedConfig, SharedState
from router.tenants import Keyring, KeysWatch, Limiter
from router.tls import worker_context
from router.values import token_count

logger = logging.getLogger(__name__)

FIRST_PROBES_S = 3.0
"""How long the start waits for the first round of health checks."""

RESTART_S = 1.0
HOUSEKEEPING_S = 1.0


class _OpCounts(NoListener):
    """Counts operations and refused snapshots for the metrics, and tells of those that others appended.

    Args:
        changed: Called when some were applied.
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

    def snapshot_refused(self, reason: RefusalReason) -> None:
        """Count what was of no use; the log line says why."""
        self.snapshots_refused += 1


class GatewayProcess:
    """Everything of one process. Make it inside a running event loop.

    Attributes:
        api: The FastAPI application; its lifespan starts and stops the tasks.
        protocol: The class for ``uvicorn.Config(http=...)``.
        ending: Tells readiness and all client connections when the process ends.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        multiprocess_dir: str | None = None,
        requests_max: int = sys.maxsize,
    ) -> None:
        """Build everything; nothing is connected yet.

        Args:
            settings: The effective settings.
            redis_url: The shared Redis, or the embedded one's address.
            multiprocess_dir: Where the processes of this host gather their metrics, if there are several.
            requests_max: Requests at a time for which there are open files; more are rejected.
        """
        self.settings = settings
        self.replica = _replica_id(settings)
        self.metrics = Metrics(version("cacheway"), multiprocess_dir=multiprocess_dir)
        keys_file, keyring = settings.tenancy.keys_file, Keyring()
        self._keys = KeysWatch(keys_file, keyring, classes=settings.queue.classes) if keys_file else None
        self.fleet = FleetState(_fleet_rules(settings, keyring))
        self.clock = LogClock()
        self._ops = _OpCounts(lambda: self.gateway.room.changed())
        self.shared = SharedState(
            SharedConfig(
                url=redis_url,
                namespace=settings.shared.namespace,
                replica=self.replica,
                address=f"{settings.server.host}:{settings.server.port}",
                version=version("cacheway"),
                flush_interval_s=settings.shared.flush_interval_ms / 1000,
                buffer_ops_max=settings.shared.buffer_ops_max,
                snapshot_interval_s=settings.shared.snapshot_interval_s,
                heartbeat_ttl_s=settings.shared.heartbeat_ttl_s,
            ),
            self.fleet,
            self.clock,
            self._ops,
            on_given_up=lambda left_us: self.gateway.given_up(left_us),
        )
        worker_key = settings.fleet.worker_api_key
        tls = worker_context(settings.upstream)
        self._client = httpx.AsyncClient(
            timeout=settings.fleet.health_check_timeout_s,
            verify=tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=128, max_keepalive_connections=64, keepalive_expiry=3.0),
            headers={"authorization": f"Bearer {worker_key.get_secret_value()}"} if worker_key else {},
        )
        self.registry = Registry(
            self.fleet,
            publish=self.shared.publish,
            now_us=self.clock.now_us,
            replica=self.replica,
            make_pool=_pool_maker(settings.upstream, tls),
            failure_threshold=settings.fleet.health_failure_threshold,
            success_threshold=settings.fleet.health_success_threshold,
            breaker=_breaker_rules(settings),
            replicas=lambda: self.shared.status.replicas,
            slow_start_s=settings.fleet.slow_start_s,
        )
        self._planner = BucketPlanner(
            self.fleet,
            self.registry,
            self.shared.publish,
            self.clock.now_us,
            self.replica,
            lambda: self.shared.status.replicas,
        )
        self.health = HealthChecks(
            self.registry,
            self._client,
            HealthRules(
                interval_s=settings.fleet.health_check_interval_s,
                unhealthy_interval_s=min(settings.fleet.health_check_interval_s, 2.0),
                timeout_s=settings.fleet.health_check_timeout_s,
                endpoint=settings.fleet.health_check_endpoint,
            ),
            lambda local, connect_s: self.gateway.link_watch.connected(local, connect_s),
        )
        interval_s = settings.admission.engine_metrics_interval_s
        self._engine_metrics = None
        if interval_s:
            self._engine_metrics = EngineMetrics(
                self.registry,
                self.fleet,
                self._client,
                publish=self.shared.publish,
                now_us=self.clock.now_us,
                replica=self.replica,
                replicas=lambda: self.shared.status.replicas,
                interval_s=interval_s,
                timeout_s=settings.fleet.health_check_timeout_s,
            )
        self._trace = _opened_trace(settings.observability)
        self.leases = Leases(
            redis_url,
            Keys(settings.shared.namespace),
            self.replica,
            now_us=self.clock.now_us,
            replicas=lambda: self.shared.status.replicas,
            ttl_s=settings.shared.heartbeat_ttl_s,
            loop=asyncio.get_running_loop(),
        )
        limiter = None if self._keys is None else Limiter(self.leases, self.metrics.limit_rejected)
        self._handovers = handovers()
        self.gateway = Gateway(
            settings,
            replica=self.replica,
            fleet=self.fleet,
            registry=self.registry,
            publish=self.shared.publish,
            clock=self.clock,
            policy=make_policy(
                settings.placement.policy, settings.placement.options_of(settings.placement.policy)
            ),
            metrics=self.metrics,
            request_log=request_log,
            trace_request=None if self._trace is None else self._trace.record,
            loop=asyncio.get_running_loop(),
            log_lag_s=lambda: self.shared.status.lag_s,
            requests_max=requests_max,
            keys=keyring if keys_file else None,
            limiter=limiter,
            handovers=self._handovers,
        )
        self.gateway.encode = Encoding(self.gateway)
        self._roles = RolePlanner(
            self.fleet,
            self.registry,
            self._client,
            publish=self.shared.publish,
            now_us=self.clock.now_us,
            replica=self.replica,
            replicas=lambda: self.shared.status.replicas,
            connected=lambda: self.shared.status.connected,
            decode_fit=self.gateway.feedback.decode_fit,
            mode=settings.roles.mode,
            rules=_role_rules(settings),
            interval_s=settings.roles.interval_s,
            tpot_slo_s=settings.admission.tpot_slo_s,
            turned=self.metrics.pairs.role_changed,
        )
        self.metrics.collect_hooks.append(self._report)
        self.metrics.workers = self._worker_samples
        self.metrics.pairs.links = self._link_samples
        self.metrics.pairs.plan = self._plan_sample
        if self._keys is not None:
            self._keys.load()
            self.metrics.tenant_keys_end = self._keys.keys_end
        self.ending = Ending()
        self._multiprocess = multiprocess_dir is not None
        self.api = make_api(
            AdminPorts(
                version=version("cacheway"),
                replica=self.replica,
                fleet=self.fleet,
                registry=self.registry,
                publish=self.shared.publish,
                now_us=self.clock.now_us,
                log_status=lambda: self.shared.status,
                request_id_of=self.gateway.request_id_of,
                door=self.gateway.door,
                keys=self._keys,
                limiter=limiter,
                metrics=self.metrics,
                client=self._client,
                shutting_down=lambda: self.ending.begun,
                queue=QueuePorts(
                    replica=self.replica,
                    fleet=self.fleet,
                    registry=self.registry,
                    admission=self.gateway.admission,
                    room=self.gateway.room,
                    settings=settings.queue,
                    refusals=self.gateway.refusals,
                    now_us=self.clock.now_us,
                ),
                links=LinkPorts(self.fleet.links, self._link_state, self.clock.now_us),
                offload=OffloadPorts(
                    self.gateway.decider.offloading,
                    settings.offload,
                    tuple(self.fleet.rules.links),
                    self.clock.now_us,
                ),
                roles=self._roles,
            ),
            self._lifespan,
        )
        self.protocol: type[GatewayProtocol] = make_protocol(
            self.gateway,
            Gateway.proxies,
            ClientLimits(
                body_bytes_max=settings.server.body_bytes_max,
                headers_max=settings.server.header_count_max,
                head_bytes_max=settings.server.header_bytes_max,
                receive_s_max=settings.server.read_timeout_s,
            ),
            self.ending,
        )
        _warn_of_unpriced_links(settings)
        for worker in settings.fleet.workers:
            self.registry.add(worker.url, role=worker.role, labels=dict(worker.labels), static=True)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the tasks while the application serves."""
        loops: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("health checks", self.health.run),
            ("housekeeping", self._housekeeping),
            ("loop lag", LoopLag(self.metrics.loop_lag).run),
            ("roles", self._roles.run),
        ]
        if self._engine_metrics is not None:
            loops.append(("engine metrics", self._engine_metrics.run))
        if self._keys is not None:
            loops.append(("keys", self._keys.run))
            loops.append(("limits", self.leases.run))
        if self.settings.fleet.links:
            loops.append(("links", self.gateway.link_watch.run))
        if self.fleet.buckets.automatic:
            loops.append(("length buckets", self._planner.run))
        if self._multiprocess:
            loops.append(("metrics", self.metrics.run))
        if self.settings.observability.prometheus_port is not None:
            loops.append(("metrics listener", self._serve_metrics))
        async with self._client:
            shared = asyncio.create_task(_forever("shared log", self.shared.run), name="shared log")
            await self._first_probes()
            tasks = [asyncio.create_task(_forever(name, run), name=name) for name, run in loops]
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
                await _ended(*tasks)
                self.registry.close()
                # Last, so that the last releases still reach the log.
                await _ended(shared)
                if self._trace is not None:
                    self._trace.close()
                logger.info("stopped", extra={"event": "gateway.stopped", "replica": self.replica})

    async def _first_probes(self) -> None:
        probes = [self.health.probe(local) for local in self.registry.all()]
        try:
            async with asyncio.timeout(FIRST_PROBES_S):
                await asyncio.gather(*probes)
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
                self.gateway.given_up(left_us)
            if self.shared.status.connected:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > self.settings.shared.heartbeat_ttl_s:
                for left in self.fleet.cut_off(self.replica, self.clock.now_us()):
                    self.shared.publish(left)
                self.gateway.room.changed()
            expired = self.fleet.collect(self.clock.now_us())
            if expired:
                logger.error(
                    "reservations were never released",
                    extra={"event": "reservation.expired", "count": expired},
                )

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
        await serve_metrics(
            observability.prometheus_host,
            observability.prometheus_port,
            self.metrics.exposition,
            alone=self.settings.server.workers == 1,
        )

    def _report(self) -> None:
        """Tell the metrics what is read rather than counted."""
        status = self.shared.status
        self.metrics.inflight(self.gateway.inflight)
        inversions = self.fleet.tickets.inversions
        self.metrics.queue(
            self.gateway.waiting(),
            inversions=inversions.count,
            inversion_s_max=inversions.us_max / 1e6,
            rooms_overdue=self.gateway.room.overdue,
        )
        self.metrics.degraded(Component.REDIS, on=status.degraded_reason is not None)
        workers = self.registry.all()
        self.metrics.degraded(
            Component.WORKERS, on=not all(local.health is Health.HEALTHY for local in workers)
        )
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
        if self._keys is not None:
            self.metrics.degraded(Component.KEYS, on=self._keys.problem is not None)
            self.metrics.keys_read(loaded=self._keys.loaded_count, refused=self._keys.refused_count)
            self.metrics.degraded(Component.LIMITS, on=self.leases.degraded_reason is not None)
            self.metrics.limits(rounds=self.leases.rounds, shares=self.leases.alone)
        for name, handover in self._handovers.items():
            self.metrics.pairs.handover_events(name, handover.counts)
        self.metrics.pairs.offload_decided(self.gateway.decider.offloading.counts)
        self.metrics.tree(blocks=self.fleet.tree.blocks, nodes=self.fleet.tree.nodes)
        if self._engine_metrics is not None:
            self.metrics.engine_reports(
                reports=self._engine_metrics.reports, failures=self._engine_metrics.failures
            )
        self.metrics.log_lines_dropped(lines_dropped())
        if self._trace is not None:
            self.metrics.trace_lines_dropped(self._trace.dropped)

    def _worker_samples(self) -> list[WorkerSample]:
        now_us = self.clock.now_us()
        return [self._worker_sample(local, now_us) for local in self.registry.all()]

    def _link_state(self, link: str, now_us: int) -> str:
        """The state of a link for a request that would not wait."""
        return self.gateway.decider.offloading.offload.states.state(link, 0.0, now_us).value

    def _link_samples(self) -> list[LinkSample]:
        links, now_us = self.fleet.links, self.clock.now_us()
        samples = []
        for link in sorted(links.rules):
            known = links.measurement(link)
            samples.append(
                LinkSample(
                    link=link,
                    capacity_bytes_per_s=links.capacity_bytes_per_s(link, now_us),
                    cap_bytes_per_s=links.cap_bytes_per_s(link, now_us),
                    reserved_bytes_per_s=links.reserved_bytes_per_s(link, now_us),
                    state=self._link_state(link, now_us),
                    goodput_bytes_per_s=known.bytes_per_s if known is not None else None,
                    rtt_s=links.rtt_s(link),
                    loss_ratio=links.loss_ratio(link),
                )
            )
        return samples

    def _plan_sample(self) -> PlanSample | None:
        plan, threshold_tokens = self.fleet.offload_plan, self.gateway.decider.offloading.threshold_tokens
        if plan is None:
            return None if threshold_tokens is None else PlanSample(threshold_tokens, {}, 0.0)
        return PlanSample(
            threshold_tokens if threshold_tokens != NEVER_TOKENS else inf,
            {PREFILL: plan.prefill, DECODE: plan.decode} if plan.prefill or plan.decode else {},
            plan.gain_ratio,
        )

    def _worker_sample(self, local: LocalWorker, now_us: int) -> WorkerSample:
        fleet, admission, slot = self.fleet, self.gateway.admission, local.worker.slot
        running_max, kv_tokens_max = admission.running_max(slot), admission.kv_tokens_max(slot)
        reported = fleet.reports.get(local.worker.worker_id)
        return WorkerSample(
            worker_id=local.worker.worker_id,
            state=local.state,
            circuit=self.registry.circuits.state(local).value,
            backlog_s=fleet.loads.backlog_at_s(slot, now_us),
            inflight_requests=fleet.loads.inflight_requests.item(slot),
            inflight_tokens=fleet.loads.inflight_tokens.item(slot),
            prefill_tokens=fleet.loads.prefill_tokens.item(slot),
            held_tokens=fleet.tree.held_blocks(slot) * fleet.rules.block_tokens,
            target_s=admission.target_s(slot),
            has_room=admission.has_room(slot, now_us),
            running_max=running_max if running_max < inf else None,
            kv_tokens_max=kv_tokens_max if kv_tokens_max < inf else None,
            report_age_s=(now_us - reported.at_us) / 1e6 if reported is not None else None,
            reported_running=reported.running if reported is not None else -1,
            reported_waiting=reported.waiting if reported is not None else -1,
            reported_kv_tokens=reported.kv_tokens if reported is not None else -1,
            role=local.worker.role,
            site=local.worker.site,
        )


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


def _fleet_rules(settings: Settings, keys: Keyring) -> FleetRules:
    placement = settings.placement
    model = PROFILES["default"]
    if placement.prefill_tokens_per_s is not None:
        model = replace(model, b_s=1.0 / placement.prefill_tokens_per_s)
    return FleetRules(
        block_tokens=placement.block_tokens,
        capacity_tokens=settings.fleet.worker_capacity_tokens,
        blocks_max=placement.tree_blocks_max,
        congestion_max_per_s=placement.congestion_max,
        lifetime_s_max=2 * settings.server.request_timeout_s,
        default_model=model,
        buckets=None
        if placement.bucket_mode == "off"
        else LengthBuckets(tuple(token_count(bound) for bound in placement.length_buckets)),
        buckets_planned=placement.bucket_mode == "auto",
        pools={
            name: CachePool(
                pool.capacity_tokens, pool.fetch_base_s, pool.fetch_tokens_per_s, pool.fetch_tokens_min
            )
            for name, pool in placement.cache_pools.items()
        },
        weight_of=weights(settings.queue.classes, keys.weight_of),
        quantum_s=settings.queue.fairness_quantum_s,
        fairness_window_s=settings.queue.fairness_window_s,
        links={
            name: LinkRules(
                bytes_per_s=link.gbps * 1e9 / 8,
                rtt_s=link.rtt_ms / 1e3,
                cap_ratio=link.cap_ratio,
                loss_ratio_max=link.loss_ratio_max,
            )
            for name, link in settings.fleet.links.items()
        },
        site=settings.fleet.site,
        kv_bytes={
            name: KvBytes(
                model.kv_bytes_per_token, model.window_bytes_per_token, model.window_tokens, model.state_bytes
            )
            for name, model in placement.models.items()
        },
    )


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


def _pool_maker(upstream: UpstreamSettings, tls: ssl.SSLContext) -> Callable[[str], WorkerPool]:
    timeouts = UpstreamTimeouts(
        connect_s=upstream.connect_timeout_s,
        first_byte_s=upstream.first_byte_timeout_s,
        idle_s=upstream.idle_timeout_s,
    )

    def make(url: str) -> WorkerPool:
        return WorkerPool(
            url,
            connections_max=upstream.connections_max,
            # A burst of new streams waits while its connections are made.
            waiting_max=upstream.connections_max,
            idle_s_max=upstream.keepalive_s,
            timeouts=timeouts,
            ssl=tls,
        )

    return make


def _role_rules(settings: Settings) -> RoleRules:
    roles = settings.roles
    return RoleRules(
        apply=roles.mode == "apply", gain_ratio_min=roles.gain_ratio_min, dwell_s=roles.dwell_s_min
    )


def _breaker_rules(settings: Settings) -> BreakerRules | None:
    rules = settings.reliability
    if rules.disable_circuit_breaker:
        return None
    return BreakerRules(
        failure_threshold=rules.cb_failure_threshold,
        success_threshold=rules.cb_success_threshold,
        open_us=round(rules.cb_timeout_duration_secs * 1e6),
    )
