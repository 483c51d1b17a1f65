"""Cost of a gateway on sockets, with a check of every byte: one load for each subject.

    python -m loadtest.bench.serving processes --processes 2 --rounds 5
    python -m loadtest.bench.serving streams --streams 10000 --gap-s 20 --chunks 5
    python -m loadtest.bench.serving uploads --uploads 200 --megabytes 4
    python -m loadtest.bench.serving soak --minutes 30

Each runs ``cacheway serve`` on `loadtest.bench.stage` under `loadtest.bench.http_load`; a wrong answer fails
the run. CPU is that of the gateway's processes, user and system.

*processes*: requests per CPU-second of one process and of several on one port, 1 KB chat requests in a closed
loop of ``--connections`` per process or an open one of ``--rate-per-s``. The promise: a request costs N
processes at most 10 % more than one. On few cores use the open loop: a process that waits for a processor
finds more to do at once, and a request costs less. ``--bare`` measures `loadtest.bench.proxy` instead.

*streams*: memory and CPU of many streams at once. Memory per stream is resident memory with all open less
that after a warm-up, without the kernel's socket buffers. CPU per chunk excludes idle CPU. A stream takes two
open files: a low hard limit reduces their number.

*uploads*: one stream, a chunk every 10 ms, alone and beside large bodies sent all at once. *delay* is the gap
between two reads minus 10 ms, *lag* the gateway's own metric of its event loop, *memory* its peak beyond that
of before. On few cores delay and lag include waiting for a core.

*soak*: resident memory under constant load of half shared, half new prompts, so that tree, log and snapshots
turn over. After a quarter of the time memory is judged by its slope (`loadtest.bench.trend`); growth fails.
"""

import argparse
import asyncio
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from loadtest.bench.child import Running
from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.bench.markdown import table
from loadtest.bench.mock_engine import CHUNK_BYTES
from loadtest.bench.process_tree import peak_rss_bytes
from loadtest.bench.stage import Sample, Stage, last_report, reports, staged
from loadtest.bench.trend import Trend, plot
from loadtest.processes import ChildFailed
from loadtest.report import percentile
from router.open_files import OTHER_FILES

BARE = "loadtest.bench.proxy"
WARM_UP_S = 4.0
DISTINCT = 1000
WARM_UP_STREAMS = 300
IDLE_S = 5.0
WINDOW_S_MIN = 5.0
TOKEN_S = 0.01
"""Between two chunks of the stream beside uploads."""

FLOWS_S = 1.0
"""Reads of that stream before this time do not count."""

STREAM_S_MAX = 600
SOAK_GAP_S = 0.05
SOAK_CHUNKS = 20
SOAK_PROMPT_BYTES = 4096
"""Four blocks: two of them match."""

SOAK_DISTINCT = 10_000_000
SOAK_LINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """Two looks at the gateway and its load."""

    before: Sample
    first: LoadReport
    after: Sample
    last: LoadReport

    @property
    def took_s(self) -> float:
        """Length of the window."""
        return self.after.at_s - self.before.at_s

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return self.last.completed - self.first.completed

    @property
    def cpu_s(self) -> float:
        """CPU of the gateway."""
        return self.after.cpu_s - self.before.cpu_s

    @property
    def valkey_cpu_s(self) -> float:
        """CPU of Valkey."""
        return self.after.valkey_cpu_s - self.before.valkey_cpu_s

    @property
    def cpu_us(self) -> float:
        """CPU of the gateway per request."""
        return 1e6 * self.cpu_s / self.requests

    @property
    def valkey_us(self) -> float:
        """CPU of Valkey per request."""
        return 1e6 * self.valkey_cpu_s / self.requests

    @property
    def chunks_per_s(self) -> float:
        """Chunks that reached the clients."""
        received = (self.last.body_bytes - self.first.body_bytes) / CHUNK_BYTES
        return received / (self.last.at_s - self.first.at_s)


async def look(stage: Stage, running: Running, after_s: float = 0.0) -> tuple[Sample, LoadReport]:
    """Return a sample with the first report of the load after a while; `ChildFailed` if a request broke."""
    until_s = time.monotonic() + after_s
    async for report in reports(running):
        if report.at_s >= until_s:
            return stage.sample(), report
    raise ChildFailed("the load ended early")


async def processes(options: argparse.Namespace) -> str:
    """Compare one process with several, round by round."""
    numbers = (1,) if options.bare else (1, options.processes)
    runs: dict[int, list[Window]] = {number: [] for number in numbers}
    for at in range(options.rounds):
        for number in sorted(runs, reverse=at % 2 == 1):
            window, clients = await _requests(number, options)
            runs[number].append(window)
            print(
                f"{number} process(es): {window.requests / window.took_s:6.0f} requests/s, "
                f"{window.cpu_us:6.1f} us each, Valkey {window.valkey_us:5.1f} us; "
                f"{' + '.join(map(str, clients))} connections",
                flush=True,
            )
    return "\n" + summary(runs)


async def _requests(number: int, options: argparse.Namespace) -> tuple[Window, list[int]]:
    module = BARE if options.bare else "router"
    async with staged(number, gap_s=1.0, module=module) as stage:
        plan = LoadPlan(
            stage.port,
            connections=number * options.connections,
            rate_per_s=number * options.rate_per_s,
            distinct=DISTINCT,
        )
        async with stage.load(plan) as running:
            await look(stage, running, WARM_UP_S)
            window = Window(*await look(stage, running), *await look(stage, running, options.window_s))
            return window, stage.clients()


def summary(runs: dict[int, list[Window]]) -> str:
    """Medians, with the smallest and largest figure, and the price of several processes beside one."""
    lines, medians = [], []
    for number, windows in runs.items():
        figures = [window.cpu_us for window in windows]
        medians.append(statistics.median(figures))
        lines.append(
            f"{number} process(es): {1e6 / medians[-1]:6.0f} requests per CPU-second, "
            f"{medians[-1]:6.1f} us each ({min(figures):.1f} to {max(figures):.1f}), "
            f"Valkey {statistics.median(window.valkey_us for window in windows):5.1f} us"
        )
    if len(medians) > 1:
        lines.append(f"A request costs {medians[1] / medians[0] - 1:+.1%} with {max(runs)} processes.")
    return "\n".join(lines)


def allowed_streams(wanted: int, number: int) -> int:
    """Return how many streams the hard limit of open files allows; print it if that is fewer than wanted."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return wanted
    # The load's own connections are in one process; the gateway's are spread, not quite evenly.
    allowed = min(hard - OTHER_FILES, (hard - OTHER_FILES) // 2 * max(1.0, 0.8 * number))
    if wanted > allowed:
        print(f"the hard limit of open files, {hard:,}, allows {allowed:,.0f} streams instead of {wanted:,}")
    return min(wanted, int(allowed))


async def streams(options: argparse.Namespace) -> str:
    """Open all streams, and tell their price."""
    count = allowed_streams(options.streams, options.processes)
    async with staged(options.processes, options.gap_s) as stage:
        warm_up = LoadPlan(stage.port, WARM_UP_STREAMS, requests=WARM_UP_STREAMS, rate_per_s=100, chunks=1)
        await stage.served(warm_up)
        idle = stage.sample()
        await asyncio.sleep(IDLE_S)
        empty = stage.sample()
        plan = LoadPlan(
            stage.port,
            count,
            requests=count,
            rate_per_s=options.starts_per_s,
            chunks=options.chunks,
            distinct=count,
        )
        async with stage.load(plan) as running:
            window = await _all_open(stage, running, plan, options.gap_s)
            spread = " + ".join(f"{clients:,}" for clients in stage.clients())
            last = await last_report(running)
    idle_cpu = (empty.cpu_s - idle.cpu_s) / (empty.at_s - idle.at_s)
    cpu = window.cpu_s / window.took_s
    empty_mb, open_mb = (sum(sample.rss_bytes) / 1e6 for sample in (empty, window.after))
    return f"""\
{count:,} streams of {options.chunks:,} chunks, {options.gap_s:g} s apart
nothing lost   {last.completed:,} streams complete, {last.broken} broken, {last.body_bytes / 1e6:,.1f} MB
processes      {options.processes}, with {spread} streams
memory         {1e3 * (open_mb - empty_mb) / count:.2f} KB per stream: {empty_mb:.1f} MB before, {open_mb:.1f} MB with all open
chunks         {window.chunks_per_s:,.0f}/s, {count / options.gap_s:,.0f}/s were due
CPU            {1e6 * (cpu - idle_cpu) / window.chunks_per_s:.1f} us per chunk: {idle_cpu:.1%} of a core before, {cpu:.1%} with all open
Valkey         {window.valkey_cpu_s / window.took_s:.1%} of a core"""  # noqa: E501 - as printed


async def _all_open(stage: Stage, running: Running, plan: LoadPlan, gap_s: float) -> Window:
    """Measure while all streams are open; `ChildFailed` if a stream broke, or that time was too short."""
    before: tuple[Sample, LoadReport] | None = None
    report, ends_s = None, 0.0
    async for report in reports(running):
        if before is None:
            if report.answering == plan.requests:
                before = stage.sample(), report
                rest_s = gap_s * (plan.chunks - 1) - plan.requests / plan.rate_per_s
                ends_s = report.at_s + rest_s - max(1.0, 0.1 * rest_s)
        elif report.at_s >= ends_s or report.completed:
            window = Window(*before, stage.sample(), report)
            if report.completed or window.took_s < WINDOW_S_MIN:
                break
            return window
    raise ChildFailed(f"the streams were not all open for {WINDOW_S_MIN:g} s; give --chunks more: {report}")


@dataclass(frozen=True, slots=True)
class Lag:
    """Counts of ``cacheway_event_loop_lag_seconds``: cumulative samples by upper bound in seconds."""

    counts: dict[float, float]

    @classmethod
    def of(cls, exposition: str) -> "Lag":
        """Read it from a scrape."""
        samples = (s for family in text_string_to_metric_families(exposition) for s in family.samples)
        return cls(
            {
                float(s.labels["le"]): s.value
                for s in samples
                if s.name == "cacheway_event_loop_lag_seconds_bucket"
            }
        )

    def since(self, before: "Lag") -> "Lag":
        """Return what was counted since an earlier scrape."""
        return Lag({bound: count - before.counts[bound] for bound, count in self.counts.items()})

    def quantile_s(self, share: float) -> float:
        """Return the bound within which this share of the samples lies, in seconds."""
        wanted = share * self.counts[float("inf")]
        return min(bound for bound, count in self.counts.items() if count >= wanted)


def delays_s(reads_s: Sequence[float]) -> list[float]:
    """Return how much later than due each read of the stream was, ascending, given when reads returned."""
    return sorted(max(later - earlier - TOKEN_S, 0.0) for earlier, later in itertools.pairwise(reads_s))


async def uploads(options: argparse.Namespace) -> str:
    """Read a stream alone and beside uploads."""
    body_bytes = int(options.megabytes * (1 << 20))
    requests = options.uploads * options.rounds
    models = ("stream", "uploads")
    async with (
        staged(1, TOKEN_S, models=models) as stage,
        httpx.AsyncClient(trust_env=False, timeout=60.0) as client,
    ):
        stream = LoadPlan(stage.port, 1, chunks=int(STREAM_S_MAX / TOKEN_S), model="stream")
        plan = LoadPlan(
            stage.port,
            options.uploads,
            requests=requests,
            prompt_bytes=body_bytes,
            distinct=options.uploads,
            model="uploads",
        )

        async def lag() -> Lag:
            return Lag.of((await client.get(f"http://127.0.0.1:{stage.port}/metrics")).text)

        async def phase(work: Callable[[], Awaitable[object]]) -> tuple[list[float], Lag]:
            async with stage.load(stream) as running:
                await look(stage, running, FLOWS_S)
                before, reads_s = await lag(), []
                await work()
                ended_s = time.monotonic()
                async for report in reports(running):
                    reads_s += report.reads_s
                    if report.at_s >= ended_s:
                        break
            return delays_s(reads_s), (await lag()).since(before)

        alone = await phase(lambda: asyncio.sleep(IDLE_S))
        before = stage.sample()
        beside = await phase(lambda: stage.served(plan))
        cpu_s = stage.sample().cpu_s - before.cpu_s
        peak_bytes = peak_rss_bytes(stage.pids[0]) - before.rss_bytes[0]
    return phases({"alone": alone, "beside uploads": beside}) + (
        f"\n{options.uploads} x {options.rounds} uploads of {options.megabytes:g} MB; "
        f"{1e3 * cpu_s / requests:.1f} ms of CPU each, the stream's included; peak memory "
        f"{peak_bytes / body_bytes / options.uploads:.2f} bodies per upload in flight "
        f"({peak_bytes / 2**20:.0f} MB)"
    )


def phases(rows: dict[str, tuple[list[float], Lag]]) -> str:
    """A table with a row for each phase."""
    cells = []
    for name, (delays, lag) in rows.items():
        shares = (0.5, 0.99, 1.0)
        stream = (f"{1e3 * (percentile(delays, share) or 0.0):.1f} ms" for share in shares)
        loop = (f"<= {1e3 * lag.quantile_s(share):g} ms" for share in shares)
        cells.append((name, str(len(delays)), *stream, *loop))
    heads = ("stream", "chunks", "delay P50", "P99", "max", "loop lag P50", "P99", "max")
    return table(heads, cells)


async def soak(options: argparse.Namespace) -> str:
    """Watch a gateway's memory under constant load; `ChildFailed` if it grows or an answer was wrong."""
    rate_per_s, samples = options.rate_per_s, []
    async with staged(options.processes, SOAK_GAP_S) as stage:
        plan = LoadPlan(
            stage.port,
            connections=round(4 * rate_per_s * SOAK_GAP_S * SOAK_CHUNKS) + 16,
            rate_per_s=rate_per_s,
            chunks=SOAK_CHUNKS,
            prompt_bytes=SOAK_PROMPT_BYTES,
            distinct=SOAK_DISTINCT,
        )
        async with stage.load(plan) as running:
            began_s = told_s = time.monotonic()
            async for report in reports(running):
                samples.append(stage.sample())
                if report.at_s >= told_s + SOAK_LINE_S:
                    told_s = report.at_s
                    rss_mb = sum(samples[-1].rss_bytes) / 1e6
                    print(
                        f"{report.at_s - began_s:5.0f} s {report.completed:9,} {rss_mb:7.1f} MB", flush=True
                    )
                if report.at_s >= began_s + 60 * options.minutes:
                    break
    text, flat = verdict(samples, report)
    if not flat:
        raise ChildFailed(text)
    return text


def verdict(samples: list[Sample], report: LoadReport) -> tuple[str, bool]:
    """Return what a run showed, and whether memory stayed as it was after the warm-up."""
    first, last = samples[0], samples[-1]
    warm_s = first.at_s + (last.at_s - first.at_s) / 4
    series = [(sample.at_s, sum(sample.rss_bytes) / 1e6) for sample in samples]
    trend = Trend.of([point for point in series if point[0] >= warm_s])
    cpu = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    text = f"""\
{report.completed:,} streams in {last.at_s - first.at_s:.0f} s, {report.broken} broken, {cpu:.1%} of a core
memory {series[0][1]:.1f} MB at first, {trend.mean:.1f} MB in the mean after the warm-up
slope  {1e3 * trend.per_min:+.1f} KB/min, {trend.percent_per_min:+.3f} %/min: {trend.verdict}
       {plot(series)}"""
    return text, trend.verdict != "GROWS"


def main() -> int:
    """Run one subject; the status is 1 if it failed."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.serving", description="What a gateway on sockets costs."
    )
    subjects = parser.add_subparsers(required=True)

    def subject(
        run: Callable[[argparse.Namespace], Awaitable[str]], **defaults: float
    ) -> argparse.ArgumentParser:
        """Add a subject with a flag for each number, of the type of its default."""
        added = subjects.add_parser(run.__name__, help=(run.__doc__ or "").split("\n", maxsplit=1)[0])
        added.set_defaults(run=run)
        for name, default in defaults.items():
            added.add_argument(
                f"--{name.replace('_', '-')}", type=type(default), default=default, help="[%(default)s]"
            )
        return added

    compared = subject(processes, processes=2, rounds=5, window_s=10.0, rate_per_s=0.0, connections=64)
    compared.add_argument("--bare", action="store_true", help="a proxy that decides nothing instead")
    subject(streams, streams=10_000, gap_s=20.0, chunks=5, processes=1, starts_per_s=500.0)
    subject(uploads, uploads=200, megabytes=4.0, rounds=3)
    subject(soak, minutes=30.0, rate_per_s=100.0, processes=1)
    options = parser.parse_args()
    try:
        print(uvloop.run(options.run(options)))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
