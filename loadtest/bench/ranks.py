"""Cost of the choice of a data-parallel rank: by the gateway or by the engine.

    python -m loadtest.bench.ranks [--traces FOLDER] [--seeds 1 2 3 4]

Recorded agents at 80 % load, simulated. *gateway*: it chooses worker and rank, as with ``--dp-aware``.
*engine, best*: the gateway chooses the worker, and its engine the rank with the least work, by what each
caches; no released engine does. *engine, blind*: the rank with the fewest requests, as engines do.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from loadtest.engine.job import Job
from loadtest.engine.rank import Rank
from loadtest.engine.scheduler import Scheduler
from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Workload
from loadtest.study.traffic import ENGINES, TRACES, TRAFFIC

CELLS = (("mimo-v2.5-pro", 0), ("mimo-v2.5-pro-dp8", 0), ("mimo-v2.5-pro", 4))
"""Engine, and decode workers beside eight that prefill; 0: eight plain workers."""

UTILISATION = 0.8

_blind = Scheduler._choose


def least_work(scheduler: Scheduler, job: Job) -> Rank:
    """Return the rank with the fewest tokens to compute until this job's are."""

    def work(rank: Rank) -> tuple[int, int, int]:
        uncached_tokens = 0 if job.role == "decode" else rank.uncached_tokens(job)
        queued = rank.running + len(rank.waiting)
        return rank.backlog_tokens + uncached_tokens, queued, rank.cache.held_tokens

    return min(scheduler.ranks, key=work)


CHOOSERS: dict[str, tuple[bool, Callable[[Scheduler, Job], Rank]]] = {
    "gateway": (True, _blind),
    "engine, best": (False, least_work),
    "engine, blind": (False, _blind),
}
"""By name: whether the gateway is aware of ranks, and the choice of engines that are told none."""


def row(chooser: str, workload: Workload, config: SimulationConfig) -> str:
    """Simulate, and return a row: hit ratio, predicted hit ratio, mean and P90 of the TTFT, completed."""
    dp_aware, choose = CHOOSERS[chooser]
    with patch.object(Scheduler, "_choose", choose):
        result = simulate(workload, replace(config, dp_aware=dp_aware))
    records, summary = result.records, result.summary()
    done = records.outcome == Outcome.COMPLETED
    predicted = records.predicted_tokens[done].sum() / records.prompt_tokens[done].sum()
    return (
        f"{summary['hit_ratio']:.1%} | {predicted:.1%} | {summary['ttft_mean_s']:.2f} s | "
        f"{summary['ttft_p90_s']:.2f} s | {done.mean():.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args(arguments)
    print("| engine | workers | seed | rank chosen by | hit | predicted | mean TTFT | P90 | completed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in rows(options.traces, options.seeds):
        print(line, flush=True)


def rows(traces: Path, seeds: Iterable[int]) -> Iterable[str]:
    """Yield the rows of the table."""
    traffic = TRAFFIC["agentic-64"]
    for engine, decode_workers in CELLS:
        workers = f"8 + {decode_workers}" if decode_workers else "8"
        for seed in seeds:
            workload = traffic.load(traces, seed)
            for chooser in CHOOSERS:
                config = SimulationConfig(
                    engine=ENGINES[engine],
                    workers=8,
                    decode_workers=decode_workers,
                    seed=seed,
                    utilisation=UTILISATION,
                )
                yield f"| {engine} | {workers} | {seed} | {chooser} | {row(chooser, workload, config)} |"


if __name__ == "__main__":
    main()
