"""Simulate gateways beyond one log, and print the tables of docs/scale.md.

python -m loadtest.scale                     both kinds of traffic, 10 to 1,000 replicas, a death (3 min)
python -m loadtest.scale --traffic agents --replicas 10 100
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadtest.bench.markdown import table
from loadtest.scale.simulation import DIRECT_MAX, Outcome, Setup, Simulation
from loadtest.scale.spreading import WORKER_BYTES, vectors
from loadtest.scale.traffic import TRACE, Starts, agents, conversations
from loadtest.traces import TraceError

SESSIONS_PER_S = 6.0
SPEED = 25.0
SAMPLED = 8
WINDOWS = {"agents": (80.0, 140.0), "conversation": (40.0, 85.0)}
"""Seconds at which counting begins and ends."""

DIES_S = 100.0
AFTER_S = 10.0
DEATHS = 3
"""Seeds of which the mean is shown."""

REQUESTS_PER_S = 100.0
"""Per replica, where messages are counted per second; `WORKERS_PER_REPLICA` workers keep up with it."""

WORKERS_PER_REPLICA = 10
APPLIED = 1000
WORKERS_MAX = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requested tables; the exit status is 1 if a trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scale", description="Gateways beyond one log.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--traffic", nargs="+", choices=WINDOWS, default=list(WINDOWS))
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake trace [default %(default)s]")
    parser.add_argument("--capacity-blocks", type=int, default=8000, help="of a worker [default 8000]")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same figures [default 1]")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in options.traffic if kind == "agents" or options.trace.exists()]
    try:
        rows = [row(kind, setup, _run(kind, setup, options)) for kind, setup in setups(kinds, options)]
        print(_text(rows))
        print(f"\nDeath of the busiest of {options.replicas[0]} replicas: {AFTER_S:.0f} s after, agents\n")
        print(_text(_deaths(options)))
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\nVectors at {REQUESTS_PER_S:.0f} requests/s and {WORKERS_PER_REPLICA} workers a replica\n")
    print(_text(_vectors(options.replicas)))
    return 0


def setups(kinds: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, Setup]]:
    """Runs of the first table."""
    for kind in kinds:
        warm_s, until_s = WINDOWS[kind]
        one = Setup(knowledge="log", replicas=options.replicas[0], warm_s=warm_s, until_s=until_s)
        one = replace(one, seed=options.seed, capacity_blocks=options.capacity_blocks)
        most = replace(one, knowledge="shards", replicas=options.replicas[-1])
        yield kind, one
        yield kind, replace(one, sampled=SAMPLED)
        for replicas in options.replicas:
            yield kind, replace(most, replicas=replicas, sampled=SAMPLED)
        yield kind, replace(most, owners=3, sampled=SAMPLED)
        yield kind, most
        yield kind, replace(one, knowledge="alone")


def row(kind: str, setup: Setup, outcome: Outcome) -> dict[str, str]:
    """Cells of a run by their heads."""
    names = {"log": "one log", "alone": "each its own", "shards": f"{setup.owners} owners"}
    requests, mean = len(outcome.placed), outcome.handled.total() / setup.replicas
    mean_s, p99_s = np.mean(outcome.ttft_s), np.quantile(outcome.ttft_s, 0.99)
    return {
        "traffic": kind,
        "replicas": f"{setup.replicas:,}",
        "tree": names[setup.knowledge],
        "workers considered": f"holders and {setup.sampled}" if setup.sampled else "all",
        "hit rate, %": f"{100 * outcome.hit_ratio():.1f}",
        "TTFT mean / P99, s": f"{mean_s:.2f} / {p99_s:.1f}",
        "messages a request": f"{(2 * outcome.asks + outcome.tells) / requests:.1f}" if mean else "",
        "bytes a request": f"{outcome.size_bytes / requests:,.0f}" if mean else "",
        "busiest / mean owner": f"{max(outcome.handled.values()) / mean:.1f}" if mean else "",
        "tree late P50 / P99, ms": late(outcome.tree_late_s),
        "loads late P50 / P99, ms": late(outcome.loads_late_s),
    }


def late(seconds: Sequence[float]) -> str:
    """P50 and P99 in milliseconds."""
    return " / ".join(f"{1e3 * np.quantile(seconds, share):.1f}" for share in (0.5, 0.99)) if seconds else ""


def applied_us(workers: int) -> float:
    """CPU of applying one vector with ``workers`` changed ones, µs: decode, difference, sum."""
    chance, columns = np.random.default_rng(1), WORKER_BYTES // 4
    total, known = np.zeros((WORKERS_MAX, columns)), np.zeros((WORKERS_MAX, columns))
    slots = chance.choice(WORKERS_MAX, workers, replace=False).astype("<u2").tobytes()
    body = slots + chance.integers(0, 10**6, (workers, columns)).astype("<u4").tobytes()
    began_s = time.thread_time()
    for _ in range(APPLIED):
        at = np.frombuffer(body, "<u2", workers)
        values = np.frombuffer(body, "<u4", offset=2 * workers).reshape(workers, columns)
        total[at] += values - known[at]
        known[at] = values
    return 1e6 * (time.thread_time() - began_s) / APPLIED


def _text(rows: Iterable[dict[str, str]]) -> str:
    cells = list(rows)
    return table(list(cells[0]), [list(each.values()) for each in cells])


def _run(kind: str, setup: Setup, options: argparse.Namespace) -> Outcome:
    print(f"{kind}, {setup.replicas} replicas, {setup.knowledge}", file=sys.stderr)
    starts: Starts = agents(SESSIONS_PER_S, setup.seed)
    if kind == "conversation":
        starts = conversations(options.trace, SPEED, setup.seed)
    return Simulation(setup, starts).run()


def _deaths(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    for owners in (1, 2, 3):
        one = Setup(knowledge="shards", replicas=options.replicas[0], owners=owners, sampled=SAMPLED)
        one = replace(one, warm_s=WINDOWS["agents"][0], until_s=DIES_S + AFTER_S)
        seeds = [replace(one, seed=options.seed + number) for number in range(DEATHS)]
        usual = [_run("agents", setup, options) for setup in seeds]
        died = [_run("agents", replace(setup, dies_s=DIES_S), options) for setup in seeds]
        yield {
            "owners": str(owners),
            "hit rate after it, %": f"{100 * np.mean([each.hit_ratio(DIES_S) for each in died]):.1f}",
            "without it, %": f"{100 * np.mean([each.hit_ratio(DIES_S) for each in usual]):.1f}",
            "answers waited for in vain": f"{np.mean([each.timeouts for each in died]):.0f}",
        }


def _vectors(replicas: Sequence[int]) -> Iterator[dict[str, str]]:
    for number in replicas:
        for way in ("direct", "groups"):
            if way == "groups" and number <= DIRECT_MAX:
                continue
            told = vectors(way, number, WORKERS_PER_REPLICA * number, REQUESTS_PER_S)
            cpu_us = sum(messages * applied_us(workers) for messages, workers in told.applied)
            yield {
                "replicas": f"{number:,}",
                "way": way,
                "busiest replica, messages/s": f"{told.messages:,.0f}",
                "MB/s": f"{told.size_bytes / 1e6:.1f}",
                "CPU of applying, % of a core": f"{cpu_us / 1e4:.1f}",
                "all, messages/s": f"{told.all_messages:,.0f}",
            }


if __name__ == "__main__":
    sys.exit(main())
