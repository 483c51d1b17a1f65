"""Simulates cells, several at a time, each in a process of its own.

A process keeps the traffic it read last, and cells come sorted by traffic. Load is set as
`SimulationConfig.utilisation` would, but before the simulation, so that the gateway can start from the prices
of its engines. A result depends on the cell and the code alone.
"""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.simulator.fleet import capacity_tokens
from loadtest.simulator.records import Outcome, Records
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.utilisation import time_scale
from loadtest.simulator.workload import Workload
from loadtest.study.buckets import BUCKETS, parted
from loadtest.study.design import Cell
from loadtest.study.results import Figure, Row, Store
from loadtest.study.shipped import shipped_queue
from loadtest.study.traffic import ENGINES, TRAFFIC
from loadtest.unchanged.revision import Revision


def run(
    cells: Iterable[Cell],
    store: Store[Cell, Row],
    traces: Path,
    *,
    jobs: int,
    told: Callable[[Row], None],
) -> None:
    """Simulate missing cells, ``jobs`` at a time, and store every result; ``told`` gets each.

    Raises:
        OSError: A trace cannot be read.
        loadtest.traces.TraceError: A trace is damaged.
    """
    order = list(TRAFFIC)
    missing = sorted(store.missing(cells), key=lambda cell: (order.index(cell.traffic), cell.seed))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(simulated, cell, traces, store.code) for cell in missing]
        try:
            for future in as_completed(futures):
                row = future.result()
                store.add(row)
                told(row)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def simulated(cell: Cell, traces: Path, code: Revision) -> Row:
    """Simulate one cell."""
    workload, config, scale = prepared(cell, traces)
    result = simulate(workload, config)
    return Row(code, cell, {**result.summary(), **totals_of(result.records), "time_scale": scale})


def prepared(cell: Cell, traces: Path) -> tuple[Workload, SimulationConfig, float]:
    """Traffic and configuration of a cell, and the factor of prefill times that makes its load."""
    scale = _time_scale(_load_of(cell), traces)
    return _workload(cell.traffic, traces, cell.seed), configured(cell, scale), scale


def totals_of(records: Records) -> dict[str, Figure]:
    """Figures of all that completed, and of those in the shortest bucket, outside it, and in the longest."""
    completed = records.outcome == Outcome.COMPLETED
    ttft_s, prompts = records.ttft_s[completed], records.prompt_tokens[completed]
    if not len(prompts):
        return {"input_tokens": 0}
    short, longest = prompts <= BUCKETS.tokens_max[0], prompts > BUCKETS.tokens_max[-2]
    return {
        "input_tokens": int(prompts.sum()),
        "makespan_s": float(records.finished_s[completed].max()),
        "hit_ratio": float(records.reused_tokens[completed].sum() / prompts.sum()),
        "ttft_mean_s": float(ttft_s.mean()),
        "ttft_first_bucket_p90_s": _p90(ttft_s[short]),
        "ttft_other_buckets_p90_s": _p90(ttft_s[~short]),
        "ttft_longest_bucket_p90_s": _p90(ttft_s[longest]),
    }


def _p90(values: NDArray[np.float64]) -> float | None:
    return float(np.percentile(values, 90)) if len(values) else None


def configured(cell: Cell, scale: float = 1.0) -> SimulationConfig:
    """Configuration of a cell; prefill takes ``scale`` times as long as the engine's profile says."""
    traffic = TRAFFIC[cell.traffic]
    engine = ENGINES[cell.engine].with_prefill(1.0 / scale)
    rules: dict[str, Any] = {}
    if not cell.default_prices:
        rules["default_model"] = engine.prefill.model()
    config = SimulationConfig(
        engine=engine,
        policy=cell.policy,
        policy_options=dict(cell.options),
        workers=traffic.workers,
        replicas=cell.replicas,
        speed=traffic.speed,
        seed=cell.seed,
        rules=rules,
        host=HiCacheSettings() if cell.host else None,
        l3=L3Settings() if cell.l3 else None,
        queue=None if cell.queue_k is None else shipped_queue(cell.queue_k),
    )
    return parted(config) if cell.buckets else config


def _load_of(cell: Cell) -> Cell:
    """The cell without what does not change how long prefill must take for its load."""
    same = Cell(
        part="", traffic=cell.traffic, label="", policy="", engine=cell.engine, host=cell.host, l3=cell.l3
    )
    return replace(same, utilisation=cell.utilisation, seed=cell.seed)


@lru_cache(maxsize=64)
def _time_scale(cell: Cell, traces: Path) -> float:
    if cell.utilisation is None:
        return 1.0
    config = configured(cell)
    host = config.host or config.engine.host_tier or (HiCacheSettings() if cell.l3 else None)
    return time_scale(
        _workload(cell.traffic, traces, cell.seed),
        config.engine,
        config.workers,
        cell.utilisation,
        capacity_tokens=capacity_tokens(config.engine, config.workers, host, config.l3),
        speed=config.speed,
    )


@lru_cache(maxsize=1)
def _workload(traffic: str, traces: Path, seed: int) -> Workload:
    return TRAFFIC[traffic].load(traces, seed)
