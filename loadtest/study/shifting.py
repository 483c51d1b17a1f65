"""Automatic length buckets where they should gain most: agentic traffic whose lengths shift.

The sessions of the study's agentic traffic whose longest prompt is below the median come first, then the
others, so that the best division of the first half is the worst of the second. Eight workers at a mean
utilisation of 80 %, engines with two and with eight data-parallel ranks, three seeds. Run with::

    python -m loadtest.study.shifting TRACES
"""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from loadtest.simulator.fleet import capacity_tokens
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.utilisation import time_scale
from loadtest.simulator.workload import Session, Workload
from loadtest.study.buckets import BUCKETS, parted
from loadtest.study.design import AGENTIC, MANY_RANKS, MIDDLE
from loadtest.study.runs import totals_of
from loadtest.study.traffic import ENGINES, TRAFFIC

FIGURES = (
    "ttft_first_bucket_p90_s",
    "ttft_other_buckets_p90_s",
    "ttft_longest_bucket_p90_s",
    "ttft_mean_s",
)


def shifted(workload: Workload) -> Workload:
    """The same sessions: first those whose longest prompt is below the median, then the others."""
    middle = median(_longest(session) for session in workload.sessions)
    return replace(
        workload, sessions=tuple(sorted(workload.sessions, key=lambda session: _longest(session) >= middle))
    )


def _longest(session: Session) -> int:
    return max(request.tokens for request in session.requests)


def main(traces: Path) -> None:
    """Print one line per engine, seed and mode: P90 to 64K, beyond 64K, beyond 256K, and the mean."""
    for name in ("mimo-v2.5-pro", MANY_RANKS):
        for seed in (1, 2, 3):
            traffic, engine = TRAFFIC[AGENTIC], ENGINES[name]
            workload = shifted(traffic.load(traces, seed))
            tokens = capacity_tokens(engine, traffic.workers, engine.host_tier, None)
            scale = time_scale(
                workload, engine, traffic.workers, MIDDLE, capacity_tokens=tokens, speed=traffic.speed
            )
            engine = engine.with_prefill(1.0 / scale)
            pool = SimulationConfig(
                engine=engine,
                workers=traffic.workers,
                speed=traffic.speed,
                seed=seed,
                rules={"default_model": engine.prefill.model()},
            )
            modes = {
                "one pool": pool,
                "labels": parted(pool),
                "auto": replace(pool, bucket_bounds=BUCKETS.tokens_max),
            }
            for mode, config in modes.items():
                totals = totals_of(simulate(workload, config).records)
                print(name, seed, mode, *(f"{totals[figure] or 0.0:.2f}" for figure in FIGURES), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
