"""The gateway's queue beside engines that fetch from a shared pool: does waiting here cost the prefetch?

    python -m loadtest.study.fetching                              all cells, about 20 minutes on one core
    python -m loadtest.study.fetching --traffic conversation       some of them
    python -m loadtest.study.fetching --loads 0.8 --gb-per-s 2 --prefetch wait_complete
    python -m loadtest.study.fetching --seeds 1 2 3                more of what is drawn

An engine begins to fetch when a request comes to it (HiCache). A request that waits in the gateway begins
later, and ``best_effort`` ends a fetch when the prefill could begin. Each cell is simulated without a queue
and with the default one, in which no request expires; a table of mean and P90 of the time to first token goes
to the terminal. Eight dense-70b engines with host memory share a pool of eight nodes, and the gateway starts
from their prices, as in the policy study (`loadtest.study.runs`).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings, PrefetchPolicy
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import simulate
from loadtest.study.design import OURS, Cell
from loadtest.study.runs import prepared
from loadtest.study.shipped import K
from loadtest.study.traffic import TRACES
from loadtest.traces import TraceError

NODES = 8

NODE_TOKENS = 16_000_000

TRAFFICS = ("conversation", "agentic-64")

LOADS = (0.8, 0.95)

NODE_GB_PER_S = (2.0, 10.0, 100.0)

POLICIES: tuple[PrefetchPolicy, ...] = get_args(PrefetchPolicy)


@dataclass(frozen=True, slots=True)
class FetchCell:
    """One fleet under one load; ``gb_per_s`` is what each node of the pool sends."""

    traffic: str
    load: float
    gb_per_s: float
    policy: PrefetchPolicy


def cells(
    traffics: Sequence[str] = TRAFFICS,
    loads: Sequence[float] = LOADS,
    gb_per_s: Sequence[float] = NODE_GB_PER_S,
    policies: Sequence[PrefetchPolicy] = POLICIES,
) -> Iterator[FetchCell]:
    """Cells of some kinds of traffic, loads, pools and prefetch policies."""
    for each in product(traffics, loads, gb_per_s, policies):
        yield FetchCell(*each)


def ttft_s(cell: FetchCell, seed: int, traces: Path, *, queue: bool) -> tuple[float, float]:
    """Mean and P90 of the time to first token, in seconds."""
    same = Cell(
        part="fetching",
        traffic=cell.traffic,
        label=OURS,
        policy=OURS,
        engine="dense-70b",
        host=True,
        l3=True,
        utilisation=cell.load,
        seed=seed,
    )
    workload, config, _ = prepared(same, traces)
    config = replace(
        config,
        host=HiCacheSettings(prefetch_policy=cell.policy),
        l3=L3Settings(nodes=NODES, memory_tokens=NODE_TOKENS, node_bytes_per_s=cell.gb_per_s * 1e9),
        queue=QueueRules(k=K, room=PATIENT) if queue else None,
    )
    records = simulate(workload, config).records
    seconds = records.ttft_s[records.outcome == Outcome.COMPLETED]
    return float(seconds.mean()), float(np.percentile(seconds, 90))


def row(cell: FetchCell, seeds: Sequence[int], traces: Path) -> str:
    """One row of the table: means over the seeds, and the greater of the two changes."""
    found = []
    for queue in (False, True):
        drawn = [ttft_s(cell, seed, traces, queue=queue) for seed in seeds]
        found.append(tuple(sum(values) / len(drawn) for values in zip(*drawn, strict=True)))
    (mean_s, p90_s), (queued_mean_s, queued_p90_s) = found
    worst = max(queued_mean_s / mean_s, queued_p90_s / p90_s) - 1
    return (
        f"| {cell.traffic} | {cell.load:.0%} | {cell.gb_per_s:g} | {cell.policy} "
        f"| {mean_s:.2f} | {queued_mean_s:.2f} | {p90_s:.2f} | {queued_p90_s:.2f} | {worst:+.0%} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if the traces cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.study.fetching", description="The queue beside a shared pool."
    )
    parser.add_argument("--traffic", nargs="+", choices=TRAFFICS, default=TRAFFICS)
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS)
    parser.add_argument("--gb-per-s", nargs="+", type=float, default=NODE_GB_PER_S, help="of each node")
    parser.add_argument("--prefetch", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="of all that is drawn")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (%(default)s)")
    options = parser.parse_args(arguments)
    print("| traffic | load | GB/s a node | prefetch | mean, s | queued | P90, s | queued | worse of both |")
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        for cell in cells(options.traffic, options.loads, options.gb_per_s, options.prefetch):
            print(row(cell, options.seeds, options.traces), flush=True)
    except (OSError, TraceError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
