"""Price of the shared log, and growth of anything in it: a soak with real processes.

    python -m loadtest.bench.log --replicas 4 --ops-per-s 2000 --sessions-per-s 200 --duration-s 600

    replicas   publish their share of the traffic and apply their siblings'
    observer   applies everything and publishes nothing
    idle       alone in a namespace in which nothing happens

They are children on this machine (`loadtest.bench.log_replica`) with a Valkey of their own.

*Growth*: every container of a replica (`loadtest.bench.sizes`), resident memory, the log, the snapshot and
Valkey's memory are sampled; `loadtest.bench.trend` judges the samples after the warm-up, in which the
workers' caches must fill. *CPU* of reading is that of the observer's event loop less that of the idle one's
in the same run, per operation applied. *Lag* is reported by the receivers, for every operation.
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import uvloop
from redis.asyncio import Redis

from loadtest.bench.child import started
from loadtest.bench.log_replica import LAG_BIN_US, ReplicaPlan, ReplicaReport, share
from loadtest.bench.log_traffic import TrafficRules
from loadtest.bench.trend import Series, Trend, plot
from router.shared import EmbeddedValkey
from router.shared.keys import Keys

NAMESPACE = "soak"
TABLE_ROWS = 12
LATE_S = 0.1
"""A publisher that is later than this in most intervals had no processor, at any cost of the log."""

QUANTILES = {"P50": 0.5, "P90": 0.9, "P99": 0.99, "P99.9": 0.999, "max": 1.0}

Reports = list[ReplicaReport]


@dataclass(frozen=True, slots=True)
class RedisSample:
    """Figures of Valkey and of our keys in it."""

    at_s: float
    entries: int
    log_bytes: int
    snapshot_bytes: int
    memory_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Soak:
    """Run of a soak, while it is recorded and after.

    Attributes:
        began_s: Monotonic seconds.
        warm_s: Monotonic seconds at which the measured window begins.
    """

    began_s: float
    warm_s: float
    replicas: Sequence[Reports]
    observer: Reports
    idle: Reports
    redis: list[RedisSample] = field(default_factory=list)

    def progress(self) -> str | None:
        """One line about the last interval; None before there was one."""
        if not self.redis or any(len(reports) < 2 for reports in self.replicas):
            return None
        sample, newest = self.redis[-1], [reports[-1] for reports in self.replicas]
        ops_per_s = sum(rate(reports[-2:], "published_ops") for reports in self.replicas)
        lags = lag_counts(newest)
        return (
            f"{sample.at_s - self.began_s:5.0f} s {ops_per_s:6.0f} ops/s, "
            f"lag P50 {quantile_ms(lags, 0.5):.1f} P99 {quantile_ms(lags, 0.99):.1f} ms, "
            f"RSS {statistics.mean(report.rss_bytes for report in newest) / 1e6:.1f} MB, "
            f"log {sample.entries:,} entries {sample.log_bytes / 1e6:.1f} MB, "
            f"snapshot {sample.snapshot_bytes / 1e6:.2f} MB, Valkey {sample.memory_bytes / 1e6:.1f} MB"
            + "".join(f", DEGRADED: {reason}" for reason in {report.degraded for report in newest} if reason)
        )

    def text(self) -> str:
        """Everything that a run showed."""
        series = self.series()
        return "\n".join(
            [*self._over_time(series), "", *self._trends(series), "", self._lag(), "", *self._cpu()]
        )

    def series(self) -> dict[str, Series]:
        """Every sampled quantity over time; for quantities of a replica the mean of all replicas."""
        rows = list(zip(*self.replicas, strict=False))

        def mean(of: Callable[[ReplicaReport], float]) -> Series:
            return [(row[0].at_s, statistics.mean(map(of, row))) for row in rows]

        def valkey(of: Callable[[RedisSample], float]) -> Series:
            return [(sample.at_s, of(sample)) for sample in self.redis]

        paths = sorted({path for row in rows for report in row for path in report.sizes}, key=_dotted)
        return {
            "RSS, MB": mean(lambda report: report.rss_bytes / 1e6),
            "log entries": valkey(lambda sample: sample.entries),
            "log, MB": valkey(lambda sample: sample.log_bytes / 1e6),
            "snapshot, MB": valkey(lambda sample: sample.snapshot_bytes / 1e6),
            "Valkey, MB": valkey(lambda sample: sample.memory_bytes / 1e6),
            **{path: mean(lambda report, path=path: report.sizes.get(path, 0)) for path in paths},  # type: ignore[misc]
        }

    def _warm(self, reports: Reports) -> Reports:
        return [report for report in reports if report.at_s >= self.warm_s]

    def _over_time(self, series: dict[str, Series]) -> Iterable[str]:
        names = [name for name in series if not _dotted(name)[0]]
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
        quantiles = ", ".join(f"{name} {quantile_ms(counts, share):.1f}" for name, share in QUANTILES.items())
        offsets = [reports[-1].offset_us for reports in (*self.replicas, self.observer)]
        text = (
            f"replication lag of {counts.total():,} operations: {quantiles} ms (clocks agree within "
            f"{(max(offsets) - min(offsets)) / 1e3:.2f} ms; publishers at most "
            f"{1e3 * max(report.late_s for report in warm):.0f} ms behind their calendars)"
        )
        late_s = statistics.median(report.late_s for report in warm)
        if late_s > LATE_S:
            text += f"\nTHE MACHINE WAS TOO BUSY: {1e3 * late_s:.0f} ms late, CPU and lag say little"
        return text

    def _cpu(self) -> Iterable[str]:
        warm = [self._warm(reports) for reports in self.replicas]
        observer, idle = self._warm(self.observer), self._warm(self.idle)
        redis = [sample for sample in self.redis if sample.at_s >= self.warm_s]
        valkey = (redis[-1].cpu_s - redis[0].cpu_s) / (redis[-1].at_s - redis[0].at_s)
        ops_per_s = sum(rate(reports, "published_ops") for reports in warm)
        reading = (rate(observer, "loop_s") - rate(idle, "loop_s")) / rate(observer, "applied_ops")
        newest = [reports[-1] for reports in (*self.replicas, self.observer)]
        yield f"CPU at {ops_per_s:,.0f} ops/s of {len(warm)} replicas"
        for name, value, unit in (
            ("a sibling's operation, all of the reading", 1e6 * reading, "µs"),
            ("a replica", 1e2 * statistics.mean(rate(reports, "cpu_s") for reports in warm), "% of a core"),
            ("an idle one", 1e2 * rate(idle, "cpu_s"), "% of a core"),
            ("Valkey", 1e2 * valkey, "% of a core"),
            ("  for each operation", 1e6 * valkey / ops_per_s, "µs"),
            ("operations lost", sum(report.lost_ops for report in newest), ""),
            ("gaps", sum(report.gaps for report in newest), ""),
        ):
            yield f"  {name:44}{value:9.1f} {unit}"


def _dotted(name: str) -> tuple[bool, str]:
    return "." in name, name


def rate(reports: Reports, name: str) -> float:
    """Return the change of a count per second, from the first report to the last."""
    first, last = reports[0], reports[-1]
    change: float = getattr(last, name) - getattr(first, name)
    return change / (last.at_s - first.at_s)


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


def main() -> None:
    """Run the soak and print its results."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.log", description="Soak, cost and lag of the shared log."
    )
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--ops-per-s", type=float, default=2000.0, help="of all replicas [default 2000]")
    parser.add_argument("--sessions-per-s", type=float, default=200.0, help="of all replicas [default 200]")
    parser.add_argument("--duration-s", type=float, default=600.0, help="[default 600]")
    parser.add_argument("--warm-up-s", type=float, help="[default a quarter of the duration]")
    parser.add_argument("--report-every-s", type=float, default=5.0, help="[default 5]")
    parser.add_argument("--workers", type=int, default=64, help="[default 64]")
    parser.add_argument("--capacity-blocks", type=int, default=2000, help="of a worker [default 2000]")
    parser.add_argument(
        "--replaced-every-s", type=float, default=10.0, help="one worker is, by another [default 10]"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same traffic [default 1]")
    options = parser.parse_args()
    if options.warm_up_s is None:
        options.warm_up_s = options.duration_s / 4
    print("\n" + uvloop.run(_soak(options)).text())


async def _soak(options: argparse.Namespace) -> Soak:
    """Run all processes for as long as asked, telling how it goes."""
    async with EmbeddedValkey() as valkey, Redis.from_url(valkey.url) as redis:
        plans = list(_plans(options, valkey.url))
        reports: list[Reports] = [[] for _ in plans]
        *replicas, observer, idle = reports
        began_s = time.monotonic()
        soak = Soak(began_s, began_s + options.warm_up_s, replicas, observer, idle)
        tasks = [asyncio.create_task(_child(*both)) for both in zip(plans, reports, strict=True)]
        tasks.append(asyncio.create_task(_watch(redis, soak, options.report_every_s)))
        ended, _ = await asyncio.wait(tasks, timeout=options.duration_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()  # says what failed
        return soak


def _plans(options: argparse.Namespace, url: str) -> Iterable[ReplicaPlan]:
    every_s, share = options.report_every_s, options.replicas
    for number in range(options.replicas):
        name = f"replica-{number}"
        traffic = TrafficRules(
            replica=name,
            seed=options.seed,
            ops_per_s=options.ops_per_s / share,
            sessions_per_s=options.sessions_per_s / share,
            workers=options.workers,
            replaced_every_s=options.replaced_every_s,
            capacity_blocks=options.capacity_blocks,
            leads=number == 0,
        )
        yield ReplicaPlan(url, NAMESPACE, name, every_s, traffic)
    yield ReplicaPlan(url, NAMESPACE, "observer", every_s)
    yield ReplicaPlan(url, "idle", "idle", every_s)


async def _child(plan: ReplicaPlan, reports: Reports) -> None:
    """Run a replica and gather its reports, until cancelled."""
    async with started(share, plan) as running:
        while (report := await running.next(ReplicaReport)) is not None:
            reports.append(report)
    raise RuntimeError(f"{plan.replica} ended by itself")


async def _watch(redis: Redis, soak: Soak, every_s: float) -> None:
    """Sample Valkey and print a line of progress, until cancelled."""
    keys = Keys(NAMESPACE)
    while True:
        await asyncio.sleep(every_s)
        memory, cpu = await redis.info("memory"), await redis.info("cpu")
        soak.redis.append(
            RedisSample(
                at_s=time.monotonic(),
                entries=await redis.xlen(keys.log),
                log_bytes=await redis.memory_usage(keys.log, samples=0) or 0,
                snapshot_bytes=int(await redis.hget(keys.snapshot, "size") or 0),
                memory_bytes=memory["used_memory"],
                cpu_s=cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            )
        )
        if (line := soak.progress()) is not None:
            print(line, flush=True)


if __name__ == "__main__":
    main()
