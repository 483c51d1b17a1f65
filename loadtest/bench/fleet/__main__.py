"""Compare Cacheway with cache-aware routers on sockets, and write the page.

    python -m loadtest.bench.fleet                                            all of it, 55 minutes
    python -m loadtest.bench.fleet --parts agents --repetitions 2             some of it
    python -m loadtest.bench.fleet --report-only                              the page of existing results

Runs whose results exist for the same sources are left out, so the bench can be interrupted and resumed. All
routers of a repetition get the same requests; repetitions begin with another router each, against drifting
noise. Several runs proceed at the same time, each with a fleet, a load and a router of its own: one keeps a
core busy for a tenth of the time, and each result says whether the machine kept up
(`loadtest.bench.fleet.results`).
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest.bench.fleet.cells import CELLS, Cell, Part, Router
from loadtest.bench.fleet.chart import draw, draw_front
from loadtest.bench.fleet.page import markdown
from loadtest.bench.fleet.results import Outcome, append, of_revision, read
from loadtest.bench.fleet.routers import BINARIES, HOME, PARTS
from loadtest.bench.fleet.runs import Pace, run
from loadtest.bench.fleet.script import Traces
from loadtest.bench.peers.machine import Machine
from loadtest.processes import ChildFailed
from loadtest.unchanged.revision import present

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared"
AGENTS_TRACE, CONVERSATION_TRACE = "weka_agentic_setA.jsonl.zst", "mooncake_conversation_first60.jsonl.gz"
OUT = REPOSITORY / "docs" / "benchmarks" / "fleet"
START_S = 3.0
"""Real seconds that a run takes beside its load, on two idle cores."""

Visit = tuple[int, Cell, Router]
"""One run: repetition, cell and router."""


def main(arguments: Sequence[str] | None = None, shared: Path = SHARED) -> int:
    """Do what the arguments say; the exit status is 1 if something could not be measured or written."""
    options = _parser().parse_args(arguments)
    console = Console()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fleet.jsonl"
    try:
        if not options.report_only:
            traces = _traces(options.traces or shared / "traces")
            if traces is None:
                print("skipped: the recorded traffic is not there (../shared/traces)")
                return 0
            _install(options.routers, shared / "bench" / "install_peers.sh", console)
            asyncio.run(_measure(options, traces, path, console))
        write(path, options.out)
    except KeyboardInterrupt:
        print(f"interrupted; start it again to go on, or with --report-only to see {path}")
        return 130
    except (ChildFailed, OSError, msgspec.DecodeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written: {options.out.with_suffix('.md')} and {options.out / 'fleet.png'}")
    return 0


def write(path: Path, folder: Path) -> None:
    """Write the page beside the folder, and the chart into it, of the newest revision; raise `OSError`."""
    outcomes = read(path)
    if not outcomes:
        raise OSError(f"{path} has no results")
    outcomes = of_revision(outcomes, outcomes[-1].revision)
    fresh = of_revision(outcomes, present().decisions)
    older = sorted({outcome.cell for outcome in outcomes} - {outcome.cell for outcome in fresh})
    folder.with_suffix(".md").write_text(markdown(outcomes, Machine.here(), folder.name, older))
    draw(outcomes, folder / "fleet.png")
    draw_front(outcomes, folder / "front.png")


def visits(
    parts: Sequence[str], cells: Sequence[str], routers: Sequence[str], repetitions: int
) -> list[Visit]:
    """Plan a run: repetition by repetition, so that an early end leaves all cells with fewer repetitions."""
    plan = []
    for repetition in range(repetitions):
        for cell in CELLS:
            if cell.part not in parts or (cells and cell.key not in cells):
                continue
            taking_part = [router for router in cell.routers if router in routers]
            turn = repetition % max(1, len(taking_part))
            plan += [(repetition, cell, router) for router in (*taking_part[turn:], *taking_part[:turn])]
    return plan


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.fleet", description="Cacheway beside cache-aware routers, on sockets."
    )
    routers, cells = list(Router), [cell.key for cell in CELLS]
    parser.add_argument(
        "--parts", type=lambda text: [Part(part) for part in text.split(",")], default=list(Part),
        metavar="PART,...", help=f"{','.join(Part)} [default all]",
    )  # fmt: skip
    parser.add_argument("--routers", nargs="+", choices=routers, default=routers, metavar="ROUTER")
    parser.add_argument("--cells", nargs="+", choices=cells, default=[], metavar="CELL", help=" ".join(cells))
    parser.add_argument("--repetitions", type=int, default=5, help="[default 5]")
    parser.add_argument("--seconds", type=float, default=250.0, help="of trace time in a run [default 250]")
    parser.add_argument("--speed", type=float, default=5.0, help="trace seconds in a second [default 5]")
    parser.add_argument("--jobs", type=int, default=8, help="runs at the same time [default 8]")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="[default ../shared/traces]")
    parser.add_argument("--out", type=Path, default=OUT, help="folder [default docs/benchmarks/fleet]")
    parser.add_argument("--report-only", action="store_true", help="measure nothing, write the page again")
    return parser


def _traces(folder: Path) -> Traces | None:
    """The recorded traffic of a folder; None if it is not there."""
    agents, conversation = folder / AGENTS_TRACE, folder / CONVERSATION_TRACE
    return Traces(agents, conversation) if agents.is_file() and conversation.is_file() else None


def _install(routers: Sequence[str], script: Path, console: Console) -> None:
    """Install missing peers; `OSError` or `CalledProcessError` if that fails."""
    missing = [
        PARTS[router] for router in BINARIES if router in routers and not (HOME / BINARIES[router]).is_file()
    ]
    if missing:
        console.print(f"Installing, once: {', '.join(missing)} (a few minutes)")
        environment = {**os.environ, "BENCH_HOME": str(HOME)}
        subprocess.run([str(script), *missing], env=environment, check=True)  # noqa: S603 - the kit's own


async def _measure(options: argparse.Namespace, traces: Traces, path: Path, console: Console) -> None:
    """Run what is planned and has no result.

    `ChildFailed` if Cacheway does not come up, `OSError` from the file.
    """
    pace, now = Pace(options.seconds, options.speed), present().decisions
    done = {
        (outcome.repetition, outcome.cell, outcome.router)
        for outcome in of_revision(read(path), now)
        if (outcome.seconds, outcome.speed) == (pace.seconds, pace.speed)
    }
    plan = [
        visit
        for visit in visits(options.parts, options.cells, options.routers, options.repetitions)
        if (visit[0], visit[1].key, visit[2]) not in done
    ]
    estimate_min = len(plan) * (pace.seconds / pace.speed + START_S) / 60 / options.jobs
    console.print(f"{len(plan)} runs, {len(done)} are there already; about {estimate_min:.0f} minutes")
    began_s, ended = time.monotonic(), 0
    left = iter(plan)

    async def work() -> None:
        nonlocal ended
        for repetition, cell, router in left:
            try:
                outcome = await run(cell, router, repetition, pace, traces)
            except ChildFailed as error:
                if router not in BINARIES:
                    raise
                console.print(f"{router}: {error}", markup=False)
                continue
            append(path, outcome)
            ended += 1
            left_min = (time.monotonic() - began_s) / ended * (len(plan) - ended) / 60
            console.print(f"{ended}/{len(plan)}, {left_min:.0f} min left: {_line(outcome)}", markup=False)

    async with asyncio.TaskGroup() as tasks:
        for number in range(options.jobs):
            tasks.create_task(work(), name=f"fleet-runs-{number}")


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.repetition + 1} {outcome.cell:22} {outcome.router:17} mean {outcome.ttft_mean_s:6.2f} s  "
        f"P90 {outcome.ttft_p90_s:6.2f} s  hit {outcome.hit_ratio:.3f} of {outcome.ideal_hit_ratio:.3f}  "
        f"CPU {outcome.router_cpu_s:.1f} s{'' if outcome.valid else '  invalid'}"
    )


if __name__ == "__main__":
    sys.exit(main())
