"""What several processes on one port cost: requests per CPU-second of one, and of N that share everything.

    python -m loadtest.bench.processes --processes 2 --rounds 5

Every round has ``cacheway serve --workers 1`` and ``--workers N`` on an equal load per process: 1 KB chat
requests that are not streamed, half of a prompt shared with others, in a closed loop of ``--connections``
for each process, or in an open loop of ``--rate-per-s``. Beside the gateway's CPU there is that of Valkey,
which all processes share, and how the clients' connections spread over the processes.

The promise is that a request costs N processes at most 10 % more than one. A process that waits for a
processor finds more to do at once, and a request costs less. Where the processes, the load and the engines
have no processor each, an open loop makes sure that both ran alike.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from loadtest.bench.gateway_stage import Running, Sample, Stage, staged
from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.processes import ChildFailed

WARM_UP_S = 4.0
DISTINCT = 1000


@dataclass(frozen=True, slots=True)
class Cost:
    """One run.

    Attributes:
        requests_per_s: Answered.
        cpu_us: CPU of the gateway per request.
        valkey_us: CPU of Valkey per request.
        clients: Connections of each process.
    """

    requests_per_s: float
    cpu_us: float
    valkey_us: float
    clients: tuple[int, ...]

    @classmethod
    def between(
        cls, before: tuple[Sample, LoadReport], after: tuple[Sample, LoadReport], clients: Sequence[int]
    ) -> "Cost":
        """What happened between two looks at the gateway and its load."""
        (first, sent), (last, answered) = before, after
        requests = answered.completed - sent.completed
        return cls(
            requests / (answered.at_s - sent.at_s),
            1e6 * (last.cpu_s - first.cpu_s) / requests,
            1e6 * (last.valkey_cpu_s - first.valkey_cpu_s) / requests,
            tuple(clients),
        )


def main() -> int:
    """Run all rounds and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.processes",
        description="CPU per request of one process and of several.",
    )
    parser.add_argument("--processes", type=int, default=2, help="compared with one [default 2]")
    parser.add_argument("--rounds", type=int, default=5, help="[default 5]")
    parser.add_argument("--window-s", type=float, default=10.0, help="measured in each run [default 10]")
    parser.add_argument(
        "--rate-per-s", type=float, default=0.0, help="per process; 0 for a closed loop [default 0]"
    )
    parser.add_argument("--connections", type=int, default=64, help="at most, per process [default 64]")
    options = parser.parse_args()
    costs: dict[int, list[Cost]] = {1: [], options.processes: []}
    try:
        for at in range(options.rounds):
            for processes in sorted(costs, reverse=at % 2 == 1):
                cost = uvloop.run(_run(processes, options))
                costs[processes].append(cost)
                print(_line(processes, cost), flush=True)
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("\n" + summary(costs))
    return 0


async def _run(processes: int, options: argparse.Namespace) -> Cost:
    async with staged(processes, gap_s=1.0) as stage:
        plan = LoadPlan(
            stage.port,
            connections=processes * options.connections,
            rate_per_s=processes * options.rate_per_s,
            distinct=DISTINCT,
        )
        async with stage.load(plan) as running:
            await _look(stage, running, after_s=WARM_UP_S)
            before = await _look(stage, running)
            after = await _look(stage, running, after_s=options.window_s)
            return Cost.between(before, after, stage.clients())


async def _look(stage: Stage, running: Running, after_s: float = 0.0) -> tuple[Sample, LoadReport]:
    """Look at the gateway with the first report of its load after a while.

    Raises:
        ChildFailed: A request was not answered as expected.
    """
    until_s = time.monotonic() + after_s
    while True:
        report = await running.next(LoadReport)
        if report is None or report.broken:
            raise ChildFailed(f"the load came to no good end: {report}")
        if report.at_s >= until_s:
            return stage.sample(), report


def _line(processes: int, cost: Cost) -> str:
    spread = " + ".join(map(str, cost.clients))
    return (
        f"{processes} process(es): {cost.requests_per_s:6.0f} requests/s, {cost.cpu_us:6.1f} us each, "
        f"Valkey {cost.valkey_us:5.1f} us; {spread} connections"
    )


def summary(costs: dict[int, list[Cost]]) -> str:
    """Medians, with the smallest and largest figure, and what the processes cost more than one."""
    lines, medians = [], []
    for processes, runs in costs.items():
        figures = [run.cpu_us for run in runs]
        medians.append(statistics.median(figures))
        per_cpu_s = 1e6 / medians[-1]
        lines.append(
            f"{processes} process(es): {per_cpu_s:6.0f} requests per CPU-second, {medians[-1]:6.1f} us each "
            f"({min(figures):.1f} to {max(figures):.1f}), "
            f"Valkey {statistics.median(run.valkey_us for run in runs):5.1f} us"
        )
    if len(medians) > 1:
        lines.append(f"A request costs {medians[1] / medians[0] - 1:+.1%} with {max(costs)} processes.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
