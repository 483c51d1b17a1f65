"""Recording what happens, and telling it to Prometheus.

    hot path ──> tallies ──flush──> prometheus-client ──exposition──> scrape
    hooks (gauges read from their owners) ──┘                 └── workers, read at the scrape

One `Metrics` per process, made by `router.app`. A scrape flushes first, so it is exact for its own process;
the other processes of the host flush once a second (`Metrics.run`), so it is at most that late for them. And
whoever counts the `GATHERED_MAX`-th request flushes, which bounds what the tallies hold.

With several processes, ``PROMETHEUS_MULTIPROC_DIR`` must be in the environment before
prometheus-client is imported: it chooses then whether numbers live in memory or in files of that folder.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from policies import Judged
from router import metric_families as families
from router.discovery_metrics import DiscoveryMetrics, DiscoverySample
from router.kv_events_metrics import KvEventsMetrics, KvEventsSample
from router.metric_families import Family
from router.pair_metrics import LinkSample, PairMetrics, PlanSample
from router.shared import SkipReason
from router.tallies import BatchHistogram, Count, Distribution, Sum, Sums, Total
from router.tokenizing_metrics import TokenizingMetrics

FLUSH_INTERVAL_S = 1.0

GATHERED_MAX = 1000
"""Requests whose numbers are gathered at most: adding them up takes 1 ms."""

_CIRCUIT = {"closed": 0, "half_open": 1, "open": 2}


class Component(StrEnum):
    """What can be degraded."""

    REDIS = "redis"
    WORKERS = "workers"
    KEYS = "keys"
    LIMITS = "limits"
    SETTINGS = "settings"
    KUBERNETES = "kubernetes"


class WorkerState(StrEnum):
    """States of a worker that `Metrics` reports."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at the moment of a scrape.

    Attributes:
        worker_id: Its id.
        state: Its `WorkerState`.
        circuit: ``closed``, ``half_open`` or ``open``.
        backlog_s: Seconds of prefill reserved by all replicas.
        inflight_requests: Requests in flight, of all replicas.
        inflight_tokens: Their prompt and expected output tokens.
        prefill_tokens: Uncached tokens not yet prefilled.
        held_tokens: Tokens the tree believes it holds.
        target_s: Backlog up to which it gets more.
        has_room: Whether it would get more now.
        running_max: Most requests it may have in flight; None for no bound.
        kv_tokens_max: Most tokens that its running requests may hold; None for no bound.
        report_age_s: Of what its engine said last; None if it never did, and what it said (-1 for nothing):
        reported_running: Requests running.
        reported_waiting: Requests waiting.
        reported_kv_tokens: Tokens held.
        role: What it is for.
        site: Where it stands; empty for the local site.
    """

    worker_id: str
    state: str
    circuit: str
    backlog_s: float
    inflight_requests: float
    inflight_tokens: float
    prefill_tokens: float
    held_tokens: float
    target_s: float = 0.0
    has_room: bool = True
    running_max: float | None = None
    kv_tokens_max: float | None = None
    report_age_s: float | None = None
    reported_running: int = -1
    reported_waiting: int = -1
    reported_kv_tokens: int = -1
    role: str = "plain"
    site: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """What one process has counted since it started; for the meaning see `router.shared.vitals.Vitals`."""

    requests: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    reported_prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    ttft_bounds_s: tuple[float, ...]
    ttft_counts: tuple[int, ...]
    ttft_sum_s: float


class ReportedUsage(Protocol):
    """What a worker says of one answer."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt length."""

    @property
    def cached_tokens(self) -> int | None:
        """How much of it was cached; None if not reported."""

    @property
    def completion_tokens(self) -> int | None:
        """Output length; None if not reported."""


class Metrics:
    """All metrics of one process. For use from the event loop's thread."""

    def __init__(self, version: str, *, multiprocess_dir: str | None = None) -> None:
        """Register all families.

        Args:
            version: Of the gateway.
            multiprocess_dir: The value of ``PROMETHEUS_MULTIPROC_DIR``; None for a single process.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collect_hooks: list[Callable[[], None]] = []
        """Called before numbers are handed over; they set gauges and totals."""
        self.workers: Callable[[], Iterable[WorkerSample]] = tuple
        """Asked for the workers at each scrape."""
        self.tenant_keys_end: Callable[[], Iterable[tuple[str, float]]] = tuple
        """Asked at each scrape for the tenants whose keys all expire, and when the last one does (Unix)."""
        self._registry = CollectorRegistry()
        self._tallies: list[Distribution | Count | Sum | Sums] = []
        self._gathered = 0

        self._requests = self._count(families.REQUESTS)
        self._decisions = self._count(families.DECISIONS)
        self._shadow_decisions = self._count(families.SHADOW_DECISIONS)
        self._prompt_tokens = self._sum(families.PROMPT_TOKENS)
        self._output_tokens = self._sum(families.OUTPUT_TOKENS)
        self._reported_prompt_tokens = self._sum(families.REPORTED_PROMPT_TOKENS)
        self._reported_cached_tokens = self._sum(families.REPORTED_CACHED_TOKENS)
        self._predicted_cached_tokens = self._sum(families.PREDICTED_CACHED_TOKENS)
        self._redispatches = self._count(families.REDISPATCHES)
        self._requests_at_fault = self._counter(families.REQUESTS_AT_FAULT)
        self._limit_rejections = self._count(families.LIMIT_REJECTIONS)
        self._upstream_errors = self._count(families.UPSTREAM_ERRORS)
        self._client_disconnects = self._sum(families.CLIENT_DISCONNECTS)
        self._admin_changes = self._count(families.ADMIN_CHANGES)
        self._clients_refused = self._count(families.CLIENTS_REFUSED)
        self._encoder_parts = self._count(families.ENCODER_PARTS)
        self._encoder_moves = self._sum(families.ENCODER_MOVES)
        self._waits = self._count(families.WAITS)
        self._tenant_requests = self._count(families.TENANT_REQUESTS)
        self._tenant_tokens = self._sums(
            families.TENANT_PROMPT_TOKENS, families.TENANT_CACHED_TOKENS, families.TENANT_OUTPUT_TOKENS
        )
        self._request_bytes = self._sum(families.REQUEST_BYTES)
        self._answer_bytes = self._sum(families.ANSWER_BYTES)

        self._ttft_s = self._distribution(families.TTFT_SECONDS)
        self._itl_s = self._distribution(families.ITL_SECONDS)
        self._decision_s = self._distribution(families.DECISION_TIME)
        self._cached_error = self._distribution(families.CACHED_ERROR)
        self._ttft_error_s = self._distribution(families.TTFT_ERROR)
        self._shadow_ttft_s = self._distribution(families.SHADOW_TTFT_DIFFERENCE)
        self._shadow_cached = self._distribution(families.SHADOW_CACHED_DIFFERENCE)
        self._loop_lag_s = self._distribution(families.LOOP_LAG)
        self._durations = self._histogram(families.REQUEST_SECONDS)
        self._duration_s: dict[str, Distribution] = {}
        self._waits_s = self._histogram(families.WAIT_SECONDS)
        self._wait_s: dict[str, Distribution] = {}

        self._inflight = self._gauge(families.INFLIGHT_REQUESTS)
        self._client_connections = self._gauge(families.CLIENT_CONNECTIONS)
        self._held_bytes = self._gauge(families.HELD_BYTES)
        self._workers_spared = self._gauge(families.WORKERS_SPARED)
        self._waiting_requests = self._gauge(families.WAITING_REQUESTS)
        self._waiting_tokens = self._gauge(families.WAITING_TOKENS)
        self._inversion_max_s = self._gauge(families.INVERSION_MAX)
        self._queue_drain_s = self._gauge(families.QUEUE_DRAIN)
        self._degraded = self._gauge(families.DEGRADED)
        self._settings = self._gauge(families.SETTINGS_OVERRIDDEN)
        self._log_lag = self._gauge(families.LOG_LAG)
        self._snapshot_age = self._gauge(families.SNAPSHOT_AGE)
        self._log_buffer = self._gauge(families.LOG_BUFFER)
        self._tree_blocks = self._gauge(families.TREE_BLOCKS)
        self._tree_nodes = self._gauge(families.TREE_NODES)
        self._gauge(families.BUILD_INFO).labels(version).set(1)

        self._ops_published = Total(self._counter(families.OPS_PUBLISHED))
        self._ops_applied = Total(self._counter(families.OPS_APPLIED))
        self._ops_dropped = Total(self._counter(families.OPS_DROPPED))
        skipped = self._counter(families.OPS_SKIPPED)
        self._ops_skipped = {reason: Total(skipped.labels(reason)) for reason in get_args(SkipReason)}
        self._snapshots_refused = Total(self._counter(families.SNAPSHOTS_REFUSED))
        self._inversions = Total(self._counter(families.INVERSIONS))
        self._rooms_overdue = Total(self._counter(families.ROOMS_OVERDUE))
        self._engine_reports = Total(self._counter(families.ENGINE_REPORTS))
        self._engine_report_failures = Total(self._counter(families.ENGINE_REPORT_FAILURES))
        self._probes_rebuilt = Total(self._counter(families.PROBES_REBUILT))
        self._lines_dropped = Total(self._counter(families.LOG_LINES_DROPPED))
        self._trace_lines_dropped = Total(self._counter(families.TRACE_LINES_DROPPED))
        self._limit_rounds = Total(self._counter(families.LIMIT_ROUNDS))
        self._limit_shares = Total(self._counter(families.LIMIT_SHARES))
        keys_read = self._counter(families.KEYS_READ)
        self._keys_loaded = Total(keys_read.labels("loaded"))
        self._keys_refused = Total(keys_read.labels("refused"))

        collectors: list[Collector] = [_Workers(self), _Tenants(self)]
        self.pairs = PairMetrics(self._count, self._sums, self._counter, collectors.append)
        """What happens to requests that two workers share, and to links."""
        self.discovery = DiscoveryMetrics(self._counter, collectors.append)
        """What is seen of pods."""
        self.kv_events = KvEventsMetrics(self._counter, collectors.append)
        """What engines say of their caches."""
        self.tokenizing = TokenizingMetrics(self._count, self._distribution)
        """What becomes of prompts of models with a tokenizer."""

        for component in Component:
            self.degraded(component, on=False)
        self._multiprocess_dir = multiprocess_dir
        self._exposed = self._registry
        if multiprocess_dir is not None:
            self._exposed = CollectorRegistry()
            MultiProcessCollector(self._exposed, multiprocess_dir)  # type: ignore[no-untyped-call]
        for collector in collectors:
            self._exposed.register(collector)

    # The hot path.

    def decided(self, policy: str, reason: str, decision_s: float) -> None:
        """A request was placed."""
        self._decisions.add((policy, reason))
        self._decision_s.observe(decision_s)

    def shadowed(self, policy: str, judged: Judged | None) -> None:
        """A second policy was asked about a placement; None: it considered nobody."""
        if judged is None:
            self._shadow_decisions.add((policy, "unplaced"))
            return
        self._shadow_decisions.add((policy, "agreed" if judged.agreed else "differed"))
        self._shadow_ttft_s.observe(judged.ttft_s)
        self._shadow_cached.observe(judged.cached_tokens)

    def answered(
        self,
        streamed: bool,
        ttft_s: float,
        ttft_error_s: float,
        decode_s: float,
        pieces: int,
        predicted_cached_tokens: int,
        usage: ReportedUsage | None,
        tenant: str = "",
    ) -> None:
        """A worker's answer is complete.

        Args:
            streamed: Whether it was a stream: only then the first byte is the first token.
            ttft_s: From the client's last byte to the answer's first.
            ttft_error_s: Observed minus predicted, of the attempt that answered.
            decode_s: From the answer's first byte to its end.
            pieces: In how many pieces it came: about its tokens, where the worker did not report those.
            predicted_cached_tokens: What placement expected.
            usage: What the worker reported, if it did.
            tenant: Whose it was; empty if the keys file does not name them.
        """
        output_tokens = None if usage is None else usage.completion_tokens
        if streamed:
            self._ttft_s.observe(ttft_s)
            self._ttft_error_s.observe(ttft_error_s)
            steps = (output_tokens or pieces) - 1
            if steps > 0:
                self._itl_s.observe(decode_s / steps)
        if usage is None:
            return
        self._prompt_tokens.add(usage.prompt_tokens)
        if output_tokens:
            self._output_tokens.add(output_tokens)
        cached_tokens = usage.cached_tokens
        if cached_tokens is not None:
            self._reported_prompt_tokens.add(usage.prompt_tokens)
            self._reported_cached_tokens.add(cached_tokens)
            self._predicted_cached_tokens.add(predicted_cached_tokens)
            self._cached_error.observe(predicted_cached_tokens - cached_tokens)
        if tenant:
            self._tenant_tokens.add((tenant, usage.prompt_tokens, cached_tokens or 0, output_tokens or 0))

    def finished(
        self,
        endpoint: str | None,
        outcome: str,
        duration_s: float,
        request_bytes: int = 0,
        answer_bytes: int = 0,
        tenant: str = "",
    ) -> None:
        """A request ended.

        Args:
            endpoint: Its endpoint; None if it named none.
            outcome: ``completed``, ``client_left``, ``worker_error`` or the ``code`` of the error.
            duration_s: From the last byte of the request to the last byte of the answer.
            request_bytes: Length of its body.
            answer_bytes: Length of the body sent back.
            tenant: Whose it was; empty if the keys file does not name them.
        """
        name = "none" if endpoint is None else endpoint
        self._requests.add((name, outcome))
        if tenant:
            self._tenant_requests.add((tenant, outcome))
        self._request_bytes.add(request_bytes)
        self._answer_bytes.add(answer_bytes)
        duration = self._duration_s.get(name)
        if duration is None:
            duration = self._duration_s[name] = self._bound(
                self._durations.labels(name), families.REQUEST_SECONDS
            )
        duration.observe(duration_s)
        self._gathered += 1
        if self._gathered >= GATHERED_MAX:
            self._add_up()

    def redispatched(self, reason: str) -> None:
        """A request goes to another worker."""
        self._redispatches.add((reason,))

    def spared(self, workers: int) -> None:
        """Set how many workers take requests although their circuits are open."""
        self._workers_spared.set(workers)

    def request_at_fault(self) -> None:
        """Two workers failed the same request."""
        self._requests_at_fault.inc()

    def limit_rejected(self, tenant: str, limit: str) -> None:
        """A limit of a tenant rejected a request."""
        self._limit_rejections.add((tenant, limit))

    def upstream_failed(self, worker_id: str, kind: str) -> None:
        """An attempt failed on a worker."""
        self._upstream_errors.add((worker_id, kind))

    def client_left(self) -> None:
        """A client left before its answer was complete."""
        self._client_disconnects.add(1)

    def admin_change(self, outcome: str) -> None:
        """A request for a change was answered (`router.admin.audit`)."""
        self._admin_changes.add((outcome,))

    def client_refused(self, reason: str) -> None:
        """A client was refused before anybody looked at its request (`router.proxy.Refusal`)."""
        self._clients_refused.add((reason,))

    def part_ended(self, outcome: str) -> None:
        """A part of a request was encoded, or not (`router.encoding.PartEnd`)."""
        self._encoder_parts.add((outcome,))

    def part_moved(self) -> None:
        """A part goes to another encoder than that of its media."""
        self._encoder_moves.add(1)

    def wait_ended(self, class_name: str, outcome: str, wait_s: float) -> None:
        """A wait ended, or was not allowed to begin.

        Args:
            class_name: Of the request.
            outcome: A `policies.WaitEnd`.
            wait_s: How long it was.
        """
        self._waits.add((class_name, outcome))
        if outcome != "dispatched":
            return
        waited = self._wait_s.get(class_name)
        if waited is None:
            waited = self._wait_s[class_name] = self._bound(
                self._waits_s.labels(class_name), families.WAIT_SECONDS
            )
        waited.observe(wait_s)

    def loop_lag(self, lag_s: float) -> None:
        """The event loop came this late to what was due."""
        self._loop_lag_s.observe(lag_s)

    # What hooks tell.

    def inflight(self, requests: int) -> None:
        """Set how many requests have not ended."""
        self._inflight.set(requests)

    def client_connections(self, connections: int) -> None:
        """Set how many connections clients have."""
        self._client_connections.set(connections)

    def held_bytes(self, size: int) -> None:
        """Set how many bytes the bodies of requests have that are held."""
        self._held_bytes.set(size)

    def queue(
        self,
        waiting: Iterable[tuple[str, int, int]],
        *,
        drain_s: float,
        inversions: int,
        inversion_s_max: float,
        rooms_overdue: int,
    ) -> None:
        """Set the state of the waiting queue; what is counted is a total since the start of this process.

        Args:
            waiting: For each class its name, how many requests wait here, and their uncached tokens.
            drain_s: Of the lane that takes longest, over all replicas.
            inversions: Of all replicas.
            inversion_s_max: The worst of them.
            rooms_overdue: Of this process.
        """
        for name, requests, tokens in waiting:
            self._waiting_requests.labels(name).set(requests)
            self._waiting_tokens.labels(name).set(tokens)
        self._queue_drain_s.set(drain_s)
        self._inversions.follow(inversions)
        self._inversion_max_s.set(inversion_s_max)
        self._rooms_overdue.follow(rooms_overdue)

    def degraded(self, component: Component, *, on: bool) -> None:
        """Set whether a component is degraded."""
        self._degraded.labels(component.value).set(on)

    def settings_overridden(self, *, used: int, refused: int) -> None:
        """Set how many settings were changed at run time, which this replica uses or cannot use."""
        self._settings.labels("used").set(used)
        self._settings.labels("refused").set(refused)

    def shared_log(
        self,
        *,
        lag_s: float,
        snapshot_age_s: float | None,
        buffered_ops: int,
        published_ops: int,
        applied_ops: int,
        dropped_ops: int,
        skipped_ops: Mapping[SkipReason, int],
        snapshots_refused: int,
    ) -> None:
        """Set the state of the shared log; what is counted is a total since the start of this process."""
        self._log_lag.set(lag_s)
        if snapshot_age_s is not None:
            self._snapshot_age.set(snapshot_age_s)
        self._log_buffer.set(buffered_ops)
        self._ops_published.follow(published_ops)
        self._ops_applied.follow(applied_ops)
        self._ops_dropped.follow(dropped_ops)
        for reason, ops in skipped_ops.items():
            self._ops_skipped[reason].follow(ops)
        self._snapshots_refused.follow(snapshots_refused)

    def engine_reports(self, *, reports: int, failures: int) -> None:
        """Set how many looks at workers' metrics told something, and did not, since the start."""
        self._engine_reports.follow(reports)
        self._engine_report_failures.follow(failures)

    def probes_rebuilt(self, rebuilt: int) -> None:
        """Set how often health checks were stuck since the start."""
        self._probes_rebuilt.follow(rebuilt)

    def tree(self, *, blocks: int, nodes: int) -> None:
        """Set the size of the prefix tree."""
        self._tree_blocks.set(blocks)
        self._tree_nodes.set(nodes)

    def log_lines_dropped(self, total: int) -> None:
        """Set how many log lines were dropped since the start of this process."""
        self._lines_dropped.follow(total)

    def trace_lines_dropped(self, total: int) -> None:
        """Set how many lines of the request trace were dropped since the start of this process."""
        self._trace_lines_dropped.follow(total)

    def keys_read(self, *, loaded: int, refused: int) -> None:
        """Set how often a keys file was read since the start of this process, with success or not."""
        self._keys_loaded.follow(loaded)
        self._keys_refused.follow(refused)

    def limits(self, *, rounds: int, shares: int) -> None:
        """Set how the limits of tenants were kept since the start of this process."""
        self._limit_rounds.follow(rounds)
        self._limit_shares.follow(shares)

    # What is asked at each scrape.

    def ask(
        self,
        hooks: Iterable[Callable[[], None]],
        *,
        workers: Callable[[], Iterable[WorkerSample]],
        links: Callable[[], Iterable[LinkSample]],
        plan: Callable[[], PlanSample | None],
        kv_events: Callable[[], KvEventsSample],
        discovery: Callable[[], DiscoverySample | None],
        tenant_keys_end: Callable[[], Iterable[tuple[str, float]]],
    ) -> None:
        """Ask these at each scrape from now on; the hooks first, which set gauges and totals."""
        self.collect_hooks += hooks
        self.workers, self.tenant_keys_end = workers, tenant_keys_end
        self.pairs.links, self.pairs.plan = links, plan
        self.kv_events.sample, self.discovery.sample = kv_events, discovery

    # Towards Prometheus.

    def flush(self) -> None:
        """Run the hooks and hand over what has gathered."""
        for hook in self.collect_hooks:
            hook()
        self._add_up()

    def _add_up(self) -> None:
        """Hand over what has gathered."""
        self._gathered = 0
        for tally in self._tallies:
            tally.flush()

    def totals(self) -> Totals:
        """What this process has counted since it started."""
        self._add_up()
        ttft_counts, ttft_sum_s = self._ttft_s.totals()
        return Totals(
            self._requests.totals("outcome"),
            int(self._prompt_tokens.total()),
            int(self._output_tokens.total()),
            int(self._reported_prompt_tokens.total()),
            int(self._reported_cached_tokens.total()),
            int(self._predicted_cached_tokens.total()),
            families.TTFT_SECONDS.buckets,
            ttft_counts,
            ttft_sum_s,
        )

    def exposition(self) -> tuple[bytes, str]:
        """Answer a scrape: the body and its content type."""
        self.flush()
        if self._multiprocess_dir is not None:
            _forget_dead_processes(self._multiprocess_dir)
        return generate_latest(self._exposed), CONTENT_TYPE_LATEST

    async def run(self) -> None:
        """Flush once a second, until cancelled, so that siblings answer scrapes with our numbers.

        Owned by `router.app`; needed only with several processes. A hook that raises ends it, as any
        mistake of ours should.
        """
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            self.flush()

    # Registration.

    def _counter(self, family: Family) -> Counter:
        assert family.kind == "counter"
        return Counter(family.exposed_name, family.about, family.labels, registry=self._registry)

    def _count(self, family: Family) -> Count:
        count = Count(self._counter(family), len(family.labels))
        self._tallies.append(count)
        return count

    def _sum(self, family: Family) -> Sum:
        total = Sum(self._counter(family))
        self._tallies.append(total)
        return total

    def _sums(self, *counted: Family) -> Sums:
        sums = Sums(*map(self._counter, counted))
        self._tallies.append(sums)
        return sums

    def _gauge(self, family: Family) -> Gauge:
        assert family.kind == "gauge"
        return Gauge(
            family.exposed_name,
            family.about,
            family.labels,
            registry=self._registry,
            multiprocess_mode=family.combine,
        )

    def _histogram(self, family: Family) -> BatchHistogram:
        assert family.kind == "histogram"
        return BatchHistogram(
            family.exposed_name, family.about, family.labels, registry=self._registry, buckets=family.buckets
        )

    def _distribution(self, family: Family) -> Distribution:
        return self._bound(self._histogram(family), family)

    def _bound(self, histogram: BatchHistogram, family: Family) -> Distribution:
        distribution = Distribution(histogram, family.buckets)
        self._tallies.append(distribution)
        return distribution


def _forget_dead_processes(folder: str) -> None:
    """Drop the gauges of processes that ended, however they did; what they counted stays counted."""
    for pid in {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*.db")}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


class _Workers(Collector):
    """Tells of workers what is true at the scrape, so that a worker that is gone leaves no series behind."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family after the other, with a sample per worker."""
        samples = list(self._metrics.workers())
        states = _family(families.WORKER_STATE)
        for sample in samples:
            for state in WorkerState:
                states.add_metric([sample.worker_id, state.value], float(sample.state == state.value))
        yield states
        roles = _family(families.WORKER_ROLE)
        for sample in samples:
            roles.add_metric([sample.worker_id, sample.role, sample.site], 1.0)
        yield roles
        for family, value in _WORKER_VALUES:
            gauge = _family(family)
            for sample in samples:
                known = value(sample)
                if known is not None:
                    gauge.add_metric([sample.worker_id], known)
            yield gauge

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: a registry that asks at registration would ask for workers that are not there yet."""
        return ()


class _Tenants(Collector):
    """Tells of tenants what is true at the scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The one family there is."""
        gauge = _family(families.TENANT_KEYS_END)
        for name, end_unix_s in self._metrics.tenant_keys_end():
            gauge.add_metric([name], end_unix_s)
        yield gauge

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, as `_Workers`."""
        return ()


def _family(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.exposed_name, family.about, labels=family.labels)


def _said(value: int) -> int | None:
    """What an engine reported, if it did."""
    return value if value >= 0 else None


_WORKER_VALUES: tuple[tuple[Family, Callable[[WorkerSample], float | None]], ...] = (
    (families.CIRCUIT_STATE, lambda sample: _CIRCUIT[sample.circuit]),
    (families.WORKER_BACKLOG, lambda sample: sample.backlog_s),
    (families.WORKER_REQUESTS, lambda sample: sample.inflight_requests),
    (families.WORKER_TOKENS, lambda sample: sample.inflight_tokens),
    (families.WORKER_PREFILL, lambda sample: sample.prefill_tokens),
    (families.WORKER_HELD, lambda sample: sample.held_tokens),
    (families.WORKER_TARGET, lambda sample: sample.target_s),
    (families.WORKER_ROOM, lambda sample: sample.has_room),
    (families.WORKER_RUNNING_MAX, lambda sample: sample.running_max),
    (families.WORKER_KV_MAX, lambda sample: sample.kv_tokens_max),
    (families.REPORT_AGE, lambda sample: sample.report_age_s),
    (families.REPORTED_RUNNING, lambda sample: _said(sample.reported_running)),
    (families.REPORTED_WAITING, lambda sample: _said(sample.reported_waiting)),
    (families.REPORTED_KV, lambda sample: _said(sample.reported_kv_tokens)),
)
