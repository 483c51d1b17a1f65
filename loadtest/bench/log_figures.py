"""What a soak of the shared log showed, as text (`loadtest.bench.shared_log` says what is measured how)."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.bench.log_replica import LAG_BIN_US, ReplicaReport
from loadtest.bench.trend import Series, Trend, plot

TABLE_ROWS = 12
LATE_S = 0.1
"""A publisher that is later than this in most intervals had no processor, whatever the log costs."""


@dataclass(frozen=True, slots=True)
class RedisSample:
    """What Valkey says about itself and our keys."""

    at_s: float
    entries: int
    log_bytes: int
    snapshot_bytes: int
    memory_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Soak:
    """A run, while it is recorded and after.

    Attributes:
        began_s: Monotonic seconds of the start.
        warm_s: Monotonic seconds at which the measured window begins.
        replicas: Reports of those that published.
        observer: Reports of the one that only applied.
        dry: Reports of the one that published to itself.
        idle: Reports of the one that did nothing.
        redis: Samples of Valkey.
    """

    began_s: float
    warm_s: float
    replicas: Sequence[list[ReplicaReport]]
    observer: list[ReplicaReport]
    dry: list[ReplicaReport]
    idle: list[ReplicaReport]
    redis: list[RedisSample]

    def progress(self) -> str | None:
        """One line about the last interval; None before there was one."""
        if not self.redis or any(len(reports) < 2 for reports in self.replicas):
            return None
        sample, newest = self.redis[-1], [reports[-1] for reports in self.replicas]
        ops_per_s = sum(Rates.of(reports[-2:]).published_ops for reports in self.replicas)
        lags = lag_counts(newest)
        degraded = {report.degraded for report in newest if report.degraded}
        return (
            f"{sample.at_s - self.began_s:5.0f} s {ops_per_s:6.0f} ops/s, "
            f"lag P50 {quantile_ms(lags, 0.5):.1f} P99 {quantile_ms(lags, 0.99):.1f} ms, "
            f"RSS {statistics.mean(report.rss_bytes for report in newest) / 1e6:.1f} MB, "
            f"log {sample.entries:,} entries {sample.log_bytes / 1e6:.1f} MB, "
            f"snapshot {sample.snapshot_bytes / 1e6:.2f} MB, Valkey {sample.memory_bytes / 1e6:.1f} MB"
            + "".join(f", DEGRADED: {reason}" for reason in degraded)
        )

    def text(self) -> str:
        """Everything that a run showed."""
        series = self.series()
        return "\n".join(
            [*self._over_time(series), "", *self._trends(series), "", self._lag(), "", self._cpu()]
        )

    def series(self) -> dict[str, Series]:
        """Every sampled quantity over time; of what a replica has, the mean of all replicas."""
        rows = list(zip(*self.replicas, strict=False))

        def mean(of: Callable[[ReplicaReport], float]) -> Series:
            return [(row[0].at_s, statistics.mean(map(of, row))) for row in rows]

        def size(path: str) -> Callable[[ReplicaReport], float]:
            return lambda report: report.sizes.get(path, 0)

        paths = sorted({path for row in rows for report in row for path in report.sizes})
        return {
            "RSS, MB": mean(lambda report: report.rss_bytes / 1e6),
            "tree blocks": mean(lambda report: report.blocks),
            "tree nodes": mean(lambda report: report.nodes),
            "log entries": [(sample.at_s, sample.entries) for sample in self.redis],
            "log, MB": [(sample.at_s, sample.log_bytes / 1e6) for sample in self.redis],
            "snapshot, MB": [(sample.at_s, sample.snapshot_bytes / 1e6) for sample in self.redis],
            "Valkey, MB": [(sample.at_s, sample.memory_bytes / 1e6) for sample in self.redis],
            **{path: mean(size(path)) for path in paths},
        }

    def _warm(self, reports: Sequence[ReplicaReport]) -> list[ReplicaReport]:
        return [report for report in reports if report.at_s >= self.warm_s]

    def _over_time(self, series: dict[str, Series]) -> Iterable[str]:
        names = [name for name in series if "." not in name]
        rows = list(zip(*(series[name] for name in names), strict=False))
        yield "".join(f"{name:>14}" for name in ("time, s", *names))
        for row in rows[:: -(-len(rows) // TABLE_ROWS)]:
            values = (
                f"{value:14,.2f}" if "MB" in name else f"{value:14,.0f}"
                for name, (_, value) in zip(names, row, strict=True)
            )
            yield f"{row[0][0] - self.began_s:14.0f}" + "".join(values)

    def _trends(self, series: dict[str, Series]) -> Iterable[str]:
        yield f"{'after the warm-up':62} {'mean':>12} {'%/min':>8}  verdict  whole run"
        constant = 0
        for name, points in series.items():
            warm = [point for point in points if point[0] >= self.warm_s]
            if len({value for _, value in warm}) == 1:
                constant += 1
                continue
            trend = Trend.of(warm)
            figures = f"{trend.mean:12,.1f} {trend.percent_per_min:8.2f}  {trend.verdict:7}"
            yield f"{name:62} {figures}  {plot(points)}"
        yield f"and {constant} containers that did not change at all"

    def _lag(self) -> str:
        warm = [report for reports in self.replicas for report in self._warm(reports)]
        counts = lag_counts(warm)
        quantiles = ", ".join(
            f"{name} {quantile_ms(counts, share):.1f}"
            for name, share in (("P50", 0.5), ("P90", 0.9), ("P99", 0.99), ("P99.9", 0.999), ("max", 1.0))
        )
        offsets = [reports[-1].offset_us for reports in (*self.replicas, self.observer)]
        return (
            f"replication lag of {counts.total():,} operations: {quantiles} ms (clocks agree within "
            f"{(max(offsets) - min(offsets)) / 1e3:.2f} ms; publishers at most "
            f"{1e3 * max(report.late_s for report in warm):.0f} ms behind their calendars)"
        )

    def _cpu(self) -> str:
        rates = [Rates.of(self._warm(reports)) for reports in self.replicas]
        observer, dry, idle = (
            Rates.of(self._warm(reports)) for reports in (self.observer, self.dry, self.idle)
        )
        reading_us = 1e6 * (observer.loop - idle.loop) / observer.applied_ops

        def mean(of: Callable[[Rates], float]) -> float:
            return statistics.mean(map(of, rates))

        flush_us = mean(
            lambda rate: (1e6 * (rate.loop - dry.loop) - reading_us * rate.applied_ops) / rate.flushes
        )
        warm = [sample for sample in self.redis if sample.at_s >= self.warm_s]
        valkey = (warm[-1].cpu_s - warm[0].cpu_s) / (warm[-1].at_s - warm[0].at_s)
        ops_per_s = sum(rate.published_ops for rate in rates)
        snapshots = sum(rate.snapshots for rate in rates) or 1.0
        everybody = [reports[-1] for reports in (*self.replicas, self.observer)]
        lines = (
            ("a sibling's operation, all of the reading", reading_us, "µs"),
            ("  the task alone", 1e6 * observer.read / observer.applied_ops, "µs"),
            ("  per entry", observer.applied_ops / observer.applied_entries, "operations"),
            ("an own operation, applied here", 1e6 * dry.publish / dry.published_ops, "µs"),
            ("a flush, all of it", flush_us, "µs"),
            ("  the task alone", 1e6 * mean(lambda rate: rate.flush / rate.flushes), "µs"),
            ("  of", mean(lambda rate: rate.published_ops / rate.flushes), "operations"),
            ("  of", mean(lambda rate: rate.flushed_bytes / rate.flushes), "bytes"),
            ("  per replica", mean(lambda rate: rate.flushes), "per second"),
            ("a replica, all of it", 1e2 * mean(lambda rate: rate.cpu), "% of a core"),
            ("  making up the traffic", 1e2 * dry.cpu, "% of a core"),
            (
                "  sockets, timers and callbacks",
                1e2 * mean(lambda rate: rate.main - rate.flush - rate.read - rate.others),
                "% of a core",
            ),
            ("  housekeeping", 1e2 * mean(lambda rate: rate.collect), "% of a core"),
            ("  idle", 1e2 * idle.cpu, "% of a core"),
            (
                "encoding a snapshot, in the loop",
                1e3 * sum(rate.snapshot for rate in rates) / snapshots,
                "ms",
            ),
            (
                "  and in a thread",
                1e3 * sum(rate.cpu - rate.main for rate in rates) / snapshots,
                "ms",
            ),
            ("Valkey", 1e2 * valkey, "% of a core"),
            ("  for each operation", 1e6 * valkey / ops_per_s, "µs"),
            ("operations lost", sum(report.lost_ops for report in everybody), ""),
            ("gaps", sum(report.gaps for report in everybody), ""),
        )
        head = f"CPU at {ops_per_s:,.0f} ops/s of {len(rates)} replicas"
        late_s = statistics.median(
            report.late_s for reports in self.replicas for report in self._warm(reports)
        )
        if late_s > LATE_S:
            head += f"; THE MACHINE WAS TOO BUSY: {1e3 * late_s:.0f} ms late, differences and lag say little"
        return "\n".join([head, *(f"  {name:44}{value:9.1f} {unit}" for name, value, unit in lines)])


@dataclass(frozen=True, slots=True)
class Rates:
    """What a process did per second; CPU as shares of one core.

    Attributes:
        cpu: All of the process.
        main: The event loop's thread.
        loop: That, without housekeeping and encoding of snapshots.
        flush: The task that flushes.
        read: The task that reads and applies.
        others: All other tasks.
        publish: Inside `SharedState.publish`.
        collect: Housekeeping.
        snapshot: Encoding snapshots.
    """

    cpu: float
    main: float
    loop: float
    flush: float
    read: float
    others: float
    publish: float
    collect: float
    snapshot: float
    published_ops: float
    applied_ops: float
    applied_entries: float
    flushes: float
    flushed_bytes: float
    snapshots: float

    @classmethod
    def of(cls, reports: Sequence[ReplicaReport]) -> "Rates":
        """Differences between the first and the last report."""
        first, last = reports[0], reports[-1]

        def rate(name: str) -> float:
            change: float = getattr(last, name) - getattr(first, name)
            return change / (last.at_s - first.at_s)

        def task(name: str) -> float:
            change = last.tasks_s.get(name, 0.0) - first.tasks_s.get(name, 0.0)
            return change / (last.at_s - first.at_s)

        return cls(
            cpu=rate("cpu_s"),
            main=rate("main_s"),
            loop=rate("main_s") - rate("collect_s") - rate("snapshot_s"),
            flush=task("shared-flush"),
            read=task("shared-read"),
            others=sum(map(task, last.tasks_s)) - task("shared-flush") - task("shared-read"),
            publish=rate("publish_s"),
            collect=rate("collect_s"),
            snapshot=rate("snapshot_s"),
            published_ops=rate("published_ops"),
            applied_ops=rate("applied_ops"),
            applied_entries=rate("applied_entries"),
            flushes=rate("flushes"),
            flushed_bytes=rate("flushed_bytes"),
            snapshots=rate("snapshots"),
        )


def lag_counts(reports: Iterable[ReplicaReport]) -> Counter[int]:
    """Add up the lags of reports."""
    counts: Counter[int] = Counter()
    for report in reports:
        counts.update(report.lags)
    return counts


def quantile_ms(counts: Counter[int], share: float) -> float:
    """A quantile of binned lags: the upper end of its bin, milliseconds."""
    left = share * counts.total()
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return (number + 1) * LAG_BIN_US / 1e3
    return 0.0
