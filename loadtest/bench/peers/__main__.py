"""Measure cacheway beside other routers, and write the report.

    python -m loadtest.bench.peers                                     all of it, 35 minutes
    python -m loadtest.bench.peers --workloads W1 W5 --reps 1        some of it
    python -m loadtest.bench.peers --report-only results.jsonl         the report of a former run

Each round starts every peer twice: for W1 to W6, and for W7, so that its memory is of W7 alone. Rounds begin
with another peer each, against drifting noise. An interrupted run leaves its results, and no process.
"""

import argparse
import asyncio
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.bench.peers.chart import draw
from loadtest.bench.peers.field import CACHEWAY, DIRECT, PEERS, WORKLOADS, Figure, Workload
from loadtest.bench.peers.kit import Kit, KitFailed
from loadtest.bench.peers.machine import Machine
from loadtest.bench.peers.report import markdown, number
from loadtest.bench.peers.results import Repetition, Results, Run, append, begin, read

REPOSITORY = Path(__file__).parents[3]
KIT = REPOSITORY.parent / "shared" / "bench"
HOME = Path(os.environ.get("BENCH_HOME") or Path.home() / ".cache" / "router-bench")  # the kit's own default
OUT = REPOSITORY / "docs" / "benchmarks"


def main(arguments: Sequence[str] | None = None, kit: Kit | None = None) -> int:
    """Do what the arguments say; the exit status is 1 if something could not be measured or written."""
    options = _parser().parse_args(arguments)
    try:
        if options.report_only:
            results = read(options.report_only)
        else:
            kit = kit or Kit(KIT, HOME)
            if not kit.present:
                print("skipped: the router benchmark kit is not there (../shared/bench)")
                return 0
            results = _measure(kit, options, Console())
        write(results, options.out)
    except KeyboardInterrupt:
        print(f"interrupted; --report-only {options.out / 'peers.jsonl'} shows what was measured so far")
        return 130
    except (KitFailed, OSError, msgspec.DecodeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written: {options.out / 'peers.md'} and {options.out / 'peers.png'}")
    return 0


def write(results: Results, folder: Path) -> None:
    """Write the report and the chart; `OSError` if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(markdown(results))
    draw(results, folder / "peers.png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.peers", description="Cacheway beside other routers."
    )
    peers, workloads = [peer.key for peer in PEERS], [workload.key for workload in WORKLOADS]
    parser.add_argument(
        "--peers", nargs="+", choices=peers, default=peers, metavar="KEY", help=" ".join(peers)
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=workloads,
        default=workloads,
        metavar="KEY",
        help=" ".join(workloads),
    )
    parser.add_argument("--reps", dest="rounds", type=int, default=5, help="rounds [default 5]")
    parser.add_argument(
        "--dur", dest="seconds", type=float, default=2.0, help="seconds for each of W1 to W4 [default 2]"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder [default docs/benchmarks]")
    parser.add_argument("--report-only", type=Path, metavar="FILE", help="results of a former run")
    return parser


def visits(
    peers: Sequence[str], workloads: Sequence[Workload], rounds: int
) -> list[tuple[int, str, list[str]]]:
    """Plan a run: number of the round, peer, and workloads from one start of that peer to its end."""
    together = [workload.key for workload in workloads if not workload.fill]
    alone = [[workload.fill, workload.key] for workload in workloads if workload.fill]
    added = [workload.key for workload in workloads if workload.figure is Figure.ADDED_LATENCY]
    plan = []
    for round_number in range(rounds):
        turn = round_number % len(peers)
        for peer in (*peers[turn:], *peers[:turn]):
            plan += [(round_number, peer, keys) for keys in (together, *alone) if keys]
        if added:
            plan.append((round_number, DIRECT, added))
    return plan


def _measure(kit: Kit, options: argparse.Namespace, console: Console) -> Results:
    """Install what is missing, run all rounds, and return the results; may raise `KitFailed` or `OSError`."""
    # Ratios are to cacheway, so it is always there.
    peers = [peer.key for peer in PEERS if peer.key in (CACHEWAY, *options.peers)]
    workloads = [workload for workload in WORKLOADS if workload.key in options.workloads]
    if parts := kit.missing(peers):
        console.print(f"Installing, once: {', '.join(parts)} (a few minutes)")
        kit.install(parts)
    run = Run(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=Machine.here(),
        versions=kit.versions(peers),
        rounds=options.rounds,
        seconds=options.seconds,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "peers.jsonl"
    begin(path, run)
    asyncio.run(_visit_all(kit, visits(peers, workloads, run.rounds), run, path, console))
    return read(path)


async def _visit_all(
    kit: Kit, plan: Sequence[tuple[int, str, list[str]]], run: Run, path: Path, console: Console
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(len(workloads) for _, _, workloads in plan))
        for round_number, peer, workloads in plan:
            progress.update(task, description=f"round {round_number + 1}/{run.rounds} {peer}")
            seen: list[Repetition] = []

            def keep(repetition: Repetition, seen: list[Repetition] = seen) -> None:
                seen.append(repetition)
                append(path, repetition)
                progress.advance(task)
                progress.console.print(_line(repetition))

            await kit.visit(peer, workloads, round_number=round_number, seconds=run.seconds, keep=keep)
            if len(seen) < len(workloads):
                problem = f"{peer}: {len(seen)} of {workloads} measured; it said\n{kit.last_words()}"
                if peer == CACHEWAY:
                    raise KitFailed(problem)
                progress.console.print(problem, markup=False)
                progress.advance(task, len(workloads) - len(seen))


def _line(repetition: Repetition) -> str:
    if repetition.cpu_us_per_chunk is None:
        cpu = f"{number(repetition.cpu_us_per_request):>8} µs/request"
    else:
        cpu = f"{number(repetition.cpu_us_per_chunk):>8} µs/chunk  "
    failed = f"  [red]{repetition.failed} failed[/]" if repetition.failed else ""
    return (
        f"{repetition.round_number + 1:2} {repetition.peer:10} {repetition.workload:6} {cpu}"
        f"  {number(repetition.per_s):>8}/s  RSS {repetition.rss_mib:7.1f} MiB{failed}"
    )


if __name__ == "__main__":
    sys.exit(main())
