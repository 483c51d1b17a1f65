"""Time to first token of a fleet with one worker at half speed, with and without learning its slowdown.

    python -m loadtest.bench.slow_worker                 two engines, agents' sessions drawn from a seed
    python -m loadtest.bench.slow_worker --trace FILE    recorded traffic, too

``equal`` has no slow worker, ``class price`` prices it as its class, ``slowdown`` as it is. Simulated, in
virtual time, with one replica of the gateway.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from loadtest.engine.profiles import PROFILES
from loadtest.simulator import simulation
from loadtest.simulator.fleet import WorkerGroup
from loadtest.simulator.generated import generate_agentic
from loadtest.simulator.readers import ReadOptions, read_auto
from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.workload import Workload

WORKERS = 8
WARMUP_S = 120.0


def run(workload: Workload, config: SimulationConfig, *, learns: bool) -> tuple[Result, dict[str, float]]:
    """Simulate; return the result, and the slowdowns in force at its end.

    Args:
        workload: The requests.
        config: The fleet.
        learns: False: nothing is learned of single workers.
    """
    simulated = simulation._Simulation(workload, config, None)
    for replica in simulated.replicas if not learns else ():
        replica._feedback._learn_slowdown = lambda *_: None  # type: ignore[method-assign]
    result, fleet = simulated.run(), simulated.replicas[0].fleet
    found = {worker.worker_id: fleet.columns.slowdown(worker.slot) for worker in fleet.workers()}
    return result, {name: slowdown for name, slowdown in found.items() if slowdown != 1.0}


def slow_fleet(engine: str, speed: float, workers: int = WORKERS) -> SimulationConfig:
    """Return a fleet of one worker class, one of whose workers runs at ``speed``."""
    profile = PROFILES[engine]
    groups = (
        WorkerGroup(name="usual", profile=profile, count=workers - 1),
        WorkerGroup(name="slow", profile=profile.faster(speed), count=1),
    )
    return SimulationConfig(engine=profile, groups=groups, warmup_s=WARMUP_S)


def rows(label: str, workload: Workload, engine: str) -> Iterator[str]:
    """Run all three and describe each as a row of a table."""
    for name, speed, learns in (("equal", 1.0, True), ("class price", 0.5, False), ("slowdown", 0.5, True)):
        result, found = run(workload, slow_fleet(engine, speed), learns=learns)
        records = result.records
        counted = records.arrival_s >= WARMUP_S
        ttft_s = (records.first_s - records.arrival_s)[counted]
        hits = records.reused_tokens.sum() / records.prompt_tokens.sum()
        mean_s, p90_s = np.nanmean(ttft_s), np.nanpercentile(ttft_s, 90)
        said = ", ".join(f"{slowdown:.2f}" for slowdown in found.values()) or "-"
        yield f"| {label} | {name} | {mean_s:.3f} | {p90_s:.3f} | {hits:.3f} | {said} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded traffic")
    parser.add_argument("--seconds", type=float, default=900.0, help="of the trace [default 900]")
    options = parser.parse_args(arguments)
    print("| workload | slow worker | mean s | P90 s | hit ratio | slowdowns |\n|---|---|--:|--:|--:|--:|")
    cells = [("mimo-v2.5-pro", 64), ("dense-70b", 72), ("dense-70b", 88)]
    for engine, users in cells:
        drawn = generate_agentic(users=users, sessions=2 * users, seed=1)
        print("\n".join(rows(f"{users} agents, {engine}", drawn, engine)), flush=True)
    if options.trace is not None:
        recorded = read_auto(options.trace, ReadOptions(end_s=options.seconds))
        print("\n".join(rows(f"trace, {cells[0][0]}", recorded, cells[0][0])), flush=True)


if __name__ == "__main__":
    main()
