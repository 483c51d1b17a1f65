"""The queue under pressure: first come, first served against few uncached tokens first, around capacity.

    python -m loadtest.study.queueing                 all of it; an interrupted study resumes
    python -m loadtest.study.queueing --report-only   the tables from existing results

Both kinds of traffic are open loops, so that every variant gets the same requests at the same times:

    agentic     sessions of coding agents, each request at a time of its own
                (`loadtest.study.open_loop.opened`), in the time in which all users are there
    azure-code  20 minutes of bursts of prompts that share nothing

Engines are as fast as published; the load is the speed of the traffic (`Traffic.capacity_speed`). *Goodput*
counts requests whose first token came within `LEVEL`, SMetric's service level (theory D): 1 s and 62.5 ms for
each 1,000 tokens of the prompt, also the promise of early rejection.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.agentic import read_agentic
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.records import Floats, Outcome, Result
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Workload
from loadtest.study.design import SEEDS
from loadtest.study.open_loop import RAMP_S, opened
from loadtest.study.queue_page import Figures, QueueCell, QueueRow, write
from loadtest.study.results import Store
from loadtest.study.shipped import TIMEOUT_S, K
from loadtest.study.traffic import AGENTIC_FILE, TRACES, TRAFFIC
from loadtest.traces import TraceError
from loadtest.unchanged.revision import ROOT, Revision, present
from policies import ServiceLevel

FOLDER = ROOT / "docs" / "policy-study"

LEVEL = ServiceLevel(ttft_slo_s=1.0, ttft_slo_s_per_1k_tokens=0.0625)
"""Promised service level, which goodput counts."""

LOADS = (1.0, 1.1)

KS = (0.0, K)

ASK_S = 10.0
"""A waiting request decides afresh no sooner without its turn: hundreds wait here for minutes."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Traffic, and the fleet that serves it.

    Attributes:
        capacity_speed: Speed relative to the recording at 100 % load.
        long_tokens: Longer prompts count as long.
        warmup_s: Earlier requests, at the recorded speed, are in no figure.
        load: Reads the traffic, from the folder of the traces and with a seed.
    """

    engine: str
    workers: int
    capacity_speed: float
    long_tokens: int
    warmup_s: float
    load: Callable[[Path, int], Workload]


def _agentic(folder: Path, seed: int) -> Workload:
    return opened(read_agentic(folder / AGENTIC_FILE, users=48, sessions=110, seed=seed), full=True)


PRESSURES = {
    "agentic": Pressure("mimo-v2.5-pro", 2, 1.0, 65_536, RAMP_S, _agentic),
    "azure-code": Pressure("dense-70b", 2, 6.6, 4_096, 0.0, TRAFFIC["azure-code"].load),
}
"""By the name of cells.

* ``azure-code``: at 6.6 times the recorded speed its prefills, one by one, take all of two workers' time.
* ``agentic``: the work depends on what is still cached, and so on the order. Without a shared queue the same
  fleet already falls behind at 0.95 times the recorded speed.
"""


def cells() -> list[QueueCell]:
    """Cells to simulate."""
    found = []
    for traffic in ("agentic",):
        found += [QueueCell(traffic, load, k) for k in KS for load in LOADS]
        found += [QueueCell(traffic, load, K, early=True) for load in LOADS]
        found += [QueueCell(traffic, 1.1, K, replicas=4), QueueCell(traffic, 1.0, None)]
        found += [
            QueueCell(traffic, load, k, seed=seed) for seed in SEEDS[1:] for load in LOADS for k in (0.0, K)
        ]
    return found


def simulated(cell: QueueCell, traces: Path, code: Revision) -> QueueRow:
    """Simulate one cell."""
    pressure, workload = PRESSURES[cell.traffic], _workload(cell.traffic, traces, cell.seed)
    speed = cell.load * pressure.capacity_speed
    engine = PROFILES[pressure.engine]
    queue = None
    if cell.k is not None:
        level = LEVEL if cell.early else ServiceLevel()
        queue = QueueRules(k=cell.k, room=replace(PATIENT, ask_s=ASK_S), level=level)
    config = SimulationConfig(
        engine=engine,
        workers=pressure.workers,
        replicas=cell.replicas,
        speed=speed,
        queue=queue,
        warmup_s=pressure.warmup_s / speed,
        rules={"default_model": engine.prefill.model()},
        seed=cell.seed,
    )
    last_s = (workload.sessions[-1].start_s or 0.0) / speed
    return QueueRow(code, cell, figures_of(simulate(workload, config), pressure.long_tokens, last_s))


@lru_cache(maxsize=1)
def _workload(traffic: str, traces: Path, seed: int) -> Workload:
    return PRESSURES[traffic].load(traces, seed)


def figures_of(result: Result, long_tokens: int, last_s: float) -> Figures:
    """The figures of one simulation.

    Prompts over ``long_tokens`` are long, ``last_s`` is the last arrival.
    """
    start_s = result.config.warmup_s
    records = result.records.since(start_s)
    done = records.outcome == Outcome.COMPLETED
    ttft_s = records.ttft_s
    promised_s = np.array([LEVEL.ttft_s_of(tokens) for tokens in records.prompt_tokens.tolist()])
    in_time = done & (ttft_s <= promised_s)
    long = records.prompt_tokens > long_tokens
    waits_s = (records.dispatched_s - records.arrival_s)[done]
    return Figures(
        requests=len(records),
        completed_share=float(done.mean()),
        goodput_per_s=float(in_time.sum()) / (last_s - start_s),
        kept_share=float(in_time.mean()),
        long_ttft_s=_percentiles(ttft_s[done & long]),
        short_ttft_s=_percentiles(ttft_s[done & ~long]),
        wait_s_max=float(waits_s.max()) if len(waits_s) else 0.0,
        overdue_share=float((waits_s > TIMEOUT_S).mean()) if len(waits_s) else 0.0,
        hit_ratio=float(records.reused_tokens[done].sum() / records.prompt_tokens[done].sum()),
        inversions=result.inversions,
        inversion_s_max=result.inversion_s_max,
        digest=result.decisions_digest,
    )


def _percentiles(values: Floats) -> tuple[float, float, float]:
    if not len(values):
        return (0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return p50, p90, p99


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if something could not be read or written."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        store: Store[QueueCell, QueueRow] = Store(options.out / "queue.jsonl", present(), QueueRow)
        if not options.report_only:
            missing = store.missing(cells())
            for row in _simulate_all(missing, options.traces, options.jobs, store.code):
                store.add(row)
                console.print(row.cell.title)
        store.keep(cells())
        write(options.out, store.rows(cells()))
    except (OSError, TraceError, msgspec.MsgspecError) as exc:
        console.print(f"error: {exc}", style="red", markup=False)
        return 1
    return 0


def _simulate_all(wanted: Sequence[QueueCell], traces: Path, jobs: int, code: Revision) -> Iterator[QueueRow]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(simulated, cell, traces, code) for cell in wanted]
        for future in as_completed(futures):
            yield future.result()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.study.queueing", description="The queue under pressure."
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the page (%(default)s)")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (%(default)s)")
    parser.add_argument("--report-only", action="store_true", help="simulate nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
