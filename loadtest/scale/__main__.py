"""Simulate gateways beyond one log, and print the tables of docs/scale.md.

python -m loadtest.scale                     both kinds of traffic, 10 to 1,000 replicas, a death (3 min)
python -m loadtest.scale --traffic agents --replicas 10 100
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
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
REQUESTS_PER_S = 100.0
"""Of a replica, where messages are counted per second; `WORKERS_PER_REPLICA` workers keep up with it."""

WORKERS_PER_REPLICA = 10
APPLIED = 2000

HEADS = [
    "traffic",
    "replicas",
    "tree",
    "workers considered",
    "hit rate, %",
    "TTFT mean / P99, s",
    "messages a request",
    "bytes a request",
    "busiest / mean owner",
    "tree late P50 / P99, ms",
    "loads late P50 / P99, ms",
]
DEATH_HEADS = [
    "owners",
    "hit rate in the 10 s after, %",
    "without the death, %",
    "answers waited for in vain",
]
VECTOR_HEADS = [
    "replicas",
    "way",
    "busiest replica, messages/s",
    "MB/s",
    "its CPU, % of a core",
    "all, messages/s",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for; the exit status is 1 if a trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scale", description="Gateways beyond one log.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--traffic", nargs="+", choices=WINDOWS, default=list(WINDOWS))
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake trace [default %(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same figures [default 1]")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in options.traffic if kind == "agents" or options.trace.exists()]
    try:
        rows = [row(kind, setup, _run(kind, setup, options)) for kind, setup in setups(kinds, options)]
        print(table(HEADS, rows, left=3))
        print(f"\nDeath of the busiest of {options.replicas[-1]} replicas\n")
        print(table(DEATH_HEADS, _deaths(options), left=0))
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\nVectors at {REQUESTS_PER_S:.0f} requests/s and {WORKERS_PER_REPLICA} workers a replica\n")
    print(table(VECTOR_HEADS, _vectors(options.replicas), left=0))
    return 0


def setups(kinds: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, Setup]]:
    """Runs of the first table."""
    for kind in kinds:
        warm_s, until_s = WINDOWS[kind]
        one = Setup(
            knowledge="log", replicas=options.replicas[0], seed=options.seed, warm_s=warm_s, until_s=until_s
        )
        most = replace(one, knowledge="shards", replicas=options.replicas[-1])
        yield kind, one
        yield kind, replace(one, sampled=SAMPLED)
        for replicas in options.replicas:
            yield kind, replace(most, replicas=replicas, sampled=SAMPLED)
        yield kind, replace(most, owners=3, sampled=SAMPLED)
        yield kind, most
        yield kind, replace(one, knowledge="alone")


def row(kind: str, setup: Setup, outcome: Outcome) -> list[str]:
    """Cells of a run."""
    names = {"log": "one log", "alone": "each its own", "shards": f"{setup.owners} owners"}
    messages = (2 * outcome.asks + outcome.tells) / outcome.requests
    mean = outcome.handled.total() / setup.replicas
    return [
        kind,
        f"{setup.replicas:,}",
        names[setup.knowledge],
        f"holders and {setup.sampled}" if setup.sampled else "all",
        f"{100 * outcome.hit_ratio:.1f}",
        f"{np.mean(outcome.ttft_s):.2f} / {np.quantile(outcome.ttft_s, 0.99):.1f}",
        f"{messages:.1f}" if messages else "",
        f"{outcome.size_bytes / outcome.requests:,.0f}" if messages else "",
        f"{max(outcome.handled.values()) / mean:.1f}" if mean else "",
        late(outcome.tree_late_s),
        late(outcome.loads_late_s),
    ]


def late(seconds: Sequence[float]) -> str:
    """P50 and P99 in milliseconds."""
    return " / ".join(f"{1e3 * np.quantile(seconds, share):.1f}" for share in (0.5, 0.99)) if seconds else ""


def applied_us(workers: int = 15) -> float:
    """CPU of applying one vector with so many changed workers, µs: decode, difference, sum."""
    chance, columns = np.random.default_rng(1), WORKER_BYTES // 4
    total, known = np.zeros((1000, columns)), np.zeros((1000, columns))
    slots = chance.choice(1000, workers, replace=False).astype("<u2").tobytes()
    body = slots + chance.integers(0, 10**6, (workers, columns)).astype("<u4").tobytes()
    began_s = time.thread_time()
    for _ in range(APPLIED):
        at = np.frombuffer(body, "<u2", workers)
        values = np.frombuffer(body, "<u4", offset=2 * workers).reshape(workers, columns)
        total[at] += values - known[at]
        known[at] = values
    return 1e6 * (time.thread_time() - began_s) / APPLIED


def _run(kind: str, setup: Setup, options: argparse.Namespace) -> Outcome:
    print(f"{kind}, {setup.replicas} replicas, {setup.knowledge}", file=sys.stderr)
    starts: Starts = agents(SESSIONS_PER_S, setup.seed)
    if kind == "conversation":
        starts = conversations(options.trace, SPEED, setup.seed)
    return Simulation(setup, starts).run()


def _deaths(options: argparse.Namespace) -> Iterator[list[str]]:
    warm_s, until_s = WINDOWS["agents"]
    for owners in (1, 2, 3):
        setup = Setup(
            knowledge="shards",
            replicas=options.replicas[-1],
            owners=owners,
            sampled=SAMPLED,
            seed=options.seed,
            warm_s=warm_s,
            until_s=min(until_s, DIES_S + AFTER_S),
        )
        usual, death = (_run("agents", each, options) for each in (setup, replace(setup, dies_s=DIES_S)))
        ratios = [100 * each.hit_ratio_between(DIES_S, DIES_S + AFTER_S) for each in (death, usual)]
        yield [str(owners), *(f"{ratio:.1f}" for ratio in ratios), str(death.timeouts)]


def _vectors(replicas: Sequence[int]) -> Iterator[list[str]]:
    for number in replicas:
        for way in ("direct", "groups"):
            if way == "groups" and number <= DIRECT_MAX:
                continue
            told = vectors(way, number, WORKERS_PER_REPLICA * number, REQUESTS_PER_S)
            cpu = told.busiest_messages / 2 * applied_us() / 1e4
            figures = f"{told.busiest_messages:,.0f}", f"{told.busiest_bytes / 1e6:.1f}", f"{cpu:.1f}"
            yield [f"{number:,}", way, *figures, f"{told.total_messages:,.0f}"]


if __name__ == "__main__":
    sys.exit(main())
