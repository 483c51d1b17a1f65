"""Simulates cells, several at a time, each in a process of its own.

A process keeps the traffic it read last, and cells come sorted by traffic, so each reads a trace a few times
only. What a cell gives depends on nothing but the cell and the code.
"""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Workload
from loadtest.study.design import Cell
from loadtest.study.results import Figure, Row, Store
from loadtest.study.traffic import ENGINES, TRAFFIC

WARM_UP_SHARE = 0.1
"""Requests at the start that figures leave out, since all caches are empty and all policies alike then."""


def run(
    cells: Iterable[Cell],
    store: Store,
    traces: Path,
    *,
    jobs: int,
    told: Callable[[Row], None],
) -> None:
    """Simulate what the store lacks.

    Args:
        cells: Wanted.
        store: Gets every result as it comes.
        traces: Folder of the traces.
        jobs: Processes at a time.
        told: Called with every new result.

    Raises:
        OSError: A trace cannot be read.
        loadtest.traces.TraceError: A trace is damaged.
    """
    missing = sorted(store.missing(cells), key=lambda cell: cell.traffic)
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


def simulated(cell: Cell, traces: Path, code: str) -> Row:
    """Simulate one cell."""
    result = simulate(_workload(cell.traffic, traces), configured(cell))
    done = result.records.outcome == Outcome.COMPLETED
    figures: dict[str, Figure] = {
        **result.summary(),
        "input_tokens": int(result.records.prompt_tokens[done].sum()),
    }
    return Row(code, cell, figures)


def configured(cell: Cell) -> SimulationConfig:
    """What the simulator is asked for a cell."""
    traffic = TRAFFIC[cell.traffic]
    engine = replace(ENGINES[cell.engine], queue_order=cell.queue_order, aging=cell.aging)
    rules = {} if cell.congestion_max_per_s is None else {"congestion_max_per_s": cell.congestion_max_per_s}
    return SimulationConfig(
        engine=engine,
        policy=cell.policy,
        policy_options=dict(cell.options),
        workers=traffic.workers,
        replicas=cell.replicas,
        speed=traffic.speed,
        seed=cell.seed,
        block_tokens=cell.block_tokens,
        rules=rules,
        utilisation=cell.utilisation,
    )


@lru_cache(maxsize=1)
def _workload(traffic: str, traces: Path) -> Workload:
    return TRAFFIC[traffic].load(traces)
