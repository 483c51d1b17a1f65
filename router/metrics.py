"""Recorder of the metrics, and their exposition for Prometheus.

    hot path ──rows──> tallies ──flush──> prometheus-client ──exposition──> scrape
    hooks (gauges read from their owners) ──┘                 └── workers, read at the scrape

`router.app` makes one `Metrics` per process. A scrape flushes first, so it is exact for its own process; the
other processes of the host flush once a second (`Metrics.run`). Every `GATHERED_MAX`-th request flushes, too,
which bounds the tallies.

With several processes, ``PROMETHEUS_MULTIPROC_DIR`` must be in the environment before prometheus-client is
imported: it chooses then between memory and files of that folder.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress, repeat
from operator import attrgetter, is_not, sub
from pathlib import Path
from typing import Generic, Protocol, TypeVar, get_args

from msgspec.structs import astuple
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

from policies import Attempt, Usage
from router import metric_families as families
from router.metric_families import Family
from router.shared import SkipReason
from router.tallies import BatchHistogram, Count, Distribution, Sum, Sums, Total
from router.tenant import Tenant

FLUSH_INTERVAL_S = 1.0

GATHERED_MAX = 1000
"""Most requests between two flushes: adding them up takes 1 ms."""

Sample = tuple[Family, tuple[str, ...], float]
"""A family, its label values, and its value at the scrape."""


class Component(StrEnum):
    """A part that can be degraded."""

    REDIS = "redis"
    WORKERS = "workers"
    KEYS = "keys"
    LIMITS = "limits"
    SETTINGS = "settings"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of one process since it started; see `router.shared.vitals.Vitals`."""

    requests: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    reported_prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    ttft_bounds_s: tuple[float, ...]
    ttft_counts: tuple[int, ...]
    ttft_sum_s: float
    tpot_bounds_s: tuple[float, ...]
    tpot_counts: tuple[int, ...]


class ShadowResult(Protocol):
    """Difference of a shadow policy's choice (`policies.observing.Judged`)."""

    @property
    def agreed(self) -> bool:
        """True if it chose the same worker."""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""

    @property
    def cached_tokens(self) -> float:
        """Cached tokens."""


class EndedRequest(Protocol):
    """A request that ended (`router.gateway.record`)."""

    received_s: float
    ended_s: float
    request_bytes: int
    bytes_sent: int
    outcome: str
    tenant: Tenant
    attempt: Attempt | None
    usage: Usage | None

    @property
    def endpoint(self) -> str | None:
        """None if the request named none."""


_row_of = attrgetter("endpoint", "outcome", "received_s", "ended_s", "request_bytes", "bytes_sent")

Key = TypeVar("Key")
Value = TypeVar("Value")
Tally = TypeVar("Tally", bound=Distribution | Count | Sum | Sums)


class Made(dict[Key, Value], Generic[Key, Value]):
    """Dictionary that makes missing entries."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make

    def __missing__(self, key: Key) -> Value:
        child = self[key] = self._make(key)
        return child


class Metrics:
    """All metrics of one process. For use from the event loop's thread."""

    def __init__(self, version: str, *, multiprocess_dir: str | None = None) -> None:
        """Register all families; ``multiprocess_dir`` is None for a single process."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collect_hooks: list[Callable[[], None]] = []
        """Called before numbers are handed over; they set gauges and totals."""
        self.readers: list[Callable[[], Iterable[Sample]]] = []
        """Called at each scrape for current samples; an owner that is gone leaves no series behind."""
        self._registry = CollectorRegistry()
        self._tallies: list[Distribution | Count | Sum | Sums] = []
        self._totals: dict[tuple[Family, tuple[str, ...]], Total] = {}
        self._counters = {
            family: Counter(family.exposed_name, family.about, family.labels, registry=self._registry)
            for family in families.of_kind("counter")
        }
        self._gauges = {
            family: Gauge(
                family.exposed_name,
                family.about,
                family.labels,
                registry=self._registry,
                multiprocess_mode=family.combine,
            )
            for family in families.of_kind("gauge")
        }
        self._histograms = {
            family: BatchHistogram(
                family.exposed_name,
                family.about,
                family.labels,
                registry=self._registry,
                buckets=family.buckets,
            )
            for family in families.of_kind("histogram")
        }
        self.counts: Made[Family, Count] = Made(
            lambda family: self._kept(Count(self._counters[family], len(family.labels)))
        )
        """Counts events by their labels."""
        self.sums: Made[Family, Sum] = Made(lambda family: self._kept(Sum(self._counters[family])))
        """Adds amounts to counters without labels."""
        self.labelled_sums: Made[Family, Sums] = Made(lambda family: self._kept(Sums(self._counters[family])))
        """Adds amounts to counters with one label."""
        self.distributions = Made(self._distribution)
        """Takes observations; of a histogram with a label, by the family and the label's value."""
        self._tenant_tokens = self._kept(
            Sums(
                self._counters[families.TENANT_PROMPT_TOKENS],
                self._counters[families.TENANT_CACHED_TOKENS],
                self._counters[families.TENANT_OUTPUT_TOKENS],
            )
        )
        self._decided: list[tuple[str, str, float]] = []
        """Policy, reason and seconds of each decision since the last flush."""
        self.decided: Callable[[tuple[str, str, float]], None] = self._decided.append
        """A request was placed: by a policy, for a reason, after seconds of deciding."""
        self._ended: list[tuple[str | None, str, float, float, int, int]] = []
        """The row of each request since the last flush (`_row_of`)."""
        self._reported: list[tuple[Usage, int]] = []
        """Report of each request since then, with the predicted cached tokens."""
        self.set(families.BUILD_INFO, 1, version)
        for component in Component:
            self.degraded(component, on=False)
        for reason in get_args(SkipReason):
            self.follow(families.OPS_SKIPPED, 0, reason)
        self.keys_read(loaded=0, refused=0)
        self._multiprocess_dir = multiprocess_dir
        self._exposed = self._registry
        if multiprocess_dir is not None:
            self._exposed = CollectorRegistry()
            MultiProcessCollector(self._exposed, multiprocess_dir)  # type: ignore[no-untyped-call]
        self._exposed.register(_Read(self))

    # The hot path.

    def shadowed(self, policy: str, judged: ShadowResult | None) -> None:
        """Record a shadow placement; None if the shadow policy had no candidate."""
        if judged is None:
            self.counts[families.SHADOW_DECISIONS].add((policy, "unplaced"))
            return
        self.counts[families.SHADOW_DECISIONS].add((policy, "agreed" if judged.agreed else "differed"))
        self.distributions[families.SHADOW_TTFT_DIFFERENCE].observe(judged.ttft_s)
        self.distributions[families.SHADOW_CACHED_DIFFERENCE].observe(judged.cached_tokens)

    def streamed(self, ttft_s: float, ttft_error_s: float | None, decode_s: float, tokens: int) -> None:
        """Record a complete stream of a worker; of other answers the first byte is not the first token.

        Args:
            ttft_s: From the client's last byte to the answer's first.
            ttft_error_s: Observed minus predicted, of the attempt that answered; None if that is not known.
            decode_s: From the answer's first byte to its end.
            tokens: As reported, or its pieces, which are about its tokens.
        """
        self.distributions[families.TTFT_SECONDS].observe(ttft_s)
        if ttft_error_s is not None:
            self.distributions[families.TTFT_ERROR].observe(ttft_error_s)
        if tokens > 1:
            self.distributions[families.ITL_SECONDS].observe(decode_s / (tokens - 1))

    def ended(self, request: EndedRequest) -> None:
        """Count a request that ended, and the tokens that its worker reported."""
        rows, usage, attempt = self._ended, request.usage, request.attempt
        rows.append(_row_of(request))
        if usage is not None and attempt is not None:
            self._reported.append((usage, attempt.chosen.safe_tokens))
        if request.tenant.configured:
            self._count_for_tenant(request.tenant.name, request.outcome, usage)
        if len(rows) >= GATHERED_MAX:
            self._add_up()

    def _count_for_tenant(self, tenant: str, outcome: str, usage: Usage | None) -> None:
        self.counts[families.TENANT_REQUESTS].add((tenant, outcome))
        if usage is not None:
            cached_tokens, output_tokens = usage.cached_tokens or 0, usage.completion_tokens or 0
            self._tenant_tokens.add((tenant, usage.prompt_tokens, cached_tokens, output_tokens))

    def limit_rejected(self, tenant: str, limit: str) -> None:
        """A limit of a tenant rejected a request."""
        self.counts[families.LIMIT_REJECTIONS].add((tenant, limit))

    def admin_change(self, outcome: str) -> None:
        """A request for a change was answered (`router.admin.audit`)."""
        self.counts[families.ADMIN_CHANGES].add((outcome,))

    def client_refused(self, reason: str) -> None:
        """Count a client refused before its request was read (`router.proxy.Refusal`)."""
        self.counts[families.CLIENTS_REFUSED].add((reason,))

    def wait_ended(self, class_name: str, outcome: str, wait_s: float) -> None:
        """Record a wait that ended, or that was not allowed to begin."""
        self.counts[families.WAITS].add((class_name, outcome))
        if outcome == "dispatched":
            self.distributions[families.WAIT_SECONDS, class_name].observe(wait_s)

    # Reports of hooks.

    def queue(
        self,
        waiting: Iterable[tuple[str, int, int]],
        *,
        drain_s: float,
        inversions: int,
        inversion_s_max: float,
        rooms_overdue: int,
    ) -> None:
        """Set the state of the waiting queue, with totals since the start.

        Args:
            waiting: Class name, requests waiting here, and their uncached tokens, for each class.
            drain_s: Time to drain the slowest lane, over all replicas.
            inversions: Number over all replicas; ``inversion_s_max`` is the longest.
            inversion_s_max: In seconds.
            rooms_overdue: Number of this process.
        """
        for name, requests, tokens in waiting:
            self.set(families.WAITING_REQUESTS, requests, name)
            self.set(families.WAITING_TOKENS, tokens, name)
        self.set(families.QUEUE_DRAIN, drain_s)
        self.follow(families.INVERSIONS, inversions)
        self.set(families.INVERSION_MAX, inversion_s_max)
        self.follow(families.ROOMS_OVERDUE, rooms_overdue)

    def degraded(self, component: Component, *, on: bool) -> None:
        """Set whether a component is degraded."""
        self.set(families.DEGRADED, on, component.value)

    def shared_log(
        self,
        *,
        lag_s: float,
        snapshot_age_s: float | None,
        buffered_ops: int,
        published_ops: int,
        applied_ops: int,
        dropped_ops: int,
        shortened: int,
        incomplete: int,
        skipped_ops: Mapping[SkipReason, int],
        snapshots_refused: int,
    ) -> None:
        """Set the state of the shared log, with totals since the start."""
        self.set(families.LOG_LAG, lag_s)
        if snapshot_age_s is not None:
            self.set(families.SNAPSHOT_AGE, snapshot_age_s)
        self.set(families.LOG_BUFFER, buffered_ops)
        self.follow(families.OPS_PUBLISHED, published_ops)
        self.follow(families.OPS_APPLIED, applied_ops)
        self.follow(families.OPS_DROPPED, dropped_ops)
        self.follow(families.PLACEMENTS_SHORTENED, shortened)
        self.follow(families.PLACEMENTS_INCOMPLETE, incomplete)
        for reason, ops in skipped_ops.items():
            self.follow(families.OPS_SKIPPED, ops, reason)
        self.follow(families.SNAPSHOTS_REFUSED, snapshots_refused)

    def keys_read(self, *, loaded: int, refused: int) -> None:
        """Set how often a keys file was read since the start of this process, with success or not."""
        self.follow(families.KEYS_READ, loaded, "loaded")
        self.follow(families.KEYS_READ, refused, "refused")

    def follow(self, family: Family, total: float, *labels: str) -> None:
        """Raise a counter to a total since the start that its owner counts."""
        counted = self._totals.get((family, labels))
        if counted is None:
            counter = self._counters[family]
            counted = self._totals[family, labels] = Total(counter.labels(*labels) if labels else counter)
        counted.follow(total)

    def set(self, family: Family, value: float, *labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[family]
        (gauge.labels(*labels) if labels else gauge).set(value)

    # Towards Prometheus.

    def flush(self) -> None:
        """Run the hooks and flush the tallies."""
        for hook in self.collect_hooks:
            hook()
        self._add_up()

    def _add_up(self) -> None:
        if self._decided:
            policies, reasons, seconds = zip(*self._decided, strict=True)
            self.counts[families.DECISIONS].add_all(zip(policies, reasons, strict=True))
            self.distributions[families.DECISION_TIME].observe_all(seconds)
            self._decided.clear()
        if self._ended:
            self._count_requests()
        if self._reported:
            self._count_tokens()
        for tally in self._tallies:
            tally.flush()

    def _count_requests(self) -> None:
        endpoints, outcomes, received_s, ended_s, received, sent = zip(*self._ended, strict=True)
        self._ended.clear()
        names = [endpoint or "none" for endpoint in endpoints] if None in endpoints else endpoints
        self.counts[families.REQUESTS].add_all(zip(names, outcomes, strict=True))
        self.sums[families.REQUEST_BYTES].add(sum(received))
        self.sums[families.ANSWER_BYTES].add(sum(sent))
        for name in set(names):
            of_name = compress(map(sub, ended_s, received_s), map(name.__eq__, names))
            self.distributions[families.REQUEST_SECONDS, name].observe_all(of_name)

    def _count_tokens(self) -> None:
        usages, predicted = zip(*self._reported, strict=True)
        prompts, cached, outputs, possible = zip(*map(astuple, usages), strict=True)
        self._reported.clear()
        self.sums[families.IMPOSSIBLE_USAGE].add(possible.count(False))
        self.sums[families.PROMPT_TOKENS].add(sum(prompts))
        self.sums[families.OUTPUT_TOKENS].add(sum(filter(None, outputs)))
        if None in cached:
            told = [*map(is_not, cached, repeat(None))]
            columns = (prompts, cached, predicted)
            prompts, cached, predicted = (tuple(compress(column, told)) for column in columns)
        self.sums[families.REPORTED_PROMPT_TOKENS].add(sum(prompts))
        self.sums[families.REPORTED_CACHED_TOKENS].add(sum(cached))
        self.sums[families.PREDICTED_CACHED_TOKENS].add(sum(predicted))
        self.distributions[families.CACHED_ERROR].observe_all(map(sub, predicted, cached))

    def totals(self) -> Totals:
        """Return the counts of this process since it started."""
        self._add_up()
        ttft_counts, ttft_sum_s = self.distributions[families.TTFT_SECONDS].totals()
        tpot_counts, _ = self.distributions[families.ITL_SECONDS].totals()
        return Totals(
            self.counts[families.REQUESTS].totals("outcome"),
            int(self.sums[families.PROMPT_TOKENS].total()),
            int(self.sums[families.OUTPUT_TOKENS].total()),
            int(self.sums[families.REPORTED_PROMPT_TOKENS].total()),
            int(self.sums[families.REPORTED_CACHED_TOKENS].total()),
            int(self.sums[families.PREDICTED_CACHED_TOKENS].total()),
            families.TTFT_SECONDS.buckets,
            ttft_counts,
            ttft_sum_s,
            families.ITL_SECONDS.buckets,
            tpot_counts,
        )

    def exposition(self) -> tuple[bytes, str]:
        """Answer a scrape: the body and its content type."""
        self.flush()
        if self._multiprocess_dir is not None:
            _forget_dead_processes(self._multiprocess_dir)
        return generate_latest(self._exposed), CONTENT_TYPE_LATEST

    async def run(self) -> None:
        """Flush once a second, until cancelled, so that other processes of the host report our numbers.

        `router.app` owns it and starts it for several processes only. A hook that raises ends it.
        """
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            self.flush()

    def _kept(self, tally: Tally) -> Tally:
        self._tallies.append(tally)
        return tally

    def _distribution(self, key: Family | tuple[Family, str]) -> Distribution:
        family, *labels = (key,) if isinstance(key, Family) else key
        histogram = self._histograms[family]
        return self._kept(Distribution(histogram.labels(*labels) if labels else histogram, family.buckets))


def _forget_dead_processes(folder: str) -> None:
    """Drop the gauges of ended processes; their counts stay."""
    for pid in {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*.db")}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


class _Read(Collector):
    """Collector of the readers' samples, one family after the other."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield every family, also those without samples."""
        gauges = {
            family: GaugeMetricFamily(family.exposed_name, family.about, labels=family.labels)
            for family in families.of_kind("worker")
        }
        for reader in self._metrics.readers:
            for family, labels, value in reader():
                gauges[family].add_metric(labels, value)
        return gauges.values()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: a registry that asks at registration would ask for workers that are not there yet."""
        return ()
