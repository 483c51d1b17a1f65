"""Price of sharing in hit rate: the same sessions through one replica and through many.

    python -m loadtest.bench.replicas --replicas 8 --seeds 6

Every run plays the demo's agentic workload (`loadtest.workload`) on four emulated engines with empty caches
that hold the working set only together. For each seed, in varying order:

    1          one replica
    1 again    the same once more: noise of one replica by the timing of requests
    N sticks   N replicas, all turns of a session go to the same one
    N sprays   N replicas, the turns of a session go to all of them in turn

The engines report the hit rate, cached over prompt tokens. It is compared with the mean of both runs of one
replica; the promise is within one point. CPU is of the gateways alone, idle work included.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

from loadtest.bench.process_tree import cpu_s, rss_bytes
from loadtest.client import LoadClient
from loadtest.ideal import IdealCache
from loadtest.processes import Child, ChildFailed, GatewayChild
from loadtest.replay import Sample, replay
from loadtest.scenario import AGENT_ENGINE, ENGINES, engine_flags
from loadtest.workload import WorkloadShape, agent_sessions
from router.errors import StateError
from router.shared import EmbeddedValkey

FLUSH_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Number of replicas, and the way of turns to them."""

    name: str
    replicas: int
    sticky: bool


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one run.

    Attributes:
        hit_percent: Cached tokens in percent of prompt tokens, as the engines report them.
        ideal_percent: The same for one infinite cache.
        cpu_ms: CPU of all gateways per request.
        rss_mb: Mean of the gateways.
    """

    hit_percent: float
    ideal_percent: float
    ttft_s: float
    cpu_ms: float
    rss_mb: float


def main() -> int:
    """Run everything, print a line for each run and a table in the end."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.replicas", description="Hit rate with one replica and with many."
    )
    parser.add_argument("--replicas", type=int, default=8, help="[default 8]")
    parser.add_argument("--seeds", type=int, default=6, help="how many [default 6]")
    parser.add_argument("--first-seed", type=int, default=1, help="[default 1]")
    parser.add_argument("--sessions", type=int, default=72, help="[default 72]")
    parser.add_argument("--start-window-s", type=float, default=15.0, help="[default 15]")
    parser.add_argument("serve", nargs="*", help="more flags for `cacheway serve`, after --")
    options = parser.parse_args()
    setups = (
        Setup("1", 1, sticky=True),
        Setup("1 again", 1, sticky=True),
        Setup(f"{options.replicas} sticks", options.replicas, sticky=True),
        Setup(f"{options.replicas} sprays", options.replicas, sticky=False),
    )
    try:
        results = uvloop.run(_measure(options, setups))
    except (ChildFailed, StateError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + table(results))
    return 0


async def _measure(options: argparse.Namespace, setups: Sequence[Setup]) -> dict[str, list[Result]]:
    shape = WorkloadShape(sessions=options.sessions, start_window_s=options.start_window_s)
    results: dict[str, list[Result]] = {setup.name: [] for setup in setups}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        arguments = ["engine", "--port", "0", "--engines", str(ENGINES), *engine_flags(AGENT_ENGINE)]
        engines = await stack.enter_async_context(Child("engines", arguments, directory))
        ready = await engines.wait_for_line("cacheway engine ready:")
        engine_urls = [word for word in ready.split() if word.startswith("http://")]
        serve = ["--redis-url", valkey.url, "--worker-urls", *engine_urls]
        serve += ["--worker-capacity-tokens", str(AGENT_ENGINE.cache_tokens), "--log-level", "warning"]
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            turn = seed % len(setups)
            for setup in (*setups[turn:], *setups[:turn]):
                await _flush(engine_urls)
                namespace = f"{setup.name.replace(' ', '-')}-{seed}"
                command = [*serve, "--namespace", namespace, *options.serve]
                result = await _run(setup, shape, seed, command, directory)
                results[setup.name].append(result)
                print(
                    f"seed {seed:2} {setup.name:10} hit rate {result.hit_percent:6.2f} % "
                    f"(ideal {result.ideal_percent:.2f}), TTFT {1e3 * result.ttft_s:6.1f} ms, "
                    f"CPU {result.cpu_ms:.2f} ms a request, RSS {result.rss_mb:.1f} MB",
                    flush=True,
                )
    return results


async def _run(
    setup: Setup, shape: WorkloadShape, seed: int, command: Sequence[str], directory: Path
) -> Result:
    """Replay the sessions of one seed through new gateways."""
    samples: list[Sample] = []
    async with AsyncExitStack() as stack:
        children = [
            GatewayChild(f"{seed}-{setup.name}-{number}", command, directory)
            for number in range(setup.replicas)
        ]
        for child in children:
            await stack.enter_async_context(child)
        for child in children:
            await child.wait_until_ready()
        urls = [child.url for child in children]
        cpu_before_s = cpu_s([child.pid for child in children])
        client = await stack.enter_async_context(LoadClient())
        scripts = agent_sessions(shape, seed)
        ideal = IdealCache(AGENT_ENGINE.block_tokens)
        unsent = await replay(scripts, urls, client, ideal, samples.append, sticky=setup.sticky)
        spent_s = cpu_s([child.pid for child in children]) - cpu_before_s
        rss_mb = statistics.mean(rss_bytes(child.pid) for child in children) / 1e6
    failed = [sample.outcome.error for sample in samples if sample.outcome.error is not None]
    if failed:
        raise ChildFailed(f"{len(failed)} requests failed and {unsent} were not sent: {failed[0]}")
    prompt_tokens = sum(sample.outcome.prompt_tokens for sample in samples)
    return Result(
        hit_percent=100 * sum(sample.outcome.cached_tokens for sample in samples) / prompt_tokens,
        ideal_percent=100 * sum(sample.ideal_tokens for sample in samples) / prompt_tokens,
        ttft_s=statistics.mean(sample.outcome.ttft_s or 0.0 for sample in samples),
        cpu_ms=1e3 * spent_s / len(samples),
        rss_mb=rss_mb,
    )


async def _flush(urls: Sequence[str]) -> None:
    """Empty the engines' caches; an engine refuses while the last answers leave it."""
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(FLUSH_TIMEOUT_S):
        for url in urls:
            while (await client.post(f"{url}/flush_cache")).status_code != 200:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)


def table(results: dict[str, list[Result]]) -> str:
    """Compare every setup with both runs of one replica, seed by seed."""
    first, second = (results[name] for name in ("1", "1 again"))
    alone = [(one.hit_percent + other.hit_percent) / 2 for one, other in zip(first, second, strict=True)]
    itself = [one.hit_percent - other.hit_percent for one, other in zip(first, second, strict=True)]
    heads = ("hit rate %", "points above 1: mean (worst)", "TTFT ms", "CPU ms/request", "RSS MB")
    widths = (12, 30, 10, 16, 8)
    lines = [f"{'':12}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
    for name, runs in results.items():
        points = [run.hit_percent - base for run, base in zip(runs, alone, strict=True)]
        lines.append(
            f"{name:12}{statistics.mean(run.hit_percent for run in runs):12.2f}"
            f"{f'{statistics.mean(points):+.2f} ({min(points):+.2f})':>30}"
            f"{1e3 * statistics.mean(run.ttft_s for run in runs):10.1f}"
            f"{statistics.median(run.cpu_ms for run in runs):16.2f}"
            f"{statistics.mean(run.rss_mb for run in runs):8.1f}"
        )
    spread = [abs(points) for points in itself]
    lines.append(
        f"one replica differs from itself by {statistics.mean(spread):.2f} points, at most {max(spread):.2f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
