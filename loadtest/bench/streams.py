"""Ten thousand streams at once: what one costs in memory and CPU, and whether anything is lost.

    python -m loadtest.bench.streams --streams 10000 --gap-s 20 --chunks 5
    python -m loadtest.bench.streams --streams 2000 --gap-s 0.02 --chunks 1500 --processes 2

Streams begin one after the other, get a chunk every ``--gap-s``, and are all open for most of the run. Every
byte of every stream is checked (`loadtest.bench.http_load`); one that is not as it should be fails the run.

*Memory per stream* is resident memory with all streams open, less that before the first, divided by the
streams; a warm-up of a few hundred streams comes before. What the kernel holds for the sockets is not in it.
*CPU* is that of the gateway's processes, user and system, while all streams are open; that of a chunk is
without what the gateway uses before there is a stream.

A stream takes two open files of the gateway's: with a hard limit that is too low, fewer streams are opened,
and the output says so.
"""

import argparse
import asyncio
import resource
import sys
from dataclasses import dataclass

import uvloop

from loadtest.bench.gateway_stage import Running, Sample, Stage, last_report, staged
from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.bench.mock_engine import CHUNK_BYTES
from loadtest.processes import ChildFailed
from router.open_files import OTHER_FILES

WARM_UP = 300
IDLE_S = 5.0
WINDOW_S_MIN = 5.0


@dataclass(frozen=True, slots=True)
class Window:
    """Two looks at the gateway and its load while all streams are open."""

    before: Sample
    first: LoadReport
    after: Sample
    last: LoadReport

    @property
    def took_s(self) -> float:
        """Length of the window."""
        return self.after.at_s - self.before.at_s

    @property
    def chunks_per_s(self) -> float:
        """Chunks that reached the clients."""
        received = (self.last.body_bytes - self.first.body_bytes) / CHUNK_BYTES
        return received / (self.last.at_s - self.first.at_s)


def main() -> int:
    """Run it; the status is 1 if a stream broke."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.streams", description="Memory and CPU of many streams at once."
    )
    parser.add_argument("--streams", type=int, default=10_000, help="[default 10000]")
    parser.add_argument("--gap-s", type=float, default=20.0, help="between two chunks [default 20]")
    parser.add_argument("--chunks", type=int, default=5, help="of a stream [default 5]")
    parser.add_argument("--processes", type=int, default=1, help="of the gateway [default 1]")
    parser.add_argument("--starts-per-s", type=float, default=500.0, help="[default 500]")
    options = parser.parse_args()
    options.streams = allowed_streams(options.streams, options.processes)
    try:
        print(uvloop.run(_run(options)))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def allowed_streams(wanted: int, processes: int) -> int:
    """How many streams the hard limit of open files allows; says so if that is fewer than wanted."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return wanted
    # The load's own connections are in one process; the gateway's are spread, not quite evenly.
    allowed = min(hard - OTHER_FILES, (hard - OTHER_FILES) // 2 * max(1.0, 0.8 * processes))
    if wanted > allowed:
        print(f"the hard limit of open files, {hard:,}, allows {allowed:,.0f} streams instead of {wanted:,}")
    return min(wanted, int(allowed))


async def _run(options: argparse.Namespace) -> str:
    async with staged(options.processes, options.gap_s) as stage:
        await stage.served(LoadPlan(stage.port, WARM_UP, requests=WARM_UP, rate_per_s=100, chunks=1))
        idle = stage.sample()
        await asyncio.sleep(IDLE_S)
        empty = stage.sample()
        plan = LoadPlan(
            stage.port,
            options.streams,
            requests=options.streams,
            rate_per_s=options.starts_per_s,
            chunks=options.chunks,
            distinct=options.streams,
        )
        async with stage.load(plan) as running:
            window = await _window(stage, running, options)
            spread = stage.clients()
            last = await last_report(running)
        return _text(options, idle, empty, window, spread, last)


async def _window(stage: Stage, running: Running, options: argparse.Namespace) -> Window:
    """Look when the last stream has begun, and when the first one could end.

    Raises:
        ChildFailed: They were never all open, or not for long enough.
    """
    before, first, report = None, None, None
    ends_s = 0.0
    while (report := await running.next(LoadReport)) is not None and not report.broken:
        if before is None or first is None:
            if report.answering == options.streams:
                before, first = stage.sample(), report
                rest_s = options.gap_s * (options.chunks - 1) - options.streams / options.starts_per_s
                ends_s = report.at_s + rest_s - max(1.0, 0.1 * rest_s)
        elif report.at_s >= ends_s or report.completed:
            window = Window(before, first, stage.sample(), report)
            if report.completed or window.took_s < WINDOW_S_MIN:
                break
            return window
    raise ChildFailed(f"the streams were not all open for {WINDOW_S_MIN:g} s; give --chunks more: {report}")


def _text(
    options: argparse.Namespace,
    idle: Sample,
    empty: Sample,
    window: Window,
    spread: list[int],
    last: LoadReport,
) -> str:
    idle_cpu = (empty.cpu_s - idle.cpu_s) / (empty.at_s - idle.at_s)
    cpu = (window.after.cpu_s - window.before.cpu_s) / window.took_s
    valkey_cpu = (window.after.valkey_cpu_s - window.before.valkey_cpu_s) / window.took_s
    empty_mb, open_mb = (sum(sample.rss_bytes) / 1e6 for sample in (empty, window.after))
    kb_per_stream = 1e3 * (open_mb - empty_mb) / options.streams
    chunk_us = 1e6 * (cpu - idle_cpu) / window.chunks_per_s
    processes = " + ".join(f"{count:,}" for count in spread)
    return f"""\
{options.streams:,} streams of {options.chunks:,} chunks, {options.gap_s:g} s apart
nothing lost   {last.completed:,} streams complete, {last.broken} broken, {last.body_bytes / 1e6:,.1f} MB
processes      {len(spread)}, with {processes} streams
memory         {kb_per_stream:.2f} KB per stream: {empty_mb:.1f} MB before, {open_mb:.1f} MB with all open
chunks         {window.chunks_per_s:,.0f}/s, {options.streams / options.gap_s:,.0f}/s were due
CPU            {chunk_us:.1f} us per chunk: {idle_cpu:.1%} of a core before, {cpu:.1%} with all open
Valkey         {valkey_cpu:.1%} of a core"""


if __name__ == "__main__":
    sys.exit(main())
