"""Whether a gateway grows while nothing changes: resident memory under constant load.

    python -m loadtest.bench.soak --minutes 30

One ``cacheway serve`` in front of four mock engines gets ``--rate-per-s`` requests: streams of 20 chunks,
half of a prompt shared with others and half of it new, so that the prefix tree, the log and the snapshots
turn over all the time. The engines' caches are small enough to be full after a minute. Answers are checked.

Resident memory is sampled with every report of the load. What comes after the warm-up, a quarter of the time,
is judged by its slope (`loadtest.bench.trend`); growth, or a broken answer, fails the run.
"""

import argparse
import sys
import time

import uvloop

from loadtest.bench.gateway_stage import Sample, staged
from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.bench.trend import Trend, plot
from loadtest.processes import ChildFailed

GAP_S = 0.05
CHUNKS = 20
PROMPT_BYTES = 4096
"""Four blocks: two of them match."""

DISTINCT = 10_000_000
LINE_S = 60.0


def main() -> int:
    """Run it; the status is 1 if memory grows or an answer broke."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.soak", description="Memory of a gateway under constant load."
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="[default 30]")
    parser.add_argument("--rate-per-s", type=float, default=100.0, help="[default 100]")
    parser.add_argument("--processes", type=int, default=1, help="of the gateway [default 1]")
    options = parser.parse_args()
    try:
        samples, report = uvloop.run(_run(options.minutes * 60, options.rate_per_s, options.processes))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    text, flat = verdict(samples, report)
    print(text)
    return 0 if flat else 1


async def _run(duration_s: float, rate_per_s: float, processes: int) -> tuple[list[Sample], LoadReport]:
    samples: list[Sample] = []
    async with staged(processes, GAP_S) as stage:
        plan = LoadPlan(
            stage.port,
            connections=round(4 * rate_per_s * GAP_S * CHUNKS) + 16,
            rate_per_s=rate_per_s,
            chunks=CHUNKS,
            prompt_bytes=PROMPT_BYTES,
            distinct=DISTINCT,
        )
        async with stage.load(plan) as running:
            began_s = told_s = time.monotonic()
            while True:
                report = await running.next(LoadReport)
                if report is None or report.broken:
                    raise ChildFailed(f"the load came to no good end: {report}")
                samples.append(stage.sample())
                if report.at_s >= told_s + LINE_S:
                    told_s = report.at_s
                    rss_mb = sum(samples[-1].rss_bytes) / 1e6
                    print(
                        f"{report.at_s - began_s:5.0f} s {report.completed:9,} {rss_mb:7.1f} MB", flush=True
                    )
                if report.at_s >= began_s + duration_s:
                    return samples, report


def verdict(samples: list[Sample], report: LoadReport) -> tuple[str, bool]:
    """What a run showed, and whether memory stayed as it was after the warm-up."""
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


if __name__ == "__main__":
    sys.exit(main())
